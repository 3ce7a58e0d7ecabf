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
	// ErrUnsupported is wrapped by errors about models that are whole but that this
	// version cannot run.
	ErrUnsupported = errs.ErrUnsupported
	// ErrRequest is what errors about options are (errors.Is): a size, a number or a
	// prompt that the model cannot take, a device or dtype that does not exist.
	ErrRequest = errs.ErrRequest
	// ErrNotFound is wrapped by errors about models that are not on this machine.
	ErrNotFound = errs.ErrNotFound
	// ErrMemory is wrapped by errors of a batch for which there is not enough memory.
	ErrMemory = errors.New("not enough memory")
)

// A ReferenceError is an [ErrRequest] about one of Options.References.
type ReferenceError struct {
	Index int // from 0
	Err   error

	whole error
}

func (e *ReferenceError) Error() string { return e.whole.Error() }
func (e *ReferenceError) Unwrap() error { return e.whole }

// A NotFiniteError says that the model computed NaN or infinite values, of which no
// picture is made, and which of its weights are to blame for it.
type NotFiniteError struct {
	What  string // latents or pixels
	Dtype Dtype  // that they were computed in
	// Weights are the first parameters of each component that are not finite
	// themselves, and Total is how many there are in all.
	Weights []NotFiniteWeight
	Total   int

	whole error
}

// A NotFiniteWeight is a parameter with NaN or infinite elements in memory.
type NotFiniteWeight struct {
	File   string // with its tensor Name, which may have a prefix to the parameter's
	Name   string
	Dtype  Dtype  // in memory
	Stored string // what is not finite of the tensor in the file, "" if all is
}

// Damaged reports whether the model's files have values that are not finite.
func (e *NotFiniteError) Damaged() bool {
	return slices.ContainsFunc(e.Weights, func(w NotFiniteWeight) bool { return w.Stored != "" })
}

func (e *NotFiniteError) Error() string { return e.whole.Error() }
func (e *NotFiniteError) Unwrap() error { return e.whole }

// A LoRAError is about a LoRA: its file cannot be read, or it does not fit the model.
type LoRAError struct {
	// Unmatched lists the tensors that fit nothing in the model, where that is what
	// is wrong, and For is what the LoRA seems to be for, "" if that cannot be told.
	Unmatched []string
	For       string

	whole error
}

func (e *LoRAError) Error() string { return e.whole.Error() }
func (e *LoRAError) Unwrap() error { return e.whole }

// public makes errors of the engine those of this package, with the same text.
func public(err error) error {
	if reference, ok := errors.AsType[*models.ReferenceError](err); ok {
		return &ReferenceError{Index: reference.Index, Err: reference.Err, whole: err}
	}
	if e, ok := errors.AsType[*models.NotFiniteError](err); ok {
		out := &NotFiniteError{What: e.What, Dtype: Dtype(e.Dtype.String()), Total: e.Total, whole: err}
		for _, w := range e.Weights {
			out.Weights = append(out.Weights, NotFiniteWeight{w.File, w.Name, Dtype(w.Dtype.String()), w.Stored})
		}
		return out
	}
	if _, ok := errors.AsType[*lora.Error](err); ok {
		out := &LoRAError{whole: err}
		if unmatched, ok := errors.AsType[*lora.UnmatchedError](err); ok {
			out.Unmatched, out.For = unmatched.Keys, unmatched.For
		}
		return out
	}
	return err
}

// batchError says of an error for lack of memory how many pictures it was for.
func batchError(err error, n int) error {
	var failed *mlx.Error
	if n > 1 && errors.As(err, &failed) && outOfMemory.MatchString(failed.Error()) {
		return fmt.Errorf("%w for %d pictures at once: %w", ErrMemory, n, err)
	}
	return public(err)
}

// outOfMemory matches what MLX says of the CPU, Metal and CUDA.
var outOfMemory = regexp.MustCompile(`(?i)out of memory|unable to allocate|attempting to allocate|insufficient memory|bad_alloc`)
