package mlx

import (
	"math"
	"slices"
	"strconv"
)

// Fused operations. On a GPU each is a custom kernel if the kernel works there, and elsewhere a
// graph of MLX's operations. A kernel computes in float32 and rounds once, at the end; the graph
// rounds to the arrays' dtype after every operation.

// kernels lists all custom kernels.
var kernels = []*kernel{
	normRopeKernel, modulatedNormKernel, gatedSumKernel, activationKernel, groupStatisticsKernel, groupFactorsKernel, groupApplyKernel,
	biasSumKernel, upsampleKernel, dequantizeKernel, tokenAttentionKernel, rowProductKernel,
}

// The kernels are named as their files. Their checks are set in fused_check.go, since they use the
// kernels.
var (
	normRopeKernel        = &kernel{name: "norm_rope"}
	modulatedNormKernel   = &kernel{name: "modulated_norm"}
	gatedSumKernel        = &kernel{name: "gated_sum"}
	activationKernel      = &kernel{name: "activation"}
	groupStatisticsKernel = &kernel{name: "group_statistics"}
	groupFactorsKernel    = &kernel{name: "group_factors"}
	groupApplyKernel      = &kernel{name: "group_apply"}
	biasSumKernel         = &kernel{name: "bias_sum"}
	upsampleKernel        = &kernel{name: "upsample"}
	dequantizeKernel      = &kernel{name: "dequantize"}
	tokenAttentionKernel  = &kernel{name: "token_attention"}
	rowProductKernel      = &kernel{name: "row_product"}
)

// blockThreads is the number of threads of a block where nothing asks for another.
const blockThreads = 256

// pack returns how many elements of a dtype a thread of a kernel reads at once, in 16 bytes.
func pack(d Dtype) int {
	if d == Float32 {
		return 4
	}
	return 8
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// A QK has the queries and keys of some tokens: heads of D consecutive columns each, and of the keys
// maybe fewer. V has as many columns of values, and is only for [NormRopeKV]. NormQ and NormK [D] and Eps
// are the weights of the norms of heads and what is added to the mean squares; without weights there are
// no norms.
type QK struct {
	Q, K, V      Columns
	NormQ, NormK *Array
	Eps          float32
}

// adjacent reports whether the keys are next to the queries.
func (s QK) adjacent() bool { return s.K.follows(s.Q) }

// A RopeTable has the cos and sin of rotary embeddings, float32 [L, D/2], and which features of a head of D
// they rotate.
type RopeTable struct {
	Cos, Sin *Array
	Layout   RopeLayout
}

// A RopeLayout is which features of a head are rotated with each other, and by which column of a table.
type RopeLayout int

const (
	RopePairs  RopeLayout = iota // 2i and 2i+1, by column i
	RopeHalves                   // i and i+D/2, by column i
	RopeAcross                   // i and i+D/2, each by its own column: i/2 and (i+D/2)/2
)

// Rotate rotates x [B, H, L, D], in float32.
func (t RopeTable) Rotate(x *Array) *Array {
	switch t.Layout {
	case RopePairs:
		return RotatePairs(x, t.Cos, t.Sin)
	case RopeHalves:
		return RotateHalves(x, t.Cos, t.Sin)
	}
	twice := func(x *Array) *Array { // each column
		s := append(x.Shape(), 2)
		return x.ExpandDims(-1).BroadcastTo(s...).Reshape(s[0], 2*s[1])
	}
	wide := x.AsType(Float32)
	halves := wide.Split(2, -1)
	across := Concat(-1, halves[1].Neg(), halves[0])
	return wide.Mul(twice(t.Cos)).Add(across.Mul(twice(t.Sin))).AsType(x.Dtype())
}

// NormRope returns queries [B, T+L, H, D] and keys [B, T+L, H/n, D] of the text and the image, in this
// order, each head divided by the root of its mean square times the weight, and rotated by the table.
// There may be no text: the zero QK.
func NormRope(text, image QK, h int, rope RopeTable) (q, k *Array) {
	keys := h * image.K.Size / image.Q.Size
	if image.adjacent() && (text.Q.X == nil || text.adjacent()) {
		if out := normRope(text, image, h+keys, h, 0, rope); out != nil {
			return out[0].Slice(2, 0, h), out[0].Slice(2, h, h+keys)
		}
	}
	onlyKeys := func(s QK) QK { return QK{Q: s.K, NormQ: s.NormK, NormK: s.NormK, Eps: s.Eps} }
	qs := normRope(text, image, h, h, 0, rope)
	ks := normRope(onlyKeys(text), onlyKeys(image), keys, keys, 0, rope)
	if qs == nil || ks == nil {
		return normRopeGraph(text, image, rope)
	}
	return qs[0], ks[0]
}

// NormRopeKV returns the queries of [NormRope], and in one array [B, T+L, 2·H/n, D] the keys and the values.
func NormRopeKV(text, image QK, h int, rope RopeTable) (q, kv *Array) {
	keys := h * image.K.Size / image.Q.Size
	adjacent := func(s QK) bool { return s.adjacent() && s.V.follows(s.K) }
	if adjacent(image) && (text.Q.X == nil || adjacent(text)) {
		if out := normRope(text, image, h+2*keys, h, h+keys, rope); out != nil {
			return out[0], out[1]
		}
	}
	q, k := NormRope(text, image, h, rope)
	return q, Concat(2, k, joinValues(text, image, keys))
}

func joinValues(text, image QK, heads int) *Array {
	split := func(c Columns) *Array { return c.Array().Reshape(c.X.Dim(0), c.X.Dim(1), heads, c.Size/heads) }
	if text.Q.X == nil {
		return split(image.V)
	}
	return Concat(1, split(text.V), split(image.V))
}

// normRope returns the given number of heads from the first of the queries, or nil if the kernel cannot. Heads after
// the queries are keys, and if values is not 0 those from this one on values; these two are an array of their own then.
func normRope(text, image QK, heads, queries, values int, rope RopeTable) []*Array {
	b, l, d := image.Q.X.Dim(0), image.Q.X.Dim(1), 2*rope.Cos.Dim(-1)
	arrays, tokens := []*Array{}, l
	aligned := rope.Cos.Ndim() == 2 && image.Q.Size == queries*d
	aligned = aligned && d == 64 || d == 128 || d == 256
	in := launch{
		constants: []constant{{"T", image.Q.X.Dtype()}, {"D", d}, {"TEXT", text.Q.X != nil},
			{"NORM", image.NormQ != nil}, {"VALUES", values > 0},
			{"HALVES", rope.Layout == RopeHalves}, {"ACROSS", rope.Layout == RopeAcross}},
		inputs:  []input{{"cosines", rope.Cos}, {"sines", rope.Sin}},
		ints:    []parameter[int]{{"heads", heads}, {"queries", queries}, {"values", values}},
		threads: blockThreads,
	}
	for _, stream := range []struct {
		name string
		QK
	}{{"image", image}, {"text", text}} {
		x := stream.Q.X
		if x == nil {
			continue
		}
		arrays = append(arrays, x)
		aligned = aligned && stream.Q.From%8 == 0 && x.Dim(2)%8 == 0
		in.inputs = append(in.inputs, input{stream.name, x})
		if stream.NormQ != nil {
			arrays = append(arrays, stream.NormQ, stream.NormK)
			in.inputs = append(in.inputs, input{stream.name + "_norm_q", stream.NormQ}, input{stream.name + "_norm_k", stream.NormK})
		}
		in.ints = append(in.ints, parameter[int]{stream.name + "_tokens", x.Dim(1)}, parameter[int]{stream.name + "_width", x.Dim(2)},
			parameter[int]{stream.name + "_column", stream.Q.From})
		in.floats = append(in.floats, parameter[float32]{stream.name + "_eps", stream.Eps})
	}
	if !aligned || !normRopeKernel.usable(arrays...) {
		return nil
	}
	if text.Q.X != nil {
		tokens += text.Q.X.Dim(1)
	}
	made := func(name string, heads int) output {
		return output{name, image.Q.X.Dtype(), []int{b, tokens, heads, d}}
	}
	in.outputs = []output{made("y", heads)}
	if values > 0 {
		in.outputs = []output{made("y", queries), made("kv", heads-queries)}
	}
	in.blocks = b * tokens
	return normRopeKernel.apply(in)
}

func normRopeGraph(text, image QK, rope RopeTable) (q, k *Array) {
	heads := func(c Columns, weight *Array, eps float32) *Array {
		x, d := c.Array(), 2*rope.Cos.Dim(-1)
		if x = x.Reshape(x.Dim(0), x.Dim(1), c.Size/d, d); weight != nil {
			x = x.RMSNorm(weight, eps)
		}
		return x
	}
	rotate := func(x *Array) *Array {
		return rope.Rotate(x.Transpose(0, 2, 1, 3)).Transpose(0, 2, 1, 3)
	}
	q, k = heads(image.Q, image.NormQ, image.Eps), heads(image.K, image.NormK, image.Eps)
	if text.Q.X != nil {
		q = Concat(1, heads(text.Q, text.NormQ, text.Eps), q)
		k = Concat(1, heads(text.K, text.NormK, text.Eps), k)
	}
	return rotate(q), rotate(k)
}

// RotatePairs rotates the pairs (2i, 2i+1) of x [B, H, L, D] by the table cos, sin, float32
// [L, D/2]. It computes in float32.
func RotatePairs(x, cos, sin *Array) *Array {
	if y := x.rotateOnHost(cos, sin); y != nil {
		return y
	}
	s, dtype := x.Shape(), x.Dtype()
	pairs := x.Reshape(s[0], s[1], s[2], s[3]/2, 2).Split(2, -1)
	// the casts are next to the arithmetic, so that MLX fuses them with it when it compiles
	a, b := pairs[0].Squeeze(-1).AsType(Float32), pairs[1].Squeeze(-1).AsType(Float32)
	c, d := a.Mul(cos).Sub(b.Mul(sin)).AsType(dtype), a.Mul(sin).Add(b.Mul(cos)).AsType(dtype)
	return Concat(-1, c.ExpandDims(-1), d.ExpandDims(-1)).Reshape(s...)
}

// RotateHalves rotates the pairs (i, i+D/2) of x [B, H, L, D] by the table cos, sin, float32 [L, D/2] or
// [B, 1, L, D/2]. It computes in float32.
func RotateHalves(x, cos, sin *Array) *Array {
	halves, dtype := x.Split(2, -1), x.Dtype()
	a, b := halves[0].AsType(Float32), halves[1].AsType(Float32)
	return Concat(-1, a.Mul(cos).Sub(b.Mul(sin)).AsType(dtype), a.Mul(sin).Add(b.Mul(cos)).AsType(dtype))
}

// A Norm is a norm over the last axis with what adaptive layer norm does to its result:
// norm(x)·(1+Scale) + Shift. Scale and Shift are [B, 1, C] or [1, 1, C], nil without modulation.
type Norm struct {
	Center       bool   // layer norm, which subtracts the mean; else by the root of the mean square
	Weight       *Array // [C]; may be nil
	Eps          float32
	Scale, Shift *Array
}

// Apply normalizes x [B, L, C].
func (n Norm) Apply(x *Array) *Array {
	if l, ok := n.launch(x, nil, nil); ok {
		return modulatedNormKernel.apply(l)[0]
	}
	return n.graph(x)
}

// ApplyThenAdd returns residual + gate·norm(x).
func (n Norm) ApplyThenAdd(residual, gate, x *Array) *Array {
	if l, ok := n.launch(x, residual, gate, constant{"AFTER", true}); ok {
		return modulatedNormKernel.apply(l)[0]
	}
	return residual.Add(gate.Mul(n.graph(x)))
}

// AddThenApply returns sum = residual + gate·x, and its norm. The gate may be nil, for 1.
func (n Norm) AddThenApply(residual, gate, x *Array) (sum, y *Array) {
	if l, ok := n.launch(x, residual, gate, constant{"BEFORE", true}, constant{"GATE", gate != nil}); ok {
		l.outputs = append([]output{{"x", x.Dtype(), x.Shape()}}, l.outputs...)
		out := modulatedNormKernel.apply(l)
		return out[0], out[1]
	}
	if sum = x; gate != nil {
		sum = gate.Mul(x)
	}
	sum = residual.Add(sum)
	return sum, n.graph(sum)
}

// launch prepares the kernel, and reports whether it can compute this.
func (n Norm) launch(x, residual, gate *Array, more ...constant) (l launch, ok bool) {
	arrays := []*Array{x}
	optional := []input{{"weight", n.Weight}, {"scale", n.Scale}, {"shift", n.Shift}, {"residual", residual}, {"gate", gate}}
	for _, in := range optional {
		if in.array != nil {
			arrays = append(arrays, in.array)
		}
	}
	if x.Ndim() != 3 || !modulatedNormKernel.usable(arrays...) {
		return launch{}, false
	}
	batch, tokens, c := x.Dim(0), x.Dim(1), x.Dim(2)
	v := pack(x.Dtype())
	most := 1024
	if device.Backend() == BackendMetal {
		most = 512 // Metal may allow fewer than 1024 for a function that uses many registers
	}
	packs := ceilDiv(c/v, most)
	if c%v != 0 || packs > 4 || residual != nil && !slices.Equal(residual.dims(), x.dims()) {
		return launch{}, false
	}
	l = launch{
		constants: append([]constant{{"T", x.Dtype()}, {"C", c}, {"PACKS", packs}, {"CENTER", n.Center}, {"WEIGHT", n.Weight != nil},
			{"SCALE", n.Scale != nil}, {"SHIFT", n.Shift != nil}}, more...),
		inputs:  []input{{"in", x}},
		outputs: []output{{"y", x.Dtype(), x.Shape()}},
		floats:  []parameter[float32]{{"eps", n.Eps}},
		ints:    []parameter[int]{{"tokens", tokens}},
		blocks:  batch * tokens,
		threads: ceilDiv(ceilDiv(c/v, packs), 32) * 32,
	}
	for _, in := range optional {
		if in.array == nil {
			continue
		}
		l.inputs = append(l.inputs, in)
		switch in.name {
		case "scale", "shift", "gate":
			step, ok := modulationStep(in.array, batch, c)
			if !ok {
				return launch{}, false
			}
			l.ints = append(l.ints, parameter[int]{in.name + "_step", step})
		}
	}
	return l, true
}

// modulationStep returns the distance between the rows of a modulation [B, 1, C] or [1, 1, C] for
// one batch and the next, and reports whether it has that shape.
func modulationStep(m *Array, batch, c int) (step int, ok bool) {
	switch {
	case m.Size() == c:
		return 0, m.Dim(-1) == c
	case slices.Equal(m.dims(), []int{batch, 1, c}):
		return c, true
	}
	return 0, false
}

func (n Norm) graph(x *Array) *Array {
	y := x
	if n.Center {
		y = x.LayerNorm(n.Weight, nil, n.Eps)
	} else {
		y = x.RMSNorm(n.Weight, n.Eps)
	}
	return Modulate(y, n.Scale, n.Shift)
}

// Modulate is x·(1+scale) + shift, in the dtype of the modulation. Both may be nil.
func Modulate(x, scale, shift *Array) *Array {
	y := x
	if scale != nil {
		y = y.Mul(scale.Plus(1))
	}
	if shift != nil {
		y = y.Add(shift)
	}
	if scale != nil {
		y = y.AsType(scale.Dtype())
	}
	return y
}

// GatedSum is a + gate·b for a and b [B, L, C] and a gate [B, 1, C] or [1, 1, C].
func GatedSum(a, gate, b *Array) *Array {
	if a.Ndim() == 3 && slices.Equal(a.dims(), b.dims()) && gatedSumKernel.usable(a, gate, b) {
		c, v := a.Dim(2), pack(a.Dtype())
		if step, ok := modulationStep(gate, a.Dim(0), c); ok && c%v == 0 && a.Size() <= math.MaxInt32 {
			return gatedSumKernel.apply(launch{
				constants: []constant{{"T", a.Dtype()}, {"C", c}},
				inputs:    []input{{"a", a}, {"gate", gate}, {"b", b}},
				outputs:   []output{{"y", a.Dtype(), a.Shape()}},
				ints:      []parameter[int]{{"size", a.Size()}, {"tokens", a.Dim(1)}, {"gate_step", step}},
				blocks:    ceilDiv(a.Size()/v, blockThreads), threads: blockThreads,
			})[0]
		}
	}
	return a.Add(gate.Mul(b))
}

// Columns are consecutive columns of an array [B, L, W].
type Columns struct {
	X          *Array
	From, Size int
}

// Array returns the columns as an array [B, L, Size], nil without an X.
func (c Columns) Array() *Array {
	if c.X == nil {
		return nil
	}
	if c.From == 0 && c.Size == c.X.Dim(-1) {
		return c.X
	}
	return c.X.Slice(c.X.Ndim()-1, c.From, c.From+c.Size)
}

// follows reports whether c are the columns after others.
func (c Columns) follows(others Columns) bool {
	return c.X == others.X && c.From == others.From+others.Size
}

// AllColumns are all columns of an array.
func AllColumns(x *Array) Columns { return Columns{x, 0, x.Dim(-1)} }

// SwiGLU returns the columns [first, silu(a)·b]. first, which may be nil, is [B, L, W].
func SwiGLU(first *Array, a, b Columns) *Array { return activate(first, silu, a, b) }

// ConcatGELU returns the columns [first, gelu(a)], with GELU's approximation by tanh. first, which
// may be nil, is [B, L, W].
func ConcatGELU(first *Array, a Columns) *Array { return activate(first, geluTanh, a, Columns{}) }

// GEGLU returns the columns gelu(a)·b, or gelu(a) if b has no X, with the GELU of [Array.GELU].
func GEGLU(a, b Columns) *Array { return activate(nil, gelu, a, b) }

// WideSiLU is [Array.SiLU] in float32 inside, as torch computes it.
func WideSiLU(x *Array) *Array { return activate(nil, silu, AllColumns(x), Columns{}) }

// An activation is the name of a function in common.h.
type activation string

const (
	silu     activation = "silu"
	gelu     activation = "gelu"
	geluTanh activation = "gelu_tanh"
)

// activate returns the columns [first, f(a)], or [first, f(a)·b] if there is a b.
func activate(first *Array, f activation, a, b Columns) *Array {
	arrays := []*Array{a.X}
	for _, x := range []*Array{first, b.X} {
		if x != nil {
			arrays = append(arrays, x)
		}
	}
	v, shape, skip := pack(a.X.Dtype()), a.X.Shape(), 0
	aligned := a.From%v == 0 && a.Size%v == 0 && shape[len(shape)-1]%v == 0
	if first != nil {
		skip = first.Dim(-1)
		aligned = aligned && skip%v == 0
	}
	if b.X != nil {
		aligned = aligned && b.From%v == 0 && b.X.Dim(-1)%v == 0
	}
	if !aligned || !activationKernel.usable(arrays...) {
		return activationGraph(first, f, a, b)
	}
	rows := a.X.Size() / shape[len(shape)-1]
	shape[len(shape)-1] = skip + a.Size
	l := launch{
		constants: []constant{{"T", a.X.Dtype()}, {"FIRST", first != nil}, {"GATED", b.X != nil}, {"F", f}},
		inputs:    []input{{"a", a.X}},
		outputs:   []output{{"y", a.X.Dtype(), shape}},
		ints: []parameter[int]{{"rows", rows}, {"inner", a.Size}, {"first_width", skip}, {"a_width", a.X.Dim(-1)},
			{"a_column", a.From}},
		blocks: ceilDiv(rows*(skip+a.Size)/v, blockThreads), threads: blockThreads,
	}
	if b.X != nil {
		l.ints = append(l.ints, parameter[int]{"b_width", b.X.Dim(-1)}, parameter[int]{"b_column", b.From})
		l.inputs = append(l.inputs, input{"b", b.X})
	}
	if first != nil {
		l.inputs = append(l.inputs, input{"first", first})
	}
	return activationKernel.apply(l)[0]
}

func activationGraph(first *Array, f activation, a, b Columns) *Array {
	y, gated := a.Array(), b.X != nil
	switch {
	case f == silu && gated:
		y, gated = swiGLU(y, b.Array()), false
	case f == silu:
		y = y.wideSiLU()
	case f == gelu:
		y = y.GELU()
	default:
		y = y.GELUTanh()
	}
	if gated {
		y = y.Mul(b.Array())
	}
	if first == nil {
		return y
	}
	return Concat(-1, first, y)
}

// AddBias is x + bias, plus residual unless it is nil, for x and residual [..., C] and a bias [C].
func AddBias(x, bias, residual *Array) *Array {
	return SumColumns([]Columns{AllColumns(x)}, bias, residual, nil)
}

// AddBiasLeaky is LeakyReLU of x + bias, with a slope [C].
func AddBiasLeaky(x, bias, slope *Array) *Array {
	return SumColumns([]Columns{AllColumns(x)}, bias, nil, slope)
}

// SumColumns returns the sum [..., C] of C columns of each of some arrays [..., W], of a bias [C], and of residual
// [..., C]. Its negative elements are multiplied by slope [C]. Residual and slope may be nil.
func SumColumns(parts []Columns, bias, residual, slope *Array) *Array {
	if y := sumColumns(parts, bias, residual, slope); y != nil {
		return y
	}
	y := parts[0].Array()
	for _, p := range parts[1:] {
		y = y.Add(p.Array())
	}
	if y = y.Add(bias); residual != nil {
		y = residual.Add(y)
	}
	if slope != nil {
		y = y.LeakyReLU(slope)
	}
	return y
}

// LeakyReLU multiplies negative elements by slope [C].
func (a *Array) LeakyReLU(slope *Array) *Array {
	return Where(a.Less(Scalar(0, a.Dtype())), a.Mul(slope), a)
}

// sumColumns returns nil if the kernel cannot compute the sum.
func sumColumns(parts []Columns, bias, residual, slope *Array) *Array {
	c, shape := parts[0].Size, parts[0].X.Shape()
	v := pack(parts[0].X.Dtype())
	shape[len(shape)-1] = c
	rows := parts[0].X.Size() / parts[0].X.Dim(-1)
	aligned := c%v == 0 && len(parts) <= 5 && (residual == nil || slices.Equal(residual.dims(), shape))
	var arrays []*Array
	l := launch{inputs: []input{{"bias", bias}}, threads: blockThreads}
	for i, p := range parts {
		name := "x" + strconv.Itoa(i)
		aligned = aligned && p.From%v == 0 && p.X.Dim(-1)%v == 0 && p.Size == c
		l.inputs = append(l.inputs, input{name, p.X})
		l.ints = append(l.ints, parameter[int]{name + "_width", p.X.Dim(-1)}, parameter[int]{name + "_column", p.From})
	}
	for _, in := range []input{{"residual", residual}, {"slope", slope}} {
		if in.array != nil {
			l.inputs = append(l.inputs, in)
		}
	}
	for _, in := range l.inputs {
		arrays = append(arrays, in.array)
	}
	size := rows * c
	if !aligned || size > math.MaxInt32 || !biasSumKernel.usable(arrays...) {
		return nil
	}
	l.constants = []constant{{"T", bias.Dtype()}, {"C", c}, {"PARTS", len(parts)}, {"RESIDUAL", residual != nil},
		{"SLOPE", slope != nil}}
	l.outputs = []output{{"y", bias.Dtype(), shape}}
	l.ints = append(l.ints, parameter[int]{"size", size})
	l.blocks = ceilDiv(size/v, blockThreads)
	return biasSumKernel.apply(l)[0]
}

// Upsample doubles the size of images [N, H, W, C]: every pixel becomes 2x2 (nearest neighbours).
func Upsample(x *Array) *Array {
	n, h, w, c := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
	v := pack(x.Dtype())
	if c%v != 0 || !upsampleKernel.usable(x) {
		return x.Reshape(n, h, 1, w, 1, c).BroadcastTo(n, h, 2, w, 2, c).Reshape(n, 2*h, 2*w, c)
	}
	return upsampleKernel.apply(launch{
		constants: []constant{{"T", x.Dtype()}, {"C", c}},
		inputs:    []input{{"x", x}},
		outputs:   []output{{"y", x.Dtype(), []int{n, 2 * h, 2 * w, c}}},
		ints:      []parameter[int]{{"rows", n * h}, {"columns", w}},
		blocks:    ceilDiv(x.Size()/v, blockThreads), threads: blockThreads,
	})[0]
}

// A GroupNorm is torch.nn.GroupNorm on [N, H, W, C], for which it has a kernel on GPUs.
type GroupNorm struct {
	Groups       int
	Eps          float32
	Weight, Bias *Array // [C]
	// Before, if not nil, is added to x first, [C]: the bias of a convolution.
	Before *Array
}

// Usable reports whether [GroupNorm.Factors] and [GroupFactors.Apply] can compute with x.
func (g GroupNorm) Usable(x *Array) bool {
	arrays := []*Array{x, g.Weight, g.Bias}
	if g.Before != nil {
		arrays = append(arrays, g.Before)
	}
	c := x.Dim(-1)
	return x.Ndim() == 4 && c%pack(x.Dtype()) == 0 && c/pack(x.Dtype()) <= blockThreads && c%g.Groups == 0 &&
		groupStatisticsKernel.usable(arrays...) && groupFactorsKernel.usable(arrays...) && groupApplyKernel.usable(arrays...)
}

// GroupFactors are the factors and summands by which a [GroupNorm] normalizes each channel,
// float32 [N, 2, C].
type GroupFactors struct{ *Array }

// Factors returns the factors for x [N, H, W, C].
func (g GroupNorm) Factors(x *Array) GroupFactors {
	n, c, pixels := x.Dim(0), x.Dim(3), x.Dim(1)*x.Dim(2)
	chunk := max(128, ceilDiv(pixels, 1024)) // pixels a block
	chunks := ceilDiv(pixels, chunk)
	constants := []constant{{"C", c}, {"GROUPS", g.Groups}, {"BEFORE", g.Before != nil}}
	ints := []parameter[int]{{"pixels", pixels}, {"chunk", chunk}}
	lanes := c / pack(x.Dtype())
	statistics := launch{
		constants: append([]constant{{"T", x.Dtype()}}, constants...),
		inputs:    []input{{"x", x}},
		outputs:   []output{{"y", Float32, []int{n, chunks, c, 2}}},
		ints:      ints,
		blocks:    n * chunks, threads: blockThreads / lanes * lanes,
	}
	factors := launch{
		constants: constants,
		outputs:   []output{{"y", Float32, []int{n, 2, c}}},
		ints:      ints,
		floats:    []parameter[float32]{{"eps", g.Eps}},
		blocks:    n * g.Groups, threads: blockThreads,
	}
	if g.Before != nil {
		before := input{"before", g.Before}
		statistics.inputs, factors.inputs = append(statistics.inputs, before), append(factors.inputs, before)
	}
	moments := groupStatisticsKernel.apply(statistics)[0]
	factors.inputs = append(factors.inputs, input{"moments", moments}, input{"weight", g.Weight}, input{"bias", g.Bias})
	return GroupFactors{groupFactorsKernel.apply(factors)[0]}
}

// Apply normalizes any rows of x [N, H, W, C], and applies SiLU to the result if silu is set.
func (f GroupFactors) Apply(x *Array, silu bool) *Array {
	n, c, pixels := x.Dim(0), x.Dim(3), x.Dim(1)*x.Dim(2)
	lanes := c / pack(x.Dtype())
	atOnce := blockThreads / lanes
	chunk := 8 * atOnce
	return groupApplyKernel.apply(launch{
		constants: []constant{{"T", x.Dtype()}, {"C", c}, {"SILU", silu}},
		inputs:    []input{{"x", x}, {"factors", f.Array}},
		outputs:   []output{{"y", x.Dtype(), x.Shape()}},
		ints:      []parameter[int]{{"pixels", pixels}, {"chunk", chunk}},
		blocks:    n * ceilDiv(pixels, chunk), threads: atOnce * lanes,
	})[0]
}

// dequantizeAffine unpacks a matrix of 4 or 8 bits, or returns nil if the kernel cannot.
func (q *Quantized) dequantizeAffine(dtype Dtype) *Array {
	if q.Biases == nil || q.Bits != 4 && q.Bits != 8 || q.Scales.Dtype() != dtype || q.Packed.Ndim() != 2 ||
		q.Packed.Size() > math.MaxInt32 || !dequantizeKernel.usable(q.Scales, q.Biases) {
		return nil
	}
	rows, words := q.Packed.Dim(0), q.Packed.Dim(1)
	return dequantizeKernel.apply(launch{
		constants: []constant{{"T", dtype}, {"BITS", q.Bits}, {"GROUP", q.Group}},
		inputs:    []input{{"packed", q.Packed}, {"scales", q.Scales}, {"biases", q.Biases}},
		outputs:   []output{{"y", dtype, []int{rows, words * 32 / q.Bits}}},
		ints:      []parameter[int]{{"size", rows * words}},
		blocks:    ceilDiv(rows*words, blockThreads), threads: blockThreads,
	})[0]
}
