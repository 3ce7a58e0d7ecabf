package mlx

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// A kernelCase computes something with a kernel in a dtype, and the same by MLX's operations in float32.
type kernelCase struct {
	name    string
	compute func(in *inputs) (found, expected []*Array)
}

// inputs makes random arrays of a dtype.
type inputs struct {
	dtype Dtype
	seed  uint64
}

func (in *inputs) normal(shape ...int) *Array {
	in.seed++
	return Normal(Key(in.seed), Float32, shape...).AsType(in.dtype)
}

// wide returns x in float32.
func wide(x *Array) *Array {
	if x == nil {
		return nil
	}
	return x.AsType(Float32)
}

func wideColumns(c Columns) Columns { return Columns{wide(c.X), c.From, c.Size} }

func (q QK) wide() QK {
	return QK{wideColumns(q.Q), wideColumns(q.K), wideColumns(q.V), wide(q.NormQ), wide(q.NormK), q.Eps}
}

func (n Norm) wide() Norm {
	return Norm{n.Center, wide(n.Weight), n.Eps, wide(n.Scale), wide(n.Shift)}
}

func (g GroupNorm) wide() GroupNorm {
	return GroupNorm{g.Groups, g.Eps, wide(g.Weight), wide(g.Bias), wide(g.Before)}
}

// kernelCases has every variant of the kernels: sizes that are no multiple of anything but a pack, one
// row, one pixel, a block that is not full, and more blocks than a GPU runs at once.
func kernelCases() (cases []kernelCase) {
	add := func(compute func(in *inputs) (found, expected []*Array), format string, args ...any) {
		cases = append(cases, kernelCase{fmt.Sprintf(format, args...), compute})
	}
	for i, c := range []struct{ batch, text, image, heads, keys, dim int }{
		{1, 0, 1, 1, 1, 64}, {2, 3, 5, 3, 3, 64}, {1, 2, 1, 5, 5, 128}, {1, 0, 3, 6, 2, 128}, {2, 0, 2, 2, 1, 256}, {1, 5, 4, 1, 1, 64},
		{1, 1, 2, 11, 11, 256}, {1, 0, 1, 6, 2, 128}, {1, 0, 3, 2, 1, 64}, {2, 0, 3, 3, 3, 256}, {1, 0, 1, 4, 4, 128},
	} {
		plain := i > 8 // as language models are from 7 on, also without norms
		add(func(in *inputs) (found, expected []*Array) {
			stream := func(tokens int, eps float32) QK {
				if tokens == 0 {
					return QK{}
				}
				width, keys := c.heads*c.dim, c.keys*c.dim
				if plain {
					x := in.normal(c.batch, tokens, width+keys)
					return QK{Q: Columns{x, 0, width}, K: Columns{x, width, keys}}
				}
				if i%2 == 0 { // in one array, next to each other
					x := in.normal(c.batch, tokens, 16+width+2*keys)
					q, k, v := Columns{x, 16, width}, Columns{x, 16 + width, keys}, Columns{x, 16 + width + keys, keys}
					return QK{q, k, v, in.normal(c.dim), in.normal(c.dim), eps}
				}
				x, y := in.normal(c.batch, tokens, width+8), in.normal(c.batch, tokens, keys)
				return QK{Columns{x, 8, width}, Columns{y, 0, keys}, Columns{}, in.normal(c.dim), in.normal(c.dim), eps}
			}
			text, image := stream(c.text, 1e-5), stream(c.image, 1e-6)
			in.seed++
			angles := Normal(Key(in.seed), Float32, c.text+c.image, c.dim/2)
			layouts := []RopeLayout{RopePairs, RopeAcross}
			if i > 6 {
				layouts = []RopeLayout{RopeHalves}
			}
			for _, layout := range layouts {
				rope := RopeTable{angles.Cos(), angles.Sin(), layout}
				q, k := NormRope(text, image, c.heads, rope)
				wantQ, wantK := normRopeGraph(text.wide(), image.wide(), rope)
				found, expected = append(found, q, k), append(expected, wantQ, wantK)
				if image.V.X != nil {
					q, kv := NormRopeKV(text, image, c.heads, rope)
					values := joinValues(text.wide(), image.wide(), c.keys)
					found, expected = append(found, q, kv), append(expected, wantQ, Concat(2, wantK, values))
				}
			}
			return found, expected
		}, "norm_rope %v", c)
	}
	for i, c := range []struct{ batch, tokens, packs int }{
		{1, 1, 2}, {2, 3, 9}, {1, 7, 37}, {3, 1, 129}, {1, 2, 1027}, {1, 1, 3073}, {2, 5, 31}, {1, 1, 256}, {1, 30, 3}, {2, 2, 33},
		{1, 3, 32}, {3, 3, 5},
	} {
		add(func(in *inputs) ([]*Array, []*Array) {
			return modulatedNormCase(in, i, c.batch, c.tokens, c.packs*pack(in.dtype))
		},
			"modulated_norm %d %v", i, c)
	}
	for i, c := range []struct{ batch, tokens, packs int }{{1, 1, 2}, {2, 3, 5}, {3, 50, 7}} {
		add(func(in *inputs) (found, expected []*Array) {
			width := c.packs * pack(in.dtype)
			a, b, gate := in.normal(c.batch, c.tokens, width), in.normal(c.batch, c.tokens, width), in.normal(1+i%2*(c.batch-1), 1, width)
			return []*Array{GatedSum(a, gate, b)}, []*Array{wide(a).Add(wide(gate).Mul(wide(b)))}
		}, "gated_sum %v", c)
	}
	for i, c := range []struct{ rows, first, packs int }{{1, 0, 2}, {3, 0, 7}, {7, 3, 5}, {90, 1, 3}} {
		add(func(in *inputs) (found, expected []*Array) {
			v := pack(in.dtype)
			x, y := in.normal(1, c.rows, (2*c.packs+1)*v).Times(3), in.normal(1, c.rows, (c.packs+2)*v)
			var first *Array
			if c.first > 0 {
				first = in.normal(1, c.rows, 2*c.first*v)
			}
			a, b := Columns{x, v, c.packs * v}, Columns{x, (c.packs + 1) * v, c.packs * v}
			if i%2 == 1 {
				b = Columns{y, 2 * v, c.packs * v}
			}
			all, wideA, wideB, wideAll := AllColumns(y), wideColumns(a), wideColumns(b), AllColumns(wide(y))
			return []*Array{SwiGLU(first, a, b), ConcatGELU(first, a), WideSiLU(y), GEGLU(a, b), GEGLU(all, Columns{})}, []*Array{
				activationGraph(wide(first), silu, wideA, wideB), activationGraph(wide(first), geluTanh, wideA, Columns{}),
				activationGraph(nil, silu, wideAll, Columns{}), activationGraph(nil, gelu, wideA, wideB),
				activationGraph(nil, gelu, wideAll, Columns{})}
		}, "activation %v", c)
	}
	for i, c := range []struct{ n, h, w, packs, groups int }{
		{1, 1, 1, 2, 1}, {2, 19, 17, 3, 3}, {1, 3, 43, 16, 4}, {1, 5, 7, 256, 2}, {2, 1, 129, 5, 4}, {1, 40, 41, 2, 2},
	} {
		add(func(in *inputs) (found, expected []*Array) {
			width := c.packs * pack(in.dtype)
			x := in.normal(c.n, c.h, c.w, width).Plus(2)
			g := GroupNorm{Groups: c.groups, Eps: 1e-5, Weight: in.normal(width), Bias: in.normal(width)}
			if i%2 == 1 {
				g.Before = in.normal(width)
			}
			if !g.Usable(x) {
				return nil, nil
			}
			return []*Array{g.Factors(x).Apply(x, i%3 == 1)}, []*Array{g.wide().graph(wide(x), i%3 == 1)}
		}, "group norm %v", c)
	}
	for _, c := range []struct{ rows, packs int }{{1, 2}, {3, 7}, {257, 3}} {
		add(func(in *inputs) (found, expected []*Array) {
			width := c.packs * pack(in.dtype)
			x, bias, residual := in.normal(c.rows, width), in.normal(width), in.normal(c.rows, width)
			slope := in.normal(width)
			sum := wide(x).Add(wide(bias))
			found = []*Array{AddBias(x, bias, nil), AddBias(x, bias, residual), AddBiasLeaky(x, bias, slope)}
			expected = []*Array{sum, sum.Add(wide(residual)), sum.LeakyReLU(wide(slope))}
			parts := []Columns{AllColumns(x)}
			for i := range 4 { // columns of wider arrays
				y := in.normal(c.rows, width+i*pack(in.dtype))
				parts, sum = append(parts, Columns{y, i * pack(in.dtype), width}), sum.Add(wide(y).Slice(1, i*pack(in.dtype), y.Dim(1)))
				found = append(found, SumColumns(parts, bias, residual, nil), SumColumns(parts, bias, nil, slope))
				expected = append(expected, sum.Add(wide(residual)), sum.LeakyReLU(wide(slope)))
			}
			return found, expected
		}, "bias_sum %v", c)
	}
	for _, c := range []struct{ n, h, w, packs int }{{1, 1, 1, 2}, {2, 3, 5, 3}, {1, 23, 7, 5}} {
		add(func(in *inputs) (found, expected []*Array) {
			width := c.packs * pack(in.dtype)
			x := in.normal(c.n, c.h, c.w, width)
			twice := wide(x).Reshape(c.n, c.h, 1, c.w, 1, width).BroadcastTo(c.n, c.h, 2, c.w, 2, width)
			return []*Array{Upsample(x)}, []*Array{twice.Reshape(c.n, 2*c.h, 2*c.w, width)}
		}, "upsample %v", c)
	}
	for _, c := range []struct{ rows, columns, bits, group int }{{1, 256, 4, 32}, {3, 1152, 4, 128}, {5, 320, 8, 64}, {130, 64, 8, 32}} {
		add(func(in *inputs) (found, expected []*Array) {
			q := in.normal(c.rows, c.columns).Quantize(Quantization{Mode: "affine", Bits: c.bits, Group: c.group})
			return []*Array{q.Dequantize(in.dtype)}, []*Array{q.dequantizeGraph(Float32)}
		}, "dequantize %v", c)
	}
	for i, c := range []struct{ batch, heads, group, dim, capacity, before, recent int }{
		{1, 1, 1, 32, 1, 1, 0}, {2, 1, 3, 64, 7, 4, 63}, {1, 2, 1, 128, 300, 280, 9}, {1, 1, 2, 256, 40, 37, 2},
	} {
		add(func(in *inputs) ([]*Array, []*Array) {
			rows := func(n int) *Array { return in.normal(c.batch, c.heads, n, c.dim) }
			q, k, v := in.normal(c.batch, c.heads*c.group, 1, c.dim), rows(1), rows(1)
			tail := in.normal(2, c.batch, c.heads, TailTokens, c.dim)
			past := TokenCache{rows(c.capacity), rows(c.capacity), tail, NewPositions(c.before).Slice(0, c.recent, c.recent+1)}
			exact := TokenCache{wide(past.Keys), wide(past.Values), wide(tail), past.Position}
			y, next := past.Attend(q, k, v)
			wantY, wantTail := exact.graph(wide(q), wide(k), wide(v), float32(1/math.Sqrt(float64(c.dim))))
			heads := c.heads * c.group
			all, angles := in.normal(c.batch, 1, (heads+2*c.heads)*c.dim), Normal(Key(99), Float32, 1, c.dim/2)
			token := QK{Q: Columns{all, 0, heads * c.dim}, K: Columns{all, heads * c.dim, c.heads * c.dim},
				V: Columns{all, (heads + c.heads) * c.dim, c.heads * c.dim}, Eps: 1e-6}
			if i%2 == 0 {
				token.NormQ, token.NormK = in.normal(c.dim), in.normal(c.dim)
			}
			rope := RopeTable{angles.Cos(), angles.Sin(), RopeHalves}
			projected, after := past.AttendProjected(token, heads, rope)
			round := func(x *Array) *Array { return wide(x.AsType(in.dtype)) } // as the kernel does before attention
			wantProjected, wantAfter := exact.projectedGraph(token.wide(), rope, round)
			return []*Array{y, next, projected, after}, []*Array{wantY, wantTail, wantProjected, wantAfter}
		}, "token_attention %v", c)
	}
	for i, c := range []struct{ packs, outputs int }{{2, 9}, {65, 8}, {130, 11}, {257, 17}, {645, 9}} {
		add(func(in *inputs) (found, expected []*Array) {
			width := c.packs * pack(in.dtype)
			x, more := in.normal(1, 1, width), in.normal(1, 1, width)
			norm := &Norm{Weight: in.normal(width), Eps: 1e-6}
			for j, p := range []RowProduct{{Norm: norm, Gated: true}, {Norm: norm, Bias: in.normal(c.outputs)}, {}, {Gated: true}} {
				rows := c.outputs
				if p.Gated {
					rows *= 2
				}
				p.Weight = in.normal(rows, width).Times(1 / math.Sqrt(float64(width)))
				after := more
				if (i+j)%2 == 0 || p.Norm == nil {
					after = nil
				}
				sum, y := p.Apply(x, after)
				exact := RowProduct{wide(p.Weight), wide(p.Bias), nil, p.Gated}
				wantSum, input := wide(x), wide(x)
				if after != nil {
					wantSum, input = wide(x).Add(wide(after)), wide(sum)
				}
				if p.Norm != nil {
					input = p.Norm.wide().graph(input)
				}
				_, want := exact.graph(input, nil)
				found, expected = append(found, sum, y), append(expected, wantSum, want)
			}
			return found, expected
		}, "row_product %v", c)
	}
	return append(cases, kernelChecks()...)
}

// kernelChecks are the checks at the kernels' first use, which are in float32.
func kernelChecks() (cases []kernelCase) {
	for _, k := range kernels {
		cases = append(cases, kernelCase{"check of " + k.name, func(*inputs) (found, expected []*Array) { return k.check() }})
	}
	return cases
}

// modulatedNormCase is a norm with the weights, modulations and sums of a number.
func modulatedNormCase(in *inputs, i, batch, tokens, width int) (found, expected []*Array) {
	x, residual, gate := in.normal(batch, tokens, width), in.normal(batch, tokens, width), in.normal(1+i%2*(batch-1), 1, width)
	n := Norm{Center: i%2 == 0, Eps: 1e-6}
	if i%3 != 0 {
		n.Weight = in.normal(width)
	}
	if i%4 < 2 {
		n.Scale = in.normal(1+i/4%2*(batch-1), 1, width)
	}
	if i%5 < 3 {
		n.Shift = in.normal(1+i/2%2*(batch-1), 1, width)
	}
	switch i % 3 {
	case 0:
		return []*Array{n.Apply(x)}, []*Array{n.wide().graph(wide(x))}
	case 1:
		return []*Array{n.ApplyThenAdd(residual, gate, x)}, []*Array{wide(residual).Add(wide(gate).Mul(n.wide().graph(wide(x))))}
	}
	sum, y := n.AddThenApply(residual, gate, x)
	plain, z := n.AddThenApply(residual, nil, x)
	return []*Array{sum, y, plain, z}, []*Array{wide(residual).Add(wide(gate).Mul(wide(x))), n.wide().graph(wide(sum)),
		wide(residual).Add(wide(x)), n.wide().graph(wide(plain))}
}

// compareRounded compares arrays with ones in float32, of which they may differ as in [kernel.compare]
// and by one rounding to their dtype.
func compareRounded(found, expected []*Array) error {
	if len(found) == 0 {
		return fmt.Errorf("no arrays")
	}
	for i := range expected {
		rounding := map[Dtype]float64{Float16: 1. / 2048, BFloat16: 1. / 256}[found[i].Dtype()]
		f, e := found[i].Floats(), expected[i].Floats()
		if !slices.Equal(found[i].Shape(), expected[i].Shape()) {
			return fmt.Errorf("shape %v, expected %v", found[i].Shape(), expected[i].Shape())
		}
		largest := 0.0
		for _, x := range e {
			largest = max(largest, math.Abs(float64(x)))
		}
		for j := range e {
			if d := math.Abs(float64(f[j]) - float64(e[j])); !(d <= 1e-5*largest+rounding*math.Abs(float64(e[j]))) {
				return fmt.Errorf("%w: element %d of array %d is %v, expected %v (the largest is %.3g)",
					errKernelDiffers, j, i, f[j], e[j], largest)
			}
		}
	}
	return nil
}

// runCase computes a case in a dtype.
func runCase(c kernelCase, dtype Dtype) (err error) {
	defer catch(&err)
	WithScope(func() {
		found, expected := c.compute(&inputs{dtype: dtype})
		err = compareRounded(found, expected)
	})
	return err
}

// kernelDtypes are the dtypes of kernels.
var kernelDtypes = []Dtype{Float32, Float16, BFloat16}

// withRunner runs f on the MLX thread with a runner of all kernels on the CPU, unchecked.
func withRunner(t *testing.T, r kernelRunner, f func()) {
	t.Helper()
	kernelRunners[BackendCPU] = r
	defer delete(kernelRunners, BackendCPU)
	err := Do(t.Context(), func() error {
		if err := Use(CPU); err != nil {
			return err
		}
		for _, k := range kernels {
			fresh := *k
			k.checked, k.failed = true, nil
			defer func() { *k = fresh }()
		}
		f()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
