package gomflux

import (
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
)

// TestBatchError recognises MLX's out-of-memory messages for a batch.
func TestBatchError(t *testing.T) {
	for _, message := range []string{
		"[malloc] Unable to allocate 17179869184 bytes.",
		"[metal::malloc] Attempting to allocate 34359738368 bytes which is greater than " +
			"the maximum allowed buffer size of 22613000192 bytes.",
		"[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
		"cudaMallocAsync(&data, size, stream) failed: out of memory",
	} {
		failed := &mlx.Error{Message: message}
		err := batchError(failed, 8)
		if !errors.Is(err, ErrMemory) || !errors.Is(err, failed) ||
			!strings.HasPrefix(err.Error(), "not enough memory for 8 images at once: mlx: ") {
			t.Errorf("%s: error %v", message, err)
		}
		if err := batchError(failed, 1); err != failed {
			t.Errorf("%s: of one image: %v", message, err)
		}
	}
	for _, err := range []error{&mlx.Error{Message: "[matmul] shapes do not fit"}, errors.New("out of memory")} {
		if got := batchError(err, 8); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}

// TestPublic converts errors of the engine to those of this package. They keep their text
// and still wrap the original errors.
func TestPublic(t *testing.T) {
	cause := errors.New("too thin")
	around := func(err error) error { return fmt.Errorf("around: %w", err) }

	engine := around(&models.ReferenceError{Index: 2, Err: errs.Request(cause)})
	reference, ok := errors.AsType[*ReferenceError](public(engine))
	if !ok || reference.Index != 2 || reference.Err.Error() != "too thin" ||
		reference.Error() != "around: image 3: too thin" || !errors.Is(reference, ErrRequest) || !errors.Is(reference, cause) {
		t.Errorf("%#v", reference)
	}

	broken := &models.NotFiniteError{What: "latents", Dtype: mlx.Float16, Total: 3, Weights: []models.NotFiniteWeight{
		{File: "a", Name: "b", Dtype: mlx.BFloat16}, {File: "c", Name: "d", Dtype: mlx.Float32, Stored: "1 NaN"},
	}}
	engine = around(broken)
	finite, ok := errors.AsType[*NotFiniteError](public(engine))
	if !ok || finite.Error() != engine.Error() || !errors.Is(finite, broken) || !finite.Damaged() {
		t.Fatalf("%#v", finite)
	}
	if finite.What != "latents" || finite.Dtype != Float16 || finite.Total != 3 || len(finite.Weights) != 2 ||
		finite.Weights[0] != (NotFiniteWeight{"a", "b", BFloat16, ""}) ||
		finite.Weights[1] != (NotFiniteWeight{"c", "d", Float32, "1 NaN"}) {
		t.Errorf("%+v", finite)
	}
	finite.Weights = finite.Weights[:1]
	if finite.Damaged() {
		t.Error("a weight that is finite in its file is said to be damaged")
	}

	path := filepath.Join(t.TempDir(), "absent.safetensors")
	_, engine = lora.Load([]lora.Spec{{Path: path, Scale: 1}}, nil)
	read, ok := errors.AsType[*LoRAError](public(engine))
	if !ok || read.Error() != engine.Error() || !errors.Is(read, os.ErrNotExist) || len(read.Unmatched) > 0 || read.For != "" {
		t.Errorf("%#v", read)
	}

	for _, err := range []error{nil, cause, errs.Request(cause), around(cause)} {
		if got := public(err); got != err {
			t.Errorf("%v becomes %v", err, got)
		}
	}
}

// TestPublicErrors: no function lets an error of the engine pass as it is.
func TestPublicErrors(t *testing.T) {
	m, err := Open(t.Context(), "models/testdata/flux2-klein/model", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	thin := Options{Prompt: "x", References: []image.Image{image.NewRGBA(image.Rect(0, 0, 900, 64))}}
	for name, do := range map[string]func() error{
		"Generate":      func() error { _, err := m.Generate(t.Context(), thin); return err },
		"GenerateBatch": func() error { _, err := m.GenerateBatch(t.Context(), thin, []uint64{1, 2}); return err },
		"Check":         func() error { return m.Check(thin) },
		"Open": func() error {
			_, err := Open(t.Context(), "models/testdata/flux2-klein/model", &OpenOptions{For: []Options{thin}})
			return err
		},
	} {
		if err, ok := errors.AsType[*ReferenceError](do()); !ok || err.Index != 0 || !errors.Is(err, ErrRequest) {
			t.Errorf("%s: error %#v", name, err)
		}
	}

	// a hook's error comes back as it is
	mine := errors.New("mine")
	_, err = m.Generate(t.Context(), Options{Prompt: "x", Steps: 1, Height: 64, Width: 64,
		Hook: func(Tap) (Tensor, error) { return nil, mine }})
	if !errors.Is(err, mine) {
		t.Errorf("error %v", err)
	}
	mlxtest.Do(t, func() {}) // and the thread goes on
}
