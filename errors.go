package gomflux

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
)

var (
	// ErrUnsupported is wrapped by errors about models that are complete but not
	// supported by this version.
	ErrUnsupported = errs.ErrUnsupported
	// ErrRequest identifies, with errors.Is, errors about options: a size, a number or a
	// prompt that the model does not accept, or an unknown device or dtype.
	ErrRequest = errs.ErrRequest
	// ErrNotFound is wrapped by errors about models and LoRAs that are not on this machine.
	ErrNotFound = errs.ErrNotFound
	// ErrClosed is the error of using a model or an autoencoder after it was closed.
	ErrClosed = models.ErrClosed
	// ErrMemory is wrapped by errors about a batch that does not fit into memory.
	ErrMemory = errors.New("not enough memory")
)

// A wrapped is an error of the engine, whose text is that of the error with it.
type wrapped struct{ error }

// Unwrap returns the underlying error.
func (w wrapped) Unwrap() error { return w.error }

// A ReferenceError is an [ErrRequest] about one of Options.References.
type ReferenceError struct {
	Index int   // the index of the image in Options.References
	Err   error // the reason without the index

	wrapped
}

// A NotFiniteError reports that the model computed NaN or infinite values instead of an
// image, and the weights that are the likely cause.
type NotFiniteError struct {
	What  string // latents or pixels
	Dtype Dtype  // the dtype of the computation
	// Weights lists the first parameters of each component with elements that are not
	// finite. It is empty if all weights are finite.
	Weights []NotFiniteWeight
	// Total is the number of such parameters in all components.
	Total int

	wrapped
}

// A NotFiniteWeight is a parameter with NaN or infinite elements in memory.
type NotFiniteWeight struct {
	File   string // the file of the parameter's tensor
	Name   string // the tensor's name in the file
	Dtype  Dtype  // the parameter's dtype in memory
	Stored string // the values in the file that are not finite, "" if all of them are finite
}

// Damaged reports whether the model's files contain values that are not finite.
func (e *NotFiniteError) Damaged() bool {
	return slices.ContainsFunc(e.Weights, func(w NotFiniteWeight) bool { return w.Stored != "" })
}

// A LoRAError reports a LoRA that cannot be read or that does not fit the model.
type LoRAError struct {
	// Unmatched lists tensors that match no layer of the model. It is empty if the error
	// has another reason.
	Unmatched []string
	// For is the model that the LoRA seems to be for, "" if that is unknown.
	For string

	wrapped
}

// public converts errors of the engine to those of this package, with the same text.
func public(err error) error {
	if reference, ok := errors.AsType[*models.ReferenceError](err); ok {
		return &ReferenceError{Index: reference.Index, Err: reference.Err, wrapped: wrapped{err}}
	}
	if e, ok := errors.AsType[*models.NotFiniteError](err); ok {
		out := &NotFiniteError{What: e.What, Dtype: Dtype(e.Dtype.String()), Total: e.Total, wrapped: wrapped{err}}
		for _, w := range e.Weights {
			out.Weights = append(out.Weights, NotFiniteWeight{w.File, w.Name, Dtype(w.Dtype.String()), w.Stored})
		}
		return out
	}
	if _, ok := errors.AsType[*lora.Error](err); ok {
		out := &LoRAError{wrapped: wrapped{err}}
		if unmatched, ok := errors.AsType[*lora.UnmatchedError](err); ok {
			out.Unmatched, out.For = unmatched.Keys, unmatched.For
		}
		return out
	}
	return err
}

// batchError adds the number of images to an out-of-memory error of a batch.
func batchError(err error, n int) error {
	var failed *mlx.Error
	if n > 1 && errors.As(err, &failed) && outOfMemory.MatchString(failed.Error()) {
		return fmt.Errorf("%w for %d images at once: %w", ErrMemory, n, err)
	}
	return public(err)
}

// outOfMemory matches MLX's messages for the CPU, Metal and CUDA.
var outOfMemory = regexp.MustCompile(`(?i)out of memory|unable to allocate|attempting to allocate|insufficient memory|bad_alloc`)
