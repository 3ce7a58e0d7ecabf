package nn_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// openComfy opens a file with matrices of comfy-kitchen.
func openComfy(t *testing.T, name string) *checkpoint.Checkpoint {
	t.Helper()
	f, err := checkpoint.Open(os.DirFS("../../internal/checkpoint/testdata/comfy"), name)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.NewCheckpoint(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

// TestUnpack loads matrices that comfy-kitchen has quantized, and compares them with what it
// dequantizes them to, rounded to bfloat16.
func TestUnpack(t *testing.T) {
	packed, expected := openComfy(t, "quantized.safetensors"), openComfy(t, "expected.safetensors")
	for _, name := range []string{"tensor", "rows", "rotated", "small", "int4", "mxfp8", "nvfp4"} {
		w := packed.Tensors[name+".weight"]
		alone := func(ck *checkpoint.Checkpoint, rows ...checkpoint.Transform) *checkpoint.Checkpoint {
			part := in(t, ck.Tensors[name+".weight"], rows...)
			return &checkpoint.Checkpoint{Files: ck.Files, Tensors: map[string]checkpoint.Tensor{"a.weight": part}}
		}
		load := func(ck *checkpoint.Checkpoint, rows int, dtype mlx.Dtype) (values []float32, stored mlx.Dtype) {
			var m struct {
				A *nn.Linear `w:"a"`
			}
			m.A = nn.NewLinear(w.Shape[1], rows, false)
			mlxtest.Do(t, func() {
				if err := nn.Load(&m, ck, nn.LoadOptions{Name: "x", Dtype: dtype}); err != nil {
					mlx.Throw(err)
				}
				values, stored = m.A.Weight.As(mlx.Float32).Floats(), m.A.Weight.As(dtype).Dtype()
				nn.Free(&m)
			})
			return values, stored
		}
		want, _ := load(alone(expected), w.Shape[0], mlx.BFloat16)
		got, stored := load(alone(packed), w.Shape[0], mlx.BFloat16)
		if stored != mlx.BFloat16 {
			t.Errorf("%s: as %v", name, stored)
		}
		other := 0
		for i, v := range got {
			switch off := math.Abs(float64(v - want[i])); {
			case off > math.Abs(float64(want[i]))/120+1e-6: // more than the last bit of bfloat16
				t.Fatalf("%s: %g at %d, expected %g", name, v, i, want[i])
			case off > 1e-6:
				other++
			}
		}
		if other > len(got)/500 {
			t.Errorf("%s: %d of %d numbers are rounded differently", name, other, len(got))
		}
		t.Logf("%s: %d of %d numbers are rounded differently", name, other, len(got))

		rows, swap := checkpoint.Transform{Op: checkpoint.TransformRows, From: 1, To: 5}, checkpoint.Transform{Op: checkpoint.TransformSwap}
		part, _ := load(alone(packed, rows, swap), 4, mlx.Float32)
		n := w.Shape[1]
		mlxtest.Same(t, name, part, append(got[3*n:5*n:5*n], got[n:3*n]...))
	}
}

// TestUnpackMemory checks that few packed matrices are converted at once: each takes 8 times its size
// in the file.
func TestUnpackMemory(t *testing.T) {
	const side, n = 1024, 8
	const config = `{"format": "int8_tensorwise", "convrot": true}`
	var list []*checkpoint.Array
	var m struct {
		L []*nn.Linear `w:"l"`
	}
	for i := range n {
		name := fmt.Sprintf("l.%d.", i)
		list = append(list,
			&checkpoint.Array{Name: name + "weight", Dtype: checkpoint.I8, Shape: []int{side, side}, Data: make([]byte, side*side)},
			&checkpoint.Array{Name: name + "weight_scale", Dtype: checkpoint.F32, Shape: []int{}, Data: make([]byte, 4)},
			&checkpoint.Array{Name: name + "comfy_quant", Dtype: checkpoint.U8, Shape: []int{len(config)}, Data: []byte(config)})
		m.L = append(m.L, nn.NewLinear(side, side, false))
	}
	folder := t.TempDir()
	if err := checkpoint.WriteFile(filepath.Join(folder, "model.safetensors"), list, nil); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.OpenCheckpoint(os.DirFS(folder), ".")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	mlxtest.Do(t, func() {
		before := mlx.ActiveMemory()
		mlx.ResetPeakMemory()
		if err := nn.Load(&m, ck, nn.LoadOptions{Name: "x", Dtype: mlx.BFloat16, ReadAhead: n * side * side}); err != nil {
			mlx.Throw(err)
		}
		const result = 2 * n * side * side
		if peak := mlx.PeakMemory() - before; peak > result+3*9*side*side {
			t.Errorf("loading took %d MB, of which %d MB are the result", peak>>20, result>>20)
		}
		nn.Free(&m)
	})
}
