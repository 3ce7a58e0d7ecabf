package transformer

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Extract is the first step of the kv variant (Flux2KleinKVPipeline). It is Forward, but
// references see only themselves and are modulated as at time 0. It also returns their
// keys and values, which text and target see, for [Flux2.CachedPass].
func (m *Flux2) Extract(in Inputs, s *Flux2Sequence) (velocity *mlx.Array, cache KVCache) {
	references := toBatch(in.References.AsType(in.Latents.Dtype()), in.Latents.Dim(0))
	tokens := mlx.Concat(1, references, flatten(in.Latents))
	kv := newFlux2KV(s, newKVCache(m.layers()), true)
	return Run(m.pass(tokens, in, s, s.references.then(s.target), kv)), kv.cache
}

// CachedPass is a later step of the kv variant: Pass with the cache from [Flux2.Extract] instead of
// the references.
func (m *Flux2) CachedPass(in Inputs, s *Flux2Sequence) Pass {
	in.Cache.check(m.layers())
	return m.pass(flatten(in.Latents), in, s, s.target, newFlux2KV(s, in.Cache, false))
}

func (m *Flux2) layers() int { return len(m.TransformerBlocks) + len(m.SingleTransformerBlocks) }

// A flux2KV is the KV cache of a pass, which fills it or reads it. It is nil for a
// pass without a cache.
type flux2KV struct {
	cache            KVCache
	fill             bool
	text, references int // tokens
}

func newFlux2KV(s *Flux2Sequence, cache KVCache, fill bool) *flux2KV {
	return &flux2KV{cache: cache, fill: fill, text: s.text.n, references: s.references.n}
}

func (kv *flux2KV) fills() bool { return kv != nil && kv.fill }

// state appends the arrays of the cache that a pass fills to the state of its layers.
func (kv *flux2KV) state(streams ...**mlx.Array) []**mlx.Array {
	if kv.fills() {
		return kv.cache.state(streams...)
	}
	return streams
}

// attend is the attention of the layer j.layer with rotated q, k and v [B, H, L, D].
func (kv *flux2KV) attend(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	if kv.fill {
		return kv.extract(m, j, q, k, v)
	}
	return kv.cached(m, j, q, k, v)
}

// extract is attention over [text, references, target]. It puts keys and values of
// the references, which see only themselves, into the cache.
func (kv *flux2KV) extract(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	k, v = j.shares.KV(k, v, j.joined, true)
	start, stop, n := j.shares.Count(0), j.shares.Count(0)+j.shares.Count(1), q.Dim(2)
	referencesQ := q.Slice(2, start, stop)
	q = mlx.Concat(2, q.Slice(2, 0, start), q.Slice(2, stop, n))
	q, k, v = m.TapQKV(j.options(), q, k, v)

	referencesK, referencesV := kv.cache.store(j.layer, k, v, kv.text, kv.text+kv.references)
	y, references := nn.Attention(q, k, v), nn.Attention(referencesQ, referencesK, referencesV)
	return mlx.Concat(2, y.Slice(2, 0, start), references, y.Slice(2, start, y.Dim(2)))
}

// cached is attention over [text, references, target] for the queries of text and target,
// with keys and values of the references from the cache.
func (kv *flux2KV) cached(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	insert := func(x, cached *mlx.Array) *mlx.Array {
		return mlx.Concat(2, x.Slice(2, 0, kv.text), cached.AsType(x.Dtype()), x.Slice(2, kv.text, x.Dim(2)))
	}
	k, v = j.shares.KV(k, v, j.joined, true)
	k, v = insert(k, kv.cache.Keys[j.layer]), insert(v, kv.cache.Values[j.layer])
	return nn.Attention(m.TapQKV(j.options(), q, k, v))
}
