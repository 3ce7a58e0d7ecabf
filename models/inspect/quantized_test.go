package inspect_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/inspect"
)

// A packed matrix is how a matrix was quantized, and its error as MLX has it.
type packed struct {
	mlx.Quantization
	relative float64
}

// TestCompareQuantized compares quantized models with what they were made from: the
// errors are those of what MLX unpacks.
func TestCompareQuantized(t *testing.T) {
	for _, model := range []string{"zimage-ordinary", "flux1-dev-small", "flux2-klein", "qwen-image-ordinary"} {
		dir := filepath.Join("..", "testdata", model, "model")
		for _, q := range []mlx.Quantization{{Mode: "affine", Bits: 4, Group: 32}, {Mode: "affine", Bits: 3, Group: 64},
			{Mode: "mxfp4", Bits: 4, Group: 32}} {
			t.Run(fmt.Sprintf("%s %s", model, component.QuantizationName(q)), func(t *testing.T) {
				target := t.TempDir()
				want := quantize(t, dir, target, q)
				if len(want) == 0 {
					t.Fatal("nothing was quantized")
				}
				c, err := inspect.Compare(t.Context(), openWeights(t, target), openWeights(t, dir), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, part := range c.Components {
					if part.OnlyA != nil || part.OnlyB != nil {
						t.Errorf("%s: %q and %q have no partner", part.Name, part.OnlyA, part.OnlyB)
					}
					for _, d := range part.Tensors {
						matrix, ok := want[part.Name+" "+d.Name]
						delete(want, part.Name+" "+d.Name)
						switch {
						case !ok && !d.Within(0): // it stayed as it is
							t.Errorf("%s %s: %+v", part.Name, d.Name, d)
						case ok && (d.Mismatch != "" || math.Abs(float64(d.Relative)-matrix.relative) > 1e-3*matrix.relative):
							t.Errorf("%s %s: %+v, expected an error of %g", part.Name, d.Name, d, matrix.relative)
						case ok && d.DtypeA != matrix.Mode && d.DtypeA != fmt.Sprintf("%d bits in groups of %d", matrix.Bits, matrix.Group):
							t.Errorf("%s %s: %s, expected %+v", part.Name, d.Name, d.DtypeA, matrix.Quantization)
						}
					}
				}
				for name := range want {
					t.Errorf("%s was not compared", name)
				}
			})
		}
	}
}

// quantize writes a model with its layers quantized, and returns how each of them
// is, by its component and name.
func quantize(t *testing.T, dir, target string, q mlx.Quantization) map[string]packed {
	t.Helper()
	if err := os.CopyFS(target, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	fsys := os.DirFS(dir)
	made := map[string]packed{}
	for _, c := range modeltest.Components(t, fsys) {
		ck, err := c.Open(fsys)
		if err != nil {
			t.Fatal(err)
		}
		found, mismatch := c.Match(ck)
		ck.Close()
		if mismatch != nil {
			t.Fatal(mismatch)
		}
		tensors := modeltest.Read(t, filepath.Join(dir, c.Dir))
		quantizer := c.LayerQuantizer(&q)
		for i, p := range nn.Parameters(c.Model) {
			name := found[i].Name
			if own := quantizer(p); own != nil && strings.HasSuffix(name, ".weight") {
				made[c.Dir+" "+name] = packed{*own, pack(t, tensors, name, *own)}
			}
		}
		old, err := filepath.Glob(filepath.Join(target, c.Dir, "*.safetensors*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		modeltest.Write(t, filepath.Join(target, c.Dir, "model.safetensors"), nil, map[string]map[string]*checkpoint.Array{"": tensors})
	}
	return made
}

// pack puts a quantized matrix in the place of a plain one, and returns its error.
func pack(t *testing.T, tensors map[string]*checkpoint.Array, name string, q mlx.Quantization) float64 {
	t.Helper()
	values, shape := tensors[name].Float32s(), tensors[name].Shape
	var diff, all float64
	mlxtest.Do(t, func() {
		matrix := mlx.FromFloat32(values, shape...).Quantize(q)
		for i, v := range matrix.Dequantize(mlx.Float32).Floats() {
			d := float64(v) - float64(values[i])
			diff, all = diff+d*d, all+float64(values[i])*float64(values[i])
		}
		for i, a := range matrix.Arrays() {
			dtype := checkpoint.U32
			switch {
			case i > 0 && q.Mode == "affine":
				dtype = checkpoint.F32
			case i > 0:
				dtype = checkpoint.U8
			}
			key := strings.TrimSuffix(name, "weight") + []string{"weight", "scales", "biases"}[i]
			tensors[key] = &checkpoint.Array{Name: key, Dtype: dtype, Shape: a.Shape(), Data: slices.Clone(a.Bytes())}
		}
	})
	return math.Sqrt(diff / all)
}
