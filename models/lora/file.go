package lora

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A file is an open LoRA.
type file struct {
	*checkpoint.File
	weights  *checkpoint.Checkpoint // the file, with the formats of quantized weights
	strength float64                // Spec.Scale
	configs  map[string]*config     // by component, "" for all components
}

// peftName is the name of an adapter that PEFT saves next to its config.
const peftName = "adapter_model.safetensors"

// open opens a LoRA's file.
func open(spec Spec) (*file, error) {
	if spec.Path == "" {
		return nil, errors.New("LoRA: the path is empty")
	}
	if math.IsNaN(spec.Scale) || math.IsInf(spec.Scale, 0) {
		return nil, fmt.Errorf("%s: scale: expected a number, found %v", spec.Path, spec.Scale)
	}
	if checkpoint.IsPickle(spec.Path) {
		return nil, fmt.Errorf("%s: pickle file, which can run arbitrary code (convert it with "+
			"safetensors.torch.save_file(torch.load(path, weights_only=True), new_path))", spec.Path)
	}
	dir, name := filepath.Split(filepath.Clean(spec.Path))
	folder := checkpoint.Folder{FS: os.DirFS(filepath.Join(dir, ".")), Name: dir}
	w, err := checkpoint.Open(folder, name)
	if err != nil {
		return nil, fmt.Errorf("LoRA %w", err)
	}
	f := &file{File: w, strength: spec.Scale}
	if err := f.prepare(folder, name); err != nil {
		f.Close()
		return nil, fmt.Errorf("LoRA %s: %w", f.Name, err)
	}
	return f, nil
}

// safetensors lists the safetensors files in a folder.
func safetensors(fsys fs.FS) (names []string, err error) {
	entries, err := fs.ReadDir(fsys, ".")
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".safetensors") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// prepare reads the formats of the file's weights and the configs of its adapters.
func (f *file) prepare(folder checkpoint.Folder, name string) error {
	var err error
	if f.weights, err = checkpoint.NewCheckpoint(f.File); err != nil {
		return err
	}
	if text := f.Header.Metadata[metadataKey]; text != "" {
		if f.configs, err = parseMetadata(text); err != nil {
			return fmt.Errorf("metadata %s: %w", metadataKey, err)
		}
		return nil
	}
	// the config of the folder may belong to another file in it
	if siblings, err := safetensors(folder); err != nil || name != peftName && len(siblings) > 1 {
		return oserr.Bare(err)
	}
	if _, err := fs.Stat(folder, configName); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c, err := readConfig(folder, configName)
	f.configs = map[string]*config{"": c}
	return err
}

// config returns the config of a component's adapters, nil if there is no config.
func (f *file) config(component string) *config {
	if c := f.configs[component]; c != nil {
		return c
	}
	return f.configs[""]
}

// A tensor is a tensor of a file. Trailing axes of 1 after the second axis, which 1x1
// convolutions have, are removed.
type tensor struct {
	checkpoint.Tensor
	file  *file
	scale *checkpoint.Tensor // of 8-bit floats, nil without one
}

// names lists the tensors of the file, without those that only describe other tensors.
func (f *file) names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.weights.Tensors)), func(name string) bool {
		weight, isScale := nn.Companion(name)
		return layout.IsIgnored(name) || isScale && f.weights.Tensors[weight].Dtype == checkpoint.F8E4M3
	})
}

func (f *file) tensor(name string) *tensor {
	t := tensor{Tensor: f.weights.Tensors[name], file: f}
	for _, other := range nn.Companions(name) {
		if s, ok := f.weights.Tensors[other]; ok && t.Dtype == checkpoint.F8E4M3 {
			t.scale = &s
		}
	}
	for len(t.Shape) > 2 && t.Shape[len(t.Shape)-1] == 1 {
		t.Shape = t.Shape[:len(t.Shape)-1]
	}
	return &t
}

// errorf returns an error about the tensor.
func (t *tensor) errorf(format string, args ...any) error {
	return fmt.Errorf("LoRA %s: tensor %s: %w", t.file.Name, quote.Name(t.Name), fmt.Errorf(format, args...))
}

// read reads the tensor, or another one that belongs to it.
func (t *tensor) read(of checkpoint.Tensor) ([]byte, error) {
	data, err := t.file.weights.Bytes(of)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, t.errorf("the file was truncated while it was in use")
	case err != nil:
		return nil, t.errorf("%w", oserr.Bare(err))
	}
	return data, nil
}

// check returns an error if the tensor has a dtype in which weights are not stored.
func (t *tensor) check() error {
	switch {
	case t.Packing == nil && !t.Dtype.IsWeight() && t.Dtype != checkpoint.F8E4M3:
		return t.errorf("expected F32, F16, BF16 or F8_E4M3, found %s", t.Dtype)
	case t.scale != nil && !nn.IsFloatScale(*t.scale):
		return t.errorf("expected one number, F32, as %s, found %s", quote.Name(t.scale.Name), t.scale.Type())
	}
	return nil
}

// array reads the tensor in its stored dtype, dequantized. It throws errors.
func (t *tensor) array() *mlx.Array {
	a := nn.Decode(t.Tensor, t.scale, func(of checkpoint.Tensor) []byte {
		data, err := t.read(of)
		if err != nil {
			throw("%w", err)
		}
		return data
	}).Reshape(t.Shape...)
	if !a.AllFinite() {
		throw("%w", t.errorf("has NaN or infinite values"))
	}
	return a
}

// asFloat32 reads the tensor as float32.
func (t *tensor) asFloat32() *mlx.Array { return t.array().AsType(mlx.Float32) }

// number reads a tensor of one element.
func (t *tensor) number() (float64, error) {
	if t.Len() != 1 {
		return 0, t.errorf("expected one number, found shape %v", t.Shape)
	}
	data, err := t.read(t.Tensor)
	if err != nil {
		return 0, err
	}
	one := checkpoint.Array{Dtype: t.Dtype, Shape: t.Shape, Data: data}
	if values := checkpoint.EightBits(t.Dtype); values != nil {
		return float64(values[data[0]]), nil
	}
	if !t.Dtype.IsNumeric() {
		return 0, t.errorf("expected a number, found %s", t.Dtype)
	}
	return one.Float64s()[0], nil
}
