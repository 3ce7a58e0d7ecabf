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
	Position     *Array // int32 [8]: the numbers of tokens in Keys and in Tail, and zeros
}

// NewTail returns an empty tail for keys.
func NewTail(keys *Array) *Array {
	return Zeros(keys.Dtype(), 2, keys.Dim(0), keys.Dim(1), TailTokens, keys.Dim(3))
}

// NewPosition returns the position of a cache. Metal gets arrays of fewer than 8 elements elsewhere.
func NewPosition(before, recent int) *Array {
	return FromInt32([]int32{int32(before), int32(recent), 0, 0, 0, 0, 0, 0})
}

// Attend returns the attention [B, n·H, 1, D] of the queries of a new token to all keys and its own, and the tail
// with its key and value, [B, H, 1, D], of which n consecutive queries share each.
func (c TokenCache) Attend(q, k, v *Array) (y, tail *Array) {
	scale := float32(1 / math.Sqrt(float64(q.Dim(3))))
	heads, rows, d := q.Dim(1), k.Dim(0)*k.Dim(1), q.Dim(3)
	warps := 32
	if d > 128 || device.Backend() == BackendMetal { // threadgroup memory, and see modulatedNormKernel
		warps = 16
	}
	fits := d == 32 || d == 64 || d == 128 || d == 256
	if !fits || !tokenAttentionKernel.usable(q, k, v, c.Keys, c.Values, c.Tail) {
		return c.graph(q, k, v, scale)
	}
	out := tokenAttentionKernel.apply(launch{
		constants: []constant{{"T", q.Dtype()}, {"D", d}, {"TAIL", TailTokens}, {"WARPS", warps}},
		inputs: []input{{"queries", q}, {"new_keys", k}, {"new_values", v}, {"past_keys", c.Keys}, {"past_values", c.Values},
			{"tail", c.Tail}, {"position", c.Position}},
		outputs: []output{{"out", q.Dtype(), q.Shape()}, {"next", q.Dtype(), c.Tail.Shape()}},
		ints:    []parameter[int]{{"group", heads / k.Dim(1)}, {"rows", rows}, {"capacity", c.Keys.Dim(2)}},
		floats:  []parameter[float32]{{"scale", scale}},
		blocks:  q.Dim(0) * heads, threads: 32 * warps,
	})
	return out[0], out[1]
}

func (c TokenCache) graph(q, k, v *Array, scale float32) (y, tail *Array) {
	capacity := c.Keys.Dim(2)
	index := func(n int) *Array { return Arange(0, float64(n), 1, Int32) }
	before, recent := c.Position.Slice(0, 0, 1), c.Position.Slice(0, 1, 2)
	added := Concat(0, k.ExpandDims(0), v.ExpandDims(0))
	tail = Where(index(TailTokens).Equal(recent).Reshape(TailTokens, 1), added, c.Tail)
	seen := Concat(0, index(capacity).Less(before), recent.GreaterEqual(index(TailTokens)))
	halves := tail.Split(2, 0)
	y = Attention(q, Concat(2, c.Keys, halves[0].Squeeze(0)), Concat(2, c.Values, halves[1].Squeeze(0)), scale,
		seen.Reshape(1, 1, 1, capacity+TailTokens))
	return y, tail
}
