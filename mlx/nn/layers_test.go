package nn_test

import (
	"fmt"
	"math"
	"math/cmplx"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

func param(p *nn.Param, values []float32, shape ...int) {
	p.Array = mlx.FromFloat32(values, shape...)
}

// groupNorm is torch.nn.GroupNorm on [n, h, w, c] in float64.
func groupNorm(x []float32, n, h, w, c, groups int, eps float64, weight, bias []float32) []float64 {
	out := make([]float64, len(x))
	width := c / groups
	for b := range n {
		for g := range groups {
			each := func(f func(i, channel int)) {
				for p := range h * w {
					for k := range width {
						f((b*h*w+p)*c+g*width+k, g*width+k)
					}
				}
			}
			count := float64(h * w * width)
			var mean, variance float64
			each(func(i, _ int) { mean += float64(x[i]) / count })
			each(func(i, _ int) { d := float64(x[i]) - mean; variance += d * d / count })
			scale := 1 / math.Sqrt(variance+eps)
			each(func(i, ch int) { out[i] = (float64(x[i])-mean)*scale*float64(weight[ch]) + float64(bias[ch]) })
		}
	}
	return out
}

func TestGroupNorm(t *testing.T) {
	for _, c := range []struct {
		name                  string
		n, h, w, c, groups    int
		eps                   float64
		mean, scale, accuracy float64
	}{
		{"small", 2, 5, 7, 12, 3, 1e-6, 0, 1, 1e-6},
		{"one channel per group", 1, 3, 4, 4, 4, 1e-5, 1, 1, 1e-6},
		{"one group", 1, 3, 4, 6, 1, 1e-5, 1, 1, 1e-6},
		{"epsilon", 1, 4, 4, 4, 2, 1e-2, 0, 0.05, 1e-6},
		// a group of 1 M elements: what one reduction in float32 gets wrong
		{"512x512", 1, 512, 512, 8, 2, 1e-6, 0.5, 1, 2e-6},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := mlxtest.Random(1, c.n*c.h*c.w*c.c)
			for i := range x {
				x[i] = x[i]*float32(c.scale) + float32(c.mean)
			}
			weight, bias := mlxtest.Random(2, c.c), mlxtest.Random(3, c.c)
			want := groupNorm(x, c.n, c.h, c.w, c.c, c.groups, c.eps, weight, bias)
			mlxtest.Do(t, func() {
				n := nn.NewGroupNorm(c.groups, c.c, c.eps)
				param(&n.Weight, weight, c.c)
				param(&n.Bias, bias, c.c)
				a := mlx.FromFloat32(x, c.n, c.h, c.w, c.c)
				near(t, "Forward", n.Forward(a).Floats(), want, c.accuracy)
				tokens := n.ForwardTokens(a.Reshape(c.n, c.h*c.w, c.c), c.h, c.w)
				mlxtest.Same(t, "shape", tokens.Shape(), []int{c.n, c.h * c.w, c.c})
				near(t, "ForwardTokens", tokens.Floats(), want, c.accuracy)
				half := n.Forward(a.AsType(mlx.BFloat16))
				if half.Dtype() != mlx.BFloat16 {
					t.Errorf("found %v for bfloat16", half)
				}
				near(t, "Forward of bfloat16", half.Floats(), want, 0.02)
			})
		})
	}
}

// Statistics do not depend on how many rows are looked at, and fit any rows.
func TestGroupNormInRows(t *testing.T) {
	mlxtest.Do(t, func() {
		n := nn.NewGroupNorm(3, 12, 1e-6)
		param(&n.Weight, mlxtest.Random(2, 12), 12)
		param(&n.Bias, mlxtest.Random(3, 12), 12)
		for _, dtype := range []mlx.Dtype{mlx.Float32, mlx.BFloat16} {
			x := mlxtest.Randn(1, 2, 7, 5, 12).AsType(dtype)
			want := n.Forward(x)
			for _, rows := range []int{1, 3, 7, 100} {
				s := n.Statistics(x, rows)
				mlxtest.Same(t, "shape", s.Mean.Shape(), []int{2, 1, 1, 12})
				got := mlx.Concat(1, n.Apply(x.Slice(1, 0, 4), s), n.Apply(x.Slice(1, 4, 7), s))
				near(t, fmt.Sprintf("%v, %d rows at a time", dtype, rows), got.Floats(), wide(want.Floats()), 1e-7)
			}
		}
	})
}

// A constant group has no variance: epsilon keeps it finite.
func TestGroupNormOfConstant(t *testing.T) {
	mlxtest.Do(t, func() {
		n := nn.NewGroupNorm(2, 4, 1e-6)
		param(&n.Weight, []float32{1, 1, 1, 1}, 4)
		param(&n.Bias, []float32{1, 2, 3, 4}, 4)
		y := n.Forward(mlx.Full(3, mlx.Float32, 1, 2, 1, 4))
		mlxtest.Same(t, "elements", y.Floats(), []float32{1, 2, 3, 4, 1, 2, 3, 4})
	})
}

func TestRMSNormAndLayerNorm(t *testing.T) {
	x, weight, bias := mlxtest.Random(1, 3*10), mlxtest.Random(2, 10), mlxtest.Random(3, 10)
	rms, layer, affine := make([]float64, 30), make([]float64, 30), make([]float64, 30)
	for r := range 3 {
		var squares, sum, variance float64
		for _, v := range x[r*10 : r*10+10] {
			squares += float64(v) * float64(v) / 10
			sum += float64(v) / 10
		}
		for _, v := range x[r*10 : r*10+10] {
			variance += (float64(v) - sum) * (float64(v) - sum) / 10
		}
		for i := range 10 {
			v := float64(x[r*10+i])
			rms[r*10+i] = v / math.Sqrt(squares+0.25) * float64(weight[i])
			layer[r*10+i] = (v - sum) / math.Sqrt(variance+0.25)
			affine[r*10+i] = layer[r*10+i]*float64(weight[i]) + float64(bias[i])
		}
	}
	mlxtest.Do(t, func() {
		a := mlx.FromFloat32(x, 1, 3, 10)
		n := nn.NewRMSNorm(10, 0.25) // so large that its place is seen
		param(&n.Weight, weight, 10)
		near(t, "RMSNorm", n.Forward(a).Floats(), rms, 1e-6)
		n.Weight.Array = n.Weight.AsType(mlx.BFloat16) // as stored
		if y := n.Forward(a); y.Dtype() != mlx.Float32 {
			t.Errorf("found %v for float32 with a bfloat16 weight", y)
		}
		near(t, "LayerNorm", nn.NewLayerNorm(0.25).Forward(a).Floats(), layer, 1e-6)
		l := nn.NewAffineLayerNorm(10, 0.25)
		param(&l.Weight, weight, 10)
		param(&l.Bias, bias, 10)
		near(t, "LayerNorm with weight and bias", l.Forward(a).Floats(), affine, 1e-6)
		l.Weight.Array, l.Bias.Array = l.Weight.AsType(mlx.BFloat16), l.Bias.AsType(mlx.BFloat16)
		if y := l.Forward(a); y.Dtype() != mlx.Float32 {
			t.Errorf("found %v for float32 with a bfloat16 weight and bias", y)
		}
	})
}

func TestDense(t *testing.T) {
	x, w, b := mlxtest.Random(1, 2*3*5), mlxtest.Random(2, 4*5), mlxtest.Random(3, 4)
	product := make([]float64, 2*3*4)
	for r := range 6 {
		for o := range 4 {
			for i := range 5 {
				product[r*4+o] += float64(x[r*5+i]) * float64(w[o*5+i])
			}
		}
	}
	biased := make([]float64, len(product))
	for i := range product {
		biased[i] = product[i] + float64(b[i%4])
	}
	mlxtest.Do(t, func() {
		a := mlx.FromFloat32(x, 2, 3, 5)
		d := nn.NewLinear(5, 4, true)
		param(&d.Weight, w, 4, 5)
		param(&d.Bias, b, 4)
		y := d.Forward(a)
		mlxtest.Same(t, "shape", y.Shape(), []int{2, 3, 4})
		near(t, "with bias", y.Floats(), biased, 1e-6)
		plain := nn.NewLinear(5, 4, false)
		param(&plain.Weight, w, 4, 5)
		near(t, "without bias", plain.Forward(a).Floats(), product, 1e-6)
		// weights stored small are cast to the input's dtype
		d.Weight.Array, d.Bias.Array = d.Weight.AsType(mlx.BFloat16), d.Bias.AsType(mlx.BFloat16)
		y = d.Forward(a)
		if y.Dtype() != mlx.Float32 || d.Weight.Dtype() != mlx.BFloat16 {
			t.Errorf("found %v of a %v weight", y, d.Weight.Dtype())
		}
		near(t, "bfloat16 weight", y.Floats(), biased, 0.01)
		if y := d.Forward(a.AsType(mlx.BFloat16)); y.Dtype() != mlx.BFloat16 {
			t.Errorf("found %v for a bfloat16 input", y)
		}
	})
}

// three is an adapter that triples what the weight makes, and adds the first inputs.
type three struct{}

func (three) Apply(x, y *mlx.Array) *mlx.Array { return y.Times(3).Add(x.Slice(2, 0, y.Dim(2))) }

// TestLinearWide checks products of float16 whose inputs and outputs are beyond its range,
// against float32.
func TestLinearWide(t *testing.T) {
	rows := []float64{1, 0, 1e-6, 3e4, 1e9} // the largest value of each row, about
	const in, out = 64, 32
	mlxtest.Do(t, func() {
		d := nn.NewLinear(in, out, true)
		d.Weight.Array = mlxtest.Randn(1, out, in).AsType(mlx.Float16)
		d.Bias.Array = mlxtest.Randn(2, out).AsType(mlx.Float16)
		x := mlxtest.Randn(3, 1, len(rows), in)
		scaled := make([]float32, len(rows))
		for i, row := range rows {
			scaled[i] = float32(row)
		}
		x = x.Mul(mlx.FromFloat32(scaled, 1, len(rows), 1))
		for _, adapters := range [][]nn.Adapter{nil, {three{}}} {
			d.Adapters = adapters
			want, got := d.Forward(x), d.ForwardWide(x, mlx.Float16)
			if got.Dtype() != mlx.Float32 {
				t.Errorf("found %v", got)
			}
			for i, row := range rows {
				one := func(y *mlx.Array) []float32 { return y.Slice(1, i, i+1).Floats() }
				largest := 0.0
				for j, w := range one(want) {
					largest = max(largest, math.Abs(float64(w)))
					if e := math.Abs(float64(one(got)[j]) - float64(w)); !(e <= 2e-3*math.Abs(float64(w))+2e-2*row+1e-5) {
						t.Errorf("row of %g, %d adapters: %v, expected %v", row, len(adapters), one(got)[j], w)
					}
				}
				if row > 1 && largest < row {
					t.Errorf("row of %g: the largest output is %g", row, largest)
				}
			}
			for _, dtype := range []mlx.Dtype{mlx.Float32, mlx.BFloat16} {
				mlxtest.Same(t, "in "+dtype.String(), d.ForwardWide(x, dtype).AsType(mlx.Float32).Floats(),
					d.Forward(x.AsType(dtype)).AsType(mlx.Float32).Floats())
			}
		}
	})
}

func TestEmbedding(t *testing.T) {
	mlxtest.Do(t, func() {
		e := nn.NewEmbedding(3, 2)
		param(&e.Weight, []float32{0, 1, 10, 11, 20, 21}, 3, 2)
		y := e.Forward([]int32{2, 0, 2}, mlx.BFloat16)
		if y.String() != "bfloat16[1 3 2]" {
			t.Errorf("found %v", y)
		}
		mlxtest.Same(t, "rows", y.Floats(), []float32{20, 21, 0, 1, 20, 21})
	})
	for _, id := range []int32{3, -1, 1 << 30} {
		e := mlxtest.Fail(t, func() {
			e := nn.NewEmbedding(3, 2)
			param(&e.Weight, make([]float32, 6), 3, 2)
			e.Forward([]int32{0, id}, mlx.Float32)
		})
		mlxtest.Contains(t, e.Error(), "row", "number 1 asked for", "[3 2]")
	}
}

func TestConv2d(t *testing.T) {
	const h, w, in, out, k = 6, 5, 4, 8, 3
	for _, c := range []struct{ stride, padding int }{{1, 1}, {2, 0}, {2, 1}} {
		x, weight, bias := mlxtest.Random(1, h*w*in), mlxtest.Random(2, out*in*k*k), mlxtest.Random(3, out)
		oh, ow := (h+2*c.padding-k)/c.stride+1, (w+2*c.padding-k)/c.stride+1
		want := make([]float64, oh*ow*out)
		for y := range oh {
			for xx := range ow {
				for o := range out {
					s := float64(bias[o])
					for i := range in {
						for dy := range k {
							for dx := range k {
								py, px := y*c.stride+dy-c.padding, xx*c.stride+dx-c.padding
								if py >= 0 && px >= 0 && py < h && px < w {
									s += float64(x[(py*w+px)*in+i]) * float64(weight[((o*in+i)*k+dy)*k+dx])
								}
							}
						}
					}
					want[(y*ow+xx)*out+o] = s
				}
			}
		}
		// from a checkpoint, so that the layout is torch's [out, in, k, k]
		ck := open(t, save(t,
			tensor{name: "weight", dtype: "F32", shape: []int{out, in, k, k}, values: weight},
			tensor{name: "bias", dtype: "F32", shape: []int{out}, values: bias}))
		mlxtest.Do(t, func() {
			conv := nn.NewConv2d(in, out, k, c.stride, c.padding)
			if err := nn.Load(conv, ck, nn.LoadOptions{Name: "conv", Dtype: mlx.Float32}); err != nil {
				t.Fatal(err)
			}
			y := conv.Forward(mlx.FromFloat32(x, 1, h, w, in))
			mlxtest.Same(t, "shape", y.Shape(), []int{1, oh, ow, out})
			near(t, "Conv2d", y.Floats(), want, 1e-6)
		})
	}
}

// A causal 3-D convolution of a single frame sees two frames of zeros before it.
func TestCausalConv3d(t *testing.T) {
	const h, w, in, out = 6, 5, 2, 3
	for _, c := range []struct{ kernel, padding int }{{3, 1}, {1, 0}} {
		k := c.kernel
		x, weight, bias := mlxtest.Random(1, h*w*in), mlxtest.Random(2, out*in*k*k*k), mlxtest.Random(3, out)
		ck := open(t, save(t, tensor{name: "weight", dtype: "F32", shape: []int{out, in, k, k, k}, values: weight},
			tensor{name: "bias", dtype: "F32", shape: []int{out}, values: bias}))
		mlxtest.Do(t, func() {
			conv := nn.NewCausalConv3d(in, out, k, c.padding)
			if p := nn.Parameters(conv)[0]; p.Name != "weight" || p.Transform() != "last,oihw" {
				t.Errorf("found %s %s, expected weight last,oihw", p.Name, p.Transform())
			}
			if err := nn.Load(conv, ck, nn.LoadOptions{Name: "conv", Dtype: mlx.Float32}); err != nil {
				t.Fatal(err)
			}
			mlxtest.Same(t, "shape of the weight", conv.Weight.Shape(), []int{out, k, k, in})
			if n := conv.Weight.Nbytes(); n != 4*out*k*k*in {
				t.Errorf("the weight has %d bytes", n)
			}
			y := conv.Forward(mlx.FromFloat32(x, 1, h, w, in))
			frames := mlx.FromFloat32(x, 1, 1, h, w, in).Pad([]int{0, k - 1, c.padding, c.padding, 0},
				[]int{0, 0, c.padding, c.padding, 0}, 0)
			whole := mlx.FromFloat32(weight, out, in, k, k, k).Transpose(0, 2, 3, 4, 1)
			want := frames.Conv3d(whole).Squeeze(1).Add(mlx.FromFloat32(bias, out))
			mlxtest.Same(t, "shape", y.Shape(), want.Shape())
			near(t, "NewCausalConv3d", y.Floats(), wide(want.Floats()), 1e-6)
		})
	}
}

func TestSequentialAndSiLU(t *testing.T) {
	mlxtest.Do(t, func() {
		d := nn.NewLinear(2, 2, false)
		param(&d.Weight, []float32{0, 2, 1, 0}, 2, 2)
		s := nn.NewSequential(d, &nn.SiLU{})
		silu := func(v float64) float64 { return v / (1 + math.Exp(-v)) }
		near(t, "Sequential", s.Forward(mlx.FromFloat32([]float32{3, -1}, 1, 2)).Floats(), []float64{silu(-2), silu(3)}, 1e-6)
	})
}

func TestHeadsAndAttention(t *testing.T) {
	mlxtest.Do(t, func() {
		x := mlx.Arange(0, 24, 1, mlx.Float32).Reshape(1, 3, 8)
		heads := nn.Heads(x, 2)
		mlxtest.Same(t, "Heads", heads.Shape(), []int{1, 2, 3, 4})
		mlxtest.Same(t, "second head", heads.Slice(1, 1, 2).Slice(2, 1, 2).Floats(), []float32{12, 13, 14, 15})
		mlxtest.Same(t, "SplitHeads", nn.SplitHeads(x, 2).Shape(), []int{1, 3, 2, 4})
		mlxtest.Same(t, "MergeHeads", nn.MergeHeads(heads).Floats(), x.Floats())

		q, k, v := mlxtest.Randn(1, 2, 4, 5, 16), mlxtest.Randn(2, 2, 4, 5, 16), mlxtest.Randn(3, 2, 4, 5, 16)
		near(t, "Attention", nn.Attention(q, k, v).Floats(), wide(mlx.Attention(q, k, v, 0.25, nil).Floats()), 1e-7)
		causal := nn.CausalAttention(q, k.Slice(1, 0, 2), v.Slice(1, 0, 2))
		// the first token sees only itself, the last all
		near(t, "first token, third head", causal.Slice(1, 2, 3).Slice(2, 0, 1).Floats(),
			wide(v.Slice(1, 1, 2).Slice(2, 0, 1).Floats()), 1e-6)
		full := mlx.Attention(q, k.Slice(1, 0, 2), v.Slice(1, 0, 2), 0.25, nil)
		near(t, "last token", causal.Slice(2, 4, 5).Floats(), wide(full.Slice(2, 4, 5).Floats()), 1e-6)
	})
}

func TestRope(t *testing.T) {
	positions := [][]int{{0, 0, 0}, {1, 0, 2}, {1, 5, 7}, {40, 11, 3}}
	dims := []int{4, 2, 6}
	const theta, b, h, d = 256.0, 2, 3, 12
	x := mlxtest.Random(1, b*h*len(positions)*d)
	// turn is e^(i·angle) for a position and a pair of features
	turn := func(p []int, pair int) complex128 {
		axis := 0
		for pair >= dims[axis]/2 {
			pair -= dims[axis] / 2
			axis++
		}
		angle := float32(float64(p[axis]) / math.Pow(theta, 2*float64(pair)/float64(dims[axis])))
		return cmplx.Rect(1, float64(angle))
	}
	expected := func(first, second func(pair int) int) []float64 {
		out := make([]float64, len(x))
		for row := range b * h * len(positions) {
			p := positions[row%len(positions)]
			for pair := range d / 2 {
				i, j := row*d+first(pair), row*d+second(pair)
				z := complex(float64(x[i]), float64(x[j])) * turn(p, pair)
				out[i], out[j] = real(z), imag(z)
			}
		}
		return out
	}
	interleaved := expected(func(i int) int { return 2 * i }, func(i int) int { return 2*i + 1 })
	halves := expected(func(i int) int { return i }, func(i int) int { return i + d/2 })
	mlxtest.Do(t, func() {
		a := mlx.FromFloat32(x, b, h, len(positions), d)
		rope := nn.NewRope(positions, dims, theta)
		mlxtest.Same(t, "table", rope.Cos.Shape(), []int{4, 6})
		near(t, "Interleaved", rope.Interleaved(a).Floats(), interleaved, 1e-6)
		near(t, "HalfSplit", rope.HalfSplit(a).Floats(), halves, 1e-6)
		joined := nn.NewRope(positions[:1], dims, theta).Concat(nn.NewRope(positions[1:], dims, theta))
		near(t, "Concat", joined.Interleaved(a).Floats(), interleaved, 1e-6)
		half := rope.Interleaved(a.AsType(mlx.BFloat16))
		if half.Dtype() != mlx.BFloat16 {
			t.Errorf("found %v for bfloat16", half)
		}
		near(t, "bfloat16", half.Floats(), interleaved, 0.02)
	})
}

// The angles of a FluxRope are not rounded, which shows where they are large.
func TestFluxRope(t *testing.T) {
	mlxtest.Do(t, func() {
		rope := nn.NewFluxRope([][]int{{4001}}, []int{6}, 2000)
		var cos, sin []float64
		for i := range 3 {
			angle := 4001 * math.Pow(2000, -float64(i)/3)
			cos, sin = append(cos, math.Cos(angle)), append(sin, math.Sin(angle))
		}
		near(t, "cos", rope.Cos.Floats(), cos, 1e-7)
		near(t, "sin", rope.Sin.Floats(), sin, 1e-7)
	})
}

// Values of diffusers' QwenEmbedRope, which computes in float32: at position 3001
// the last bits of the frequencies show. A negative position turns backwards.
func TestQwenImageRope(t *testing.T) {
	mlxtest.Do(t, func() {
		rope := nn.NewQwenImageRope([][]int{{3001, 3001, -3001}}, []int{16, 56, 56}, 10000)
		pick := func(x *mlx.Array) (out []float32) {
			values := x.Floats()
			for _, i := range []int{0, 3, 7, 8, 9, 13, 20, 35, 36, 50, 63} {
				out = append(out, values[i])
			}
			return out
		}
		near(t, "cos", pick(rope.Cos), []float64{-0.71160537, 0.794764936, 0.582496524, -0.71160537, -0.0682848394, 0.219634503,
			0.178270936, 0.914313138, -0.71160537, 0.164124116, 0.914313138}, 2e-7)
		near(t, "sin", pick(rope.Sin), []float64{-0.702579439, 0.606917381, 0.81283319, -0.702579439, -0.997665882, 0.975582242,
			0.983981431, 0.405007958, 0.702579439, 0.986439705, -0.405007958}, 2e-7)
	})
}

// Values of diffusers' get_timestep_embedding with scale=1000. In those at 1 and
// at 129 it shows which product is rounded.
func TestScaledTimestepEmbedding(t *testing.T) {
	mlxtest.Do(t, func() {
		e := nn.ScaledTimestepEmbedding(0.7373, 1000, 256).Floats()
		var found []float32
		for _, i := range []int{0, 1, 2, 3, 12, 40, 127, 128, 129, 130, 140, 191, 234} {
			found = append(found, e[i])
		}
		near(t, "of 256", found, []float64{-0.561759055, 0.32146579, -0.743735433, -0.926276147, -0.994920671, -0.813463569,
			0.996862888, 0.827300906, 0.94692117, -0.668474078, 0.100662328, 0.99761349, 0.351376683}, 2e-7)
	})
}

// Values of diffusers' get_timestep_embedding, which computes in float32: at
// t = 1000 the last bits of the frequencies show.
func TestTimestepEmbedding(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, c := range []struct {
			t    float32
			want []float64
		}{
			{0, []float64{1, 1, 1, 1, 0, 0, 0, 0}},
			{37.5, []float64{0.98024267, -0.820559502, 0.9305076, 0.999296963, -0.197798803, -0.571561098, 0.366272539, 0.0374912098}},
			{999, []float64{0.999649823, 0.807455063, -0.844469786, 0.541143537, -0.0264607519, -0.589929104, -0.535603166, 0.840930223}},
		} {
			e := nn.TimestepEmbedding(c.t, 8)
			if e.String() != "float32[1 8]" {
				t.Errorf("found %v", e)
			}
			near(t, "embedding", e.Floats(), c.want, 2e-7)
		}
		e := nn.TimestepEmbedding(1000, 256).Floats()
		var found []float32
		for _, i := range []int{0, 1, 2, 12, 63, 106, 127, 128, 129, 130, 140, 191, 234, 255} {
			found = append(found, e[i])
		}
		near(t, "of 256", found, []float64{0.562379062, 0.789626658, 0.439927876, 0.749766529, -0.246917248, 0.883755982, 0.994231641,
			0.826879561, 0.613587618, -0.898033082, 0.661702454, -0.969036579, 0.467948079, 0.107254058}, 2e-7)
	})
}
