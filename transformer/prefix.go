package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// KVCache has rotated keys and values [B, heads, n, head_dim] of every layer, for tokens that are
// the same at every step.
type KVCache struct{ Keys, Values []*mlx.Array }

// newKVCache returns an empty cache.
func newKVCache(layers int) KVCache {
	return KVCache{make([]*mlx.Array, layers), make([]*mlx.Array, layers)}
}

// check panics if the cache is not of so many layers.
func (c KVCache) check(layers int) {
	if k, v := len(c.Keys), len(c.Values); k != layers || v != k {
		mlx.Throw(fmt.Errorf("KV cache with keys of %d layers and values of %d, expected %d", k, v, layers))
	}
}

// state appends the arrays of a cache that a pass fills to the state of its layers.
func (c KVCache) state(streams ...**mlx.Array) []**mlx.Array {
	for i := range c.Keys {
		streams = append(streams, &c.Keys[i], &c.Values[i])
	}
	return streams
}

// store puts the tokens from start to stop-1 of k and v [B, H, L, D] into the cache, and returns
// them. They are copies, since a slice would keep all of k and v in memory.
func (c KVCache) store(layer int, k, v *mlx.Array, start, stop int) (keys, values *mlx.Array) {
	keys, values = k.Slice(2, start, stop).Contiguous(), v.Slice(2, start, stop).Contiguous()
	c.Keys[layer], c.Values[layer] = keys, values
	return keys, values
}

// A segment is a part of a prefix, from token start to end-1. Its tokens see all earlier ones and
// themselves, and unless it is causal also the later ones of the segment.
type segment struct {
	start, end int
	causal     bool
}

// blockCausal is attention over a sequence of segments and a target, which sees all tokens: no
// segment sees what follows it. Then keys and values of the segments do not depend on the target,
// and are kept for later steps.
type blockCausal struct {
	segments []segment
	cache    KVCache // of the segments
	fill     bool    // put them into the cache
	read     bool    // the pass has only the target; the rest is in the cache
	options  nn.AttentionOptions
}

// prefix returns the number of tokens in all segments.
func (b *blockCausal) prefix() int {
	if n := len(b.segments); n > 0 {
		return b.segments[n-1].end
	}
	return 0
}

// state appends the arrays of the cache that a pass fills to the state of its layers.
func (b *blockCausal) state(streams ...**mlx.Array) []**mlx.Array {
	if b.fill {
		return b.cache.state(streams...)
	}
	return streams
}

// attend returns the attention [B, H, L, D] of a layer with rotated heads. A hook sees
// those of the first segment. Some members of a group have no tokens of it, so while it looks every member
// computes attention for all queries.
func (b *blockCausal) attend(m *nn.Module, layer int, h nn.QKVHeads) *mlx.Array {
	q := h.Q.Transpose(0, 2, 1, 3)
	k, v := b.options.Shares.KV(h.K.Transpose(0, 2, 1, 3), h.V.Transpose(0, 2, 1, 3), h.Joined, true)
	if b.read {
		cached := func(x, cached *mlx.Array) *mlx.Array { return mlx.Concat(2, cached.AsType(x.Dtype()), x) }
		k, v = cached(k, b.cache.Keys[layer]), cached(v, b.cache.Values[layer])
		return nn.Attention(m.TapQKV(b.options, q, k, v))
	}
	if b.fill {
		b.cache.store(layer, k, v, 0, b.prefix())
	}
	shares := b.options.Shares
	if m.Observed() && !shares.Alone() {
		whole := blockCausal{segments: b.segments, options: b.options}
		whole.options.Shares = nn.NewShares(nil, k.Dim(2))
		all := nn.QKVHeads{Q: shares.Whole(h.Q), K: k.Transpose(0, 2, 1, 3), V: v.Transpose(0, 2, 1, 3)}
		return shares.Share(2, whole.attend(m, layer, all))
	}
	first, end := shares.Range(0)
	var parts []*mlx.Array
	for _, s := range append(b.segments[:len(b.segments):len(b.segments)], segment{start: b.prefix(), end: k.Dim(2)}) {
		start, stop, seen := max(s.start, first), min(s.end, end), s.end
		if start >= stop {
			continue
		}
		if s.causal {
			seen = stop
		}
		q, k, v := q.Slice(2, start-first, stop-first), k.Slice(2, 0, seen), v.Slice(2, 0, seen)
		if s.start == 0 {
			o := b.options
			o.Causal = s.causal
			q, k, v = m.TapQKV(o, q, k, v)
		}
		if s.causal {
			parts = append(parts, nn.CausalAttention(q, k, v))
		} else {
			parts = append(parts, nn.Attention(q, k, v))
		}
	}
	return mlx.Concat(2, parts...)
}
