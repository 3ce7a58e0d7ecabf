package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// openPacked opens a file as a checkpoint.
func openPacked(t testing.TB, folder, name string) (*Checkpoint, error) {
	t.Helper()
	f, err := Open(os.DirFS(folder), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return NewCheckpoint(f)
}

// numbers reads a tensor, so many elements at a time.
func numbers(t testing.TB, ck *Checkpoint, tensor Tensor, step int) (all []float64) {
	t.Helper()
	for values, err := range ck.Values(t.Context(), tensor, step) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, values...)
	}
	return all
}

// TestPackedReference dequantizes matrices that comfy-kitchen has quantized, and compares them with
// what it dequantizes them to.
func TestPackedReference(t *testing.T) {
	const folder = "testdata/comfy"
	want, err := openPacked(t, folder, "expected.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for file, n := range map[string]int{"quantized.safetensors": len(want.Tensors), "metadata.safetensors": 1} {
		ck, err := openPacked(t, folder, file)
		if err != nil {
			t.Fatal(err)
		}
		if len(ck.Tensors) != n {
			t.Errorf("%s: tensors %v, expected %d", file, slices.Sorted(maps.Keys(ck.Tensors)), n)
		}
		for name, tensor := range ck.Tensors {
			expected := want.Tensors[name]
			if !slices.Equal(tensor.Shape, expected.Shape) {
				t.Errorf("%s: shape %v, expected %v", name, tensor.Shape, expected.Shape)
				continue
			}
			w := numbers(t, want, expected, 1000)
			for _, step := range []int{1, 3*expected.Shape[1] + 1, 1 << 20} {
				got := numbers(t, ck, tensor, step)
				if far := farthest(got, w); far > 1e-6 {
					t.Errorf("%s, %d at a time: off by %g of the largest value", name, step, far)
				}
			}
			stats, err := ck.Stats(t.Context(), tensor, func(int64) {})
			if err != nil || stats == nil || math.Abs(float64(stats.Max)-slices.Max(w)) > 1e-5 {
				t.Errorf("%s: statistics %+v, %v", name, stats, err)
			}
		}
	}
}

// farthest returns the largest difference as a part of the largest value.
func farthest(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	largest, far := 0.0, 0.0
	for i, w := range want {
		largest, far = max(largest, math.Abs(w)), max(far, math.Abs(got[i]-w))
	}
	return far / largest
}

// TestPackedRows reads rows of a packed matrix, as those of one of several layers.
func TestPackedRows(t *testing.T) {
	ck, err := openPacked(t, "testdata/comfy", "quantized.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rotated.weight", "tensor.weight", "int4.weight", "mxfp8.weight", "nvfp4.weight"} {
		whole := ck.Tensors[name]
		columns := whole.Shape[1]
		all := numbers(t, ck, whole, 1<<20)
		part, err := whole.Apply(Transform{Op: TransformRows, From: 1, To: 5})
		if err == nil {
			part, err = part.Apply(Transform{Op: TransformSwap})
		}
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat(all[3*columns:5*columns], all[columns:3*columns])
		if got := numbers(t, ck, part, columns); !slices.Equal(got, want) {
			t.Errorf("%s: other rows", name)
		}
	}
}

// packedFile writes a file with a weight [4, 32] and what belongs to it, and opens it. change
// changes the tensors; config is the JSON of comfy_quant.
func packedFile(t testing.TB, config, metadata string, change func(map[string]*Array)) (*Checkpoint, error) {
	t.Helper()
	array := func(dtype Dtype, shape ...int) *Array {
		return &Array{Dtype: dtype, Shape: shape, Data: make([]byte, Tensor{Dtype: dtype, Shape: shape}.Bytes())}
	}
	tensors := map[string]*Array{
		"a.weight": array(I8, 4, 32), "a.weight_scale": array(F32, 4, 1),
		"a.comfy_quant": {Dtype: U8, Shape: []int{len(config)}, Data: []byte(config)},
	}
	if change != nil {
		change(tensors)
	}
	var list []*Array
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		tensors[name].Name = name
		list = append(list, tensors[name])
	}
	folder := t.TempDir()
	if err := WriteFile(filepath.Join(folder, "x.safetensors"), list, map[string]string{packingMetadata: metadata}); err != nil {
		t.Fatal(err)
	}
	return openPacked(t, folder, "x.safetensors")
}

func TestPackedErrors(t *testing.T) {
	const int8 = `{"format": "int8_tensorwise"}`
	without := func(name string) func(map[string]*Array) {
		return func(all map[string]*Array) { delete(all, name) }
	}
	as := func(name string, dtype Dtype, shape ...int) func(map[string]*Array) {
		return func(all map[string]*Array) {
			all[name] = &Array{Dtype: dtype, Shape: shape, Data: make([]byte, Tensor{Dtype: dtype, Shape: shape}.Bytes())}
		}
	}
	tests := []struct {
		config, metadata string
		change           func(map[string]*Array)
		want             string // "" for none
		unsupported      bool
	}{
		{config: int8},
		{config: int8, change: as("a.weight_scale", F32)},
		{config: int8, change: as("a.weight_scale", BF16, 4)},
		{config: `{"format": "int8_tensorwise", "convrot": false, "convrot_groupsize": 6}`},
		{config: `{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16, "orig_dtype": "bfloat16"}`},
		{config: int8, change: without("a.weight")},
		{change: without("a.comfy_quant"), metadata: `{"layers": {"a": {"format": "int8_tensorwise"}, "b": {"format": "x"}}}`},

		{config: `{"format": "svdquant_w4a4"}`,
			want:        `tensor "a.weight": not supported: its quantization format is "svdquant_w4a4" (expected one of float8_`,
			unsupported: true},
		{config: `{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 32}`,
			want: "not supported: convrot_groupsize 32, expected a power of 4", unsupported: true},
		{config: `{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 1}`, want: "a power of 4", unsupported: true},
		{config: `{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": -4}`, want: "a power of 4", unsupported: true},
		{config: `{"format": "int8_tensorwise", "convrot": true, "hadamard_type": "sylvester"}`,
			want: `tensor "a.comfy_quant": not supported: a rotation with the key "hadamard_type"`, unsupported: true},
		{config: `{"format": "int8_tensorwise", "convrot": true}`, want: "convrot_groupsize 256 does not divide the 32 columns"},
		{config: `{"format": "mxfp8", "convrot": true}`, want: "not supported: the format mxfp8 with convrot", unsupported: true},
		{config: `{"format": 8}`, want: `"a.comfy_quant": line 1: key "format": expected string, found number`},
		{config: `{"format": "a", "format": "b"}`, want: `duplicate key`},
		{config: `{}`, want: "no key format"},
		{config: `{`, want: `tensor "a.comfy_quant": `},
		{want: `tensor "a.comfy_quant": `},
		{config: int8, metadata: `{"layers": []}`, want: "metadata _quantization_metadata: "},
		{config: int8, metadata: `{"layers": {"a": 1}}`, want: "metadata _quantization_metadata: "},
		{config: int8, change: as("a.comfy_quant", F32, 4), want: "expected a text as U8 with at most 65536 bytes, found F32 [4]"},
		{config: int8, change: as("a.comfy_quant", U8, 1<<17), want: "found U8 [131072]"},
		{config: int8, change: as("a.weight", U8, 4, 32),
			want: "expected a matrix of dtype I8 for the format int8_tensorwise, found U8 [4 32]"},
		{config: int8, change: as("a.weight", I8, 4, 32, 1), want: "expected a matrix"},
		{config: int8, change: without("a.weight_scale"), want: `cannot be dequantized without the tensor "a.weight_scale"`},
		{config: int8, change: as("a.weight_scale", F32, 3),
			want: `expected one number or 4, F32, F16 or BF16 in the tensor "a.weight_scale", found F32 [3]`},
		{config: int8, change: as("a.weight_scale", F32, 1, 4), want: "found F32 [1 4]"},
		{config: int8, change: as("a.weight_scale", I32, 4, 1), want: "found I32 [4 1]"},
		{config: `{"format": "convrot_w4a4"}`, want: "convrot_groupsize 256 does not divide the 64 columns"},
		{config: `{"format": "convrot_w4a4", "convrot_groupsize": 64, "convrot": true}`},
		{config: `{"format": "nvfp4"}`, change: as("a.weight", U8, 4, 32), want: `without the tensor "a.weight_scale_2"`},
	}
	for _, test := range tests {
		t.Run(test.config+test.metadata, func(t *testing.T) {
			ck, err := packedFile(t, test.config, test.metadata, test.change)
			if test.want == "" {
				if err != nil || ck.Tensors["a.weight"].Name != "" && ck.Tensors["a.weight"].Packing == nil {
					t.Errorf("%+v, %v", ck, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "x.safetensors: ") {
				t.Errorf("%v, expected %s", err, test.want)
			}
			if errors.Is(err, ErrUnsupported) != test.unsupported {
				t.Errorf("not supported: %v", err)
			}
		})
	}
}

// FuzzPacking opens and reads files with any text in comfy_quant and in the metadata.
func FuzzPacking(f *testing.F) {
	for _, config := range []string{
		`{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 4}`, `{"format": "float8_e4m3fn"}`,
		`{"format": "int8_tensorwise", "convrot_groupsize": 1e99}`, `{"format": "mxfp8"}`, `{"format": "nvfp4", "rotation": 1}`, "",
	} {
		f.Add(config, fmt.Sprintf(`{"layers": {"a": %s}}`, config), uint8(0), uint8(4), uint8(32), uint8(4))
	}
	f.Fuzz(func(t *testing.T, config, metadata string, dtype, rows, columns, scales uint8) {
		ck, err := packedFile(t, config, metadata, func(all map[string]*Array) {
			shape := []int{int(rows), int(columns)}
			d := []Dtype{I8, U8, BF16}[dtype%3]
			all["a.weight"] = &Array{Dtype: d, Shape: shape, Data: make([]byte, Tensor{Dtype: d, Shape: shape}.Bytes())}
			all["a.weight_scale"] = &Array{Dtype: F32, Shape: []int{int(scales)}, Data: make([]byte, 4*int(scales))}
			if dtype%2 == 1 {
				delete(all, "a.comfy_quant")
			}
		})
		if err != nil {
			if !strings.Contains(err.Error(), "x.safetensors") {
				t.Errorf("does not name the file: %v", err)
			}
			return
		}
		w := ck.Tensors["a.weight"]
		if got := numbers(t, ck, w, 100); len(got) != w.Len() {
			t.Errorf("%d numbers of %s", len(got), w.Type())
		}
	})
}
