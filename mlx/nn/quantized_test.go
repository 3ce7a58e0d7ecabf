package nn_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// layers are what can be quantized, and a norm, which cannot.
type layers struct {
	nn.Module
	Proj  *nn.Linear    `w:"proj"`
	Embed *nn.Embedding `w:"embed"`
	Norm  *nn.LayerNorm `w:"norm"`
}

const columns = 128

func newLayers() *layers {
	return &layers{Proj: nn.NewLinear(columns, 12, true), Embed: nn.NewEmbedding(12, columns), Norm: nn.NewAffineLayerNorm(columns, 1e-5)}
}

// plainLayers are tensors for them.
func plainLayers() []tensor {
	return []tensor{f32("proj.weight", 12, columns), f32("proj.bias", 12), f32("embed.weight", 12, columns),
		f32("norm.weight", columns), f32("norm.bias", columns)}
}

// everyMatrix quantizes what can be.
func everyMatrix(q mlx.Quantization) func(nn.Parameter) *mlx.Quantization {
	return func(p nn.Parameter) *mlx.Quantization {
		if p.Kind() == nn.OtherParam {
			return nil
		}
		return &q
	}
}

// stored are arrays as tensors of a file.
func stored(arrays map[string]*mlx.Array) (list []tensor) {
	dtypes := map[mlx.Dtype]string{mlx.Float32: "F32", mlx.BFloat16: "BF16", mlx.Uint32: "U32", mlx.Uint8: "U8"}
	for name, a := range arrays {
		list = append(list, tensor{name: name, dtype: dtypes[a.Dtype()], shape: a.Shape(), raw: a.Bytes()})
	}
	return list
}

// TestQuantize holds what is quantized on load, and what is loaded from files
// that hold the same, against each other and against plain products.
func TestQuantize(t *testing.T) {
	for _, q := range []mlx.Quantization{
		{Mode: "affine", Bits: 3, Group: 64}, {Mode: "affine", Bits: 4, Group: 32}, {Mode: "affine", Bits: 5, Group: 64},
		{Mode: "affine", Bits: 6, Group: 128}, {Mode: "affine", Bits: 8, Group: 64},
		{Mode: "mxfp4", Bits: 4, Group: 32}, {Mode: "mxfp8", Bits: 8, Group: 32}, {Mode: "nvfp4", Bits: 4, Group: 16},
	} {
		t.Run(fmt.Sprint(q), func(t *testing.T) {
			ck := open(t, save(t, plainLayers()...))
			mlxtest.Do(t, func() {
				m := newLayers()
				if err := nn.Load(m, ck, nn.LoadOptions{Name: "x", Dtype: mlx.Float32, Quantize: everyMatrix(q)}); err != nil {
					t.Fatal(err)
				}
				for _, p := range nn.Parameters(m) {
					if found := p.Quantization(); (p.Kind() == nn.OtherParam) != (found == nil) || found != nil && *found != q {
						t.Errorf("%s has quantization %v", p.Name, found)
					}
				}
				// what a layer makes is what its weights make when they are unpacked
				x := mlxtest.Randn(5, 3, columns)
				weight := m.Proj.Weight.As(mlx.Float32)
				near(t, "product", m.Proj.Forward(x).Floats(), wide(x.Matmul(weight.T()).Add(m.Proj.Bias.Array).Floats()), 1e-6)
				nn.Decodes(m)
				row := x.Slice(0, 1, 2)
				near(t, "row", m.Proj.Forward(row).Floats(), wide(row.Matmul(weight.T()).Add(m.Proj.Bias.Array).Floats()), 1e-6)
				rows := m.Embed.Weight.As(mlx.Float32).TakeRows([]int32{7, 2, 2})
				mlxtest.Same(t, "rows", m.Embed.Forward([]int32{7, 2, 2}, mlx.Float32).Floats(), rows.Floats())
				off := weight.Sub(mlx.FromFloat32(plainLayers()[0].values, 12, columns))
				if e := off.Square().Reshape(1, -1).Sum(1).Floats()[0]; e == 0 {
					t.Error("the weights were not quantized")
				}

				// and the same from a file
				arrays := map[string]*mlx.Array{}
				for _, p := range nn.Parameters(m) {
					arrays[p.Name] = p.Array
					for i, a := range p.Arrays()[1:] {
						arrays[strings.TrimSuffix(p.Name, ".weight")+[]string{".scales", ".biases"}[i]] = a
					}
				}
				again := newLayers()
				if err := nn.Load(again, open(t, save(t, stored(arrays)...)), nn.LoadOptions{Name: "x", Dtype: mlx.Float32}); err != nil {
					t.Fatal(err)
				}
				if found := again.Proj.Weight.Quantization(); found == nil || *found != q {
					t.Errorf("from a file it is %v, expected %v", found, q)
				}
				mlxtest.Same(t, "from a file", again.Proj.Forward(x).Floats(), m.Proj.Forward(x).Floats())
			})
		})
	}
}

// TestQuantizedMismatch checks what is said of a matrix that cannot be unpacked.
func TestQuantizedMismatch(t *testing.T) {
	packed := func() map[string]*mlx.Array {
		q := mlx.FromFloat32(plainLayers()[0].values, 12, columns).Quantize(mlx.Quantization{Mode: "affine", Bits: 4, Group: 32})
		return map[string]*mlx.Array{"weight": q.Packed, "scales": q.Scales, "biases": q.Biases}
	}
	for _, c := range []struct {
		name   string
		change func(map[string]*mlx.Array)
		want   string
	}{
		{"no scales", func(a map[string]*mlx.Array) { delete(a, "scales") }, "missing: scales, without which weight (U32 in "},
		{"no biases", func(a map[string]*mlx.Array) { delete(a, "biases") }, "missing: biases, without which weight (U32 in "},
		{"rows", func(a map[string]*mlx.Array) { a["weight"] = a["weight"].Slice(0, 0, 11) },
			"wrong shape: weight, expected [12 128] packed into numbers of 32 bits, found [11 16] in "},
		{"group", func(a map[string]*mlx.Array) {
			a["scales"] = a["scales"].Slice(1, 0, 2).Slice(1, 0, 1).BroadcastTo(12, 8)
		},
			"wrong shape: scales, expected one for every 32, 64 or 128 of [12 128], found [12 8] in "},
		{"bits", func(a map[string]*mlx.Array) { a["weight"] = mlx.Concat(1, a["weight"], a["weight"].Slice(1, 0, 12)) },
			"wrong shape: weight, expected [12 128] packed with 2, 3, 4, 5, 6 or 8 bits, found [12 28] in "},
		{"biases' shape", func(a map[string]*mlx.Array) { a["biases"] = a["biases"].Slice(1, 0, 2) },
			"wrong shape: biases, expected [12 4], as of scales, found [12 2] in "},
		{"biases' dtype", func(a map[string]*mlx.Array) { a["biases"] = a["biases"].AsType(mlx.BFloat16) },
			"wrong dtype: biases, expected F32, as of scales, found BF16 in "},
		{"scales' dtype", func(a map[string]*mlx.Array) { a["scales"] = a["scales"].AsType(mlx.Uint32) },
			"wrong dtype: scales, expected F32, F16, BF16 or U8, found U32 in "},
		{"format", func(a map[string]*mlx.Array) { a["scales"] = a["scales"].AsType(mlx.Uint8).Slice(1, 0, 1) },
			"wrong shape: scales, expected one for every 16 or 32 of [12 128], as mxfp4, mxfp8 and nvfp4 have, found [12 1] in "},
	} {
		t.Run(c.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				arrays := packed()
				c.change(arrays)
				dir := save(t, stored(arrays)...)
				err := nn.Load(nn.NewLinear(columns, 12, false), open(t, dir), nn.LoadOptions{Name: "x", Dtype: mlx.Float32})
				if err == nil {
					t.Fatal("it was loaded")
				}
				mlxtest.Contains(t, err.Error(), c.want+filepath.Join(dir, "model.safetensors"))
			})
		})
	}
}

// doubled is an adapter that adds what the weight makes once more.
type doubled struct{}

func (doubled) Apply(x, y *mlx.Array) *mlx.Array { return y.Add(y) }

// TestAdapt changes weights on load, before they are quantized, and beside them.
func TestAdapt(t *testing.T) {
	ck := open(t, save(t, plainLayers()...))
	load := func(o nn.LoadOptions) *layers {
		m := newLayers()
		o.Name, o.Dtype = "x", mlx.Float32
		if err := nn.Load(m, ck, o); err != nil {
			t.Fatal(err)
		}
		return m
	}
	double := func(p nn.Parameter, x *mlx.Array) *mlx.Array {
		if p.Name == "proj.weight" {
			return x.Add(x)
		}
		return x
	}
	mlxtest.Do(t, func() {
		x := mlxtest.Randn(5, 3, columns)
		q := everyMatrix(mlx.Quantization{Mode: "affine", Bits: 8, Group: 64})
		plain, baked := load(nn.LoadOptions{}), load(nn.LoadOptions{Adapt: double})
		packed := load(nn.LoadOptions{Adapt: double, Quantize: q})
		beside := load(nn.LoadOptions{})
		linears := nn.Linears(beside)
		if len(linears) != 1 || linears["proj"] != beside.Proj {
			t.Fatalf("found linear layers %v", linears)
		}
		linears["proj"].Adapters = append(linears["proj"].Adapters, doubled{})
		y := plain.Proj.Forward(x)
		want := wide(y.Add(y).Sub(plain.Proj.Bias.Array).Floats())
		near(t, "baked", baked.Proj.Forward(x).Floats(), want, 1e-6)
		near(t, "beside", beside.Proj.Forward(x).Floats(), want, 1e-6)
		near(t, "quantized", packed.Proj.Forward(x).Floats(), want, 1e-2)
		mlxtest.Same(t, "others", baked.Norm.Weight.Floats(), plain.Norm.Weight.Floats())
	})
}

// in returns a tensor with transforms.
func in(t *testing.T, tensor checkpoint.Tensor, forms ...checkpoint.Transform) checkpoint.Tensor {
	t.Helper()
	for _, f := range forms {
		var err error
		if tensor, err = tensor.Apply(f); err != nil {
			t.Fatal(err)
		}
	}
	return tensor
}

// TestForms loads tensors that are stored in other forms than diffusers'.
func TestForms(t *testing.T) {
	fused := f32("fused", 6, 4)
	ck := open(t, save(t, fused, f32("conv", 2, 3, 3, 4), f32("point", 4, 4, 1, 1)))
	view := &checkpoint.Checkpoint{Dir: ck.Dir, Files: ck.Files, Tensors: map[string]checkpoint.Tensor{
		"a.weight": in(t, ck.Tensors["fused"], checkpoint.Transform{Op: checkpoint.TransformRows, From: 0, To: 2}),
		"b.weight": in(t, ck.Tensors["fused"], checkpoint.Transform{Op: checkpoint.TransformRows, From: 2, To: 6},
			checkpoint.Transform{Op: checkpoint.TransformSwap}),
		"c.weight": in(t, ck.Tensors["conv"], checkpoint.Transform{Op: checkpoint.TransformChannelsFirst}),
		"d.weight": in(t, ck.Tensors["point"], checkpoint.Transform{Op: checkpoint.TransformSqueeze}),
	}}
	var m struct {
		A *nn.Linear `w:"a"`
		B *nn.Linear `w:"b"`
		C *nn.Conv2d `w:"c"`
		D *nn.Linear `w:"d"`
	}
	m.A, m.B, m.D = nn.NewLinear(4, 2, false), nn.NewLinear(4, 4, false), nn.NewLinear(4, 4, false)
	m.C = nn.NewConv2d(4, 2, 3, 1, 1)
	m.C.Bias = nn.Param{}
	mlxtest.Do(t, func() {
		if err := nn.Load(&m, view, nn.LoadOptions{Name: "x", Dtype: mlx.Float32}); err != nil {
			t.Fatal(err)
		}
		v := fused.values
		mlxtest.Same(t, "rows", m.A.Weight.Floats(), v[:8])
		mlxtest.Same(t, "swapped rows", m.B.Weight.Floats(), slices.Concat(v[16:24], v[8:16]))
		mlxtest.Same(t, "channels", m.C.Weight.Floats(), f32("conv", 2, 3, 3, 4).values) // which MLX has last too
		mlxtest.Same(t, "1x1", m.D.Weight.Floats(), f32("point", 4, 4, 1, 1).values)
	})
	view.Tensors["a.weight"] = in(t, ck.Tensors["fused"], checkpoint.Transform{Op: checkpoint.TransformRows, From: 0, To: 3})
	_, mismatch := nn.Match(&m, view, nn.LoadOptions{Name: "x"})
	if mismatch == nil {
		t.Fatal("rows of another number fit")
	}
	mlxtest.Contains(t, mismatch.Error(), "wrong shape: fused, expected [2 4], found [3 4] (stored as [6 4]) in ")
}

// TestFP8 loads 8-bit floats, with and without a factor.
func TestFP8(t *testing.T) {
	bytes := []byte{0x38, 0xb8, 0x7e, 0}
	ck := open(t, save(t,
		tensor{name: "a.scale_weight", dtype: "F32", shape: []int{}, values: []float32{10}},
		tensor{name: "a.weight", dtype: "F8_E4M3", shape: []int{2, 2}, raw: bytes},
		tensor{name: "b.weight", dtype: "F8_E4M3", shape: []int{2, 2}, raw: bytes}))
	var m struct {
		A *nn.Linear `w:"a"`
		B *nn.Linear `w:"b"`
	}
	m.A, m.B = nn.NewLinear(2, 2, false), nn.NewLinear(2, 2, false)
	mlxtest.Do(t, func() {
		if err := nn.Load(&m, ck, nn.LoadOptions{Name: "x", Dtype: mlx.Float32}); err != nil {
			t.Fatal(err)
		}
		mlxtest.Same(t, "with a factor", m.A.Weight.Floats(), []float32{10, -10, 4480, 0})
		mlxtest.Same(t, "without", m.B.Weight.Floats(), []float32{1, -1, 448, 0})
	})
}
