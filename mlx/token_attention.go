package mlx

import "math"

// TailTokens is for how many tokens the tail of a [TokenCache] has room.
const TailTokens = 64

// A TokenCache has the keys and values of the tokens before a new one, in arrays of the same shapes for every
// token, so that a compiled function can use it. A token changes only the tail: the caller moves its rows to
// Keys and Values when it is full. So no token copies all of them, as MLX does while a GPU is still reading
// the array that is to be changed.
type TokenCache struct {
	Keys, Values *Array // [B, H, capacity, D]
	Tail         *Array // [2, B, H, TailTokens, D], the keys and values of the last tokens
	Position     *Array // int32 [1, 8]: the numbers of tokens in Keys and in Tail, and zeros
}

// NewTail returns an empty tail for keys.
func NewTail(keys *Array) *Array {
	return Zeros(keys.Dtype(), 2, keys.Dim(0), keys.Dim(1), TailTokens, keys.Dim(3))
}

// NewPositions returns the positions [TailTokens, 8] of all tokens of a tail that begins after a number of them. Metal
// gets arrays of fewer than 8 elements elsewhere.
func NewPositions(before int) *Array {
	all := make([]int32, 8*TailTokens)
	for recent := range TailTokens {
		all[8*recent], all[8*recent+1] = int32(before), int32(recent)
	}
	return FromInt32(all, TailTokens, 8)
}

// Attend returns the attention [B, n·H, 1, D] of the queries of a new token to all keys and its own, and the tail
// with its key and value, [B, H, 1, D], of which n consecutive queries share each.
func (c TokenCache) Attend(q, k, v *Array) (y, tail *Array) {
	t := tokenLaunch{batch: q.Dim(0), heads: q.Dim(1), keys: k.Dim(1), d: q.Dim(3)}
	t.in = []input{{"queries", q}, {"new_keys", k}, {"new_values", v}}
	if out := c.launch(t); out != nil {
		return out[0].Reshape(q.Shape()...), out[1]
	}
	return c.graph(q, k, v, float32(1/math.Sqrt(float64(q.Dim(3)))))
}

// AttendProjected is [TokenCache.Attend] for a token's queries, keys and values in one array [B, 1, (n·H+2·H)·D] of n·H
// heads of queries, which are normed and rotated as by [NormRope] first. y is [B, 1, n·H·D], or nil if the kernel cannot
// compute this. Weights of norms may be nil, and all sequences have the one position of the table.
func (c TokenCache) AttendProjected(qk QK, heads int, rope RopeTable) (y, tail *Array) {
	x, d := qk.Q.X, qk.Q.Size/heads
	keys := qk.K.Size / d
	together := qk.adjacent() && qk.Q.From == 0 && x.Dim(2) == (heads+2*keys)*d && x.Dim(1) == 1
	if !together || rope.Layout != RopeHalves || rope.Cos.Size() != d/2 {
		return nil, nil
	}
	in := []input{{"projected", x}}
	if qk.NormQ != nil {
		in = append(in, input{"norm_q", qk.NormQ}, input{"norm_k", qk.NormK})
	}
	out := c.launch(tokenLaunch{batch: x.Dim(0), heads: heads, keys: keys, d: d, in: in, rope: rope, eps: qk.Eps})
	if out == nil {
		return nil, nil
	}
	return out[0], out[1]
}

// A tokenLaunch describes the new token for the kernel, with a table if its heads are to be rotated.
type tokenLaunch struct {
	batch, heads, keys, d int
	in                    []input
	rope                  RopeTable
	eps                   float32 // of norms, which are among the inputs
}

// launch returns the attention [B, 1, n·H·D] and the next tail, or nil if the kernel cannot compute this.
func (c TokenCache) launch(t tokenLaunch) []*Array {
	warps := 32
	if t.d > 128 || device.Backend() == BackendMetal { // threadgroup memory, and see modulatedNormKernel
		warps = 16
	}
	arrays := []*Array{c.Keys, c.Values, c.Tail}
	for _, in := range t.in {
		arrays = append(arrays, in.array)
	}
	fits := t.d == 32 || t.d == 64 || t.d == 128 || t.d == 256
	if !fits || !tokenAttentionKernel.usable(arrays...) {
		return nil
	}
	dtype, group := c.Tail.Dtype(), t.heads/t.keys
	l := launch{
		constants: []constant{{"T", dtype}, {"D", t.d}, {"TAIL", TailTokens}, {"WARPS", warps}, {"PROJECTED", t.rope.Cos != nil},
			{"NORM", t.rope.Cos != nil && len(t.in) > 1}},
		inputs: append(t.in, input{"past_keys", c.Keys}, input{"past_values", c.Values}, input{"tail", c.Tail},
			input{"position", c.Position}),
		outputs: []output{{"out", dtype, []int{t.batch, 1, t.heads * t.d}}, {"next", dtype, c.Tail.Shape()}},
		ints:    []parameter[int]{{"heads", t.heads}, {"group", group}, {"rows", t.batch * t.keys}, {"capacity", c.Keys.Dim(2)}},
		floats:  []parameter[float32]{{"scale", float32(1 / math.Sqrt(float64(t.d)))}, {"eps", t.eps}},
		blocks:  t.batch * t.heads, threads: 32 * warps,
	}
	if t.rope.Cos != nil {
		l.inputs = append(l.inputs, input{"cosines", t.rope.Cos}, input{"sines", t.rope.Sin})
	}
	return tokenAttentionKernel.apply(l)
}

func (c TokenCache) graph(q, k, v *Array, scale float32) (y, tail *Array) {
	capacity := c.Keys.Dim(2)
	index := func(n int) *Array { return Arange(0, float64(n), 1, Int32) }
	position := c.Position.Reshape(-1)
	before, recent := position.Slice(0, 0, 1), position.Slice(0, 1, 2)
	added := Concat(0, k.ExpandDims(0), v.ExpandDims(0))
	tail = Where(index(TailTokens).Equal(recent).Reshape(TailTokens, 1), added, c.Tail)
	seen := Concat(0, index(capacity).Less(before), recent.GreaterEqual(index(TailTokens)))
	halves := tail.Split(2, 0)
	y = Attention(q, Concat(2, c.Keys, halves[0].Squeeze(0)), Concat(2, c.Values, halves[1].Squeeze(0)), scale,
		seen.Reshape(1, 1, 1, capacity+TailTokens))
	return y, tail
}

// projectedGraph is AttendProjected; round is called with the rotated heads.
func (c TokenCache) projectedGraph(qk QK, rope RopeTable, round func(*Array) *Array) (y, tail *Array) {
	q, k := normRopeGraph(QK{}, qk, rope)
	first := func(x *Array) *Array { return x.Transpose(0, 2, 1, 3) }
	y, tail = c.graph(first(round(q)), first(round(k)), first(joinValues(QK{}, qk, k.Dim(2))), float32(1/math.Sqrt(float64(q.Dim(3)))))
	return first(y).Reshape(y.Dim(0), 1, -1), tail
}
