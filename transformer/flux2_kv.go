package transformer

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Flux2Cache is the KV cache of the reference tokens: rotated keys and values
// [B, heads, R, head_dim] of every layer, the double-stream blocks first.
type Flux2Cache struct{ Keys, Values []*mlx.Array }

// Extract is the first step of the kv variant (Flux2KleinKVPipeline). It is Forward, but
// references see only themselves and are modulated as at time 0. It also returns their
// keys and values, which text and target see, for [Flux2.Cached].
func (m *Flux2) Extract(latents, timestep, text, references *mlx.Array, s *Flux2Sequence) (velocity *mlx.Array, cache Flux2Cache) {
	tokens := mlx.Concat(1, toBatch(references.AsType(latents.Dtype()), latents.Dim(0)), flux2Tokens(latents))
	kv := newFlux2KV(s, Flux2Cache{make([]*mlx.Array, m.layers()), make([]*mlx.Array, m.layers())}, true)
	return Run(m.pass(tokens, timestep, text, s, s.references.then(s.target), kv)), kv.cache
}

// Cached is a later step of the kv variant: Forward with the cache from
// [Flux2.Extract] instead of the references.
func (m *Flux2) Cached(latents, timestep, text *mlx.Array, cache Flux2Cache, s *Flux2Sequence) *mlx.Array {
	return Run(m.CachedPass(latents, timestep, text, cache, s))
}

// CachedPass returns Cached in parts.
func (m *Flux2) CachedPass(latents, timestep, text *mlx.Array, cache Flux2Cache, s *Flux2Sequence) Pass {
	if k, v := len(cache.Keys), len(cache.Values); k != m.layers() || v != k {
		mlx.Throw(fmt.Errorf("KV cache with keys of %d layers and values of %d, expected %d", k, v, m.layers()))
	}
	return m.pass(flux2Tokens(latents), timestep, text, s, s.target, newFlux2KV(s, cache, false))
}

func (m *Flux2) layers() int { return len(m.TransformerBlocks) + len(m.SingleTransformerBlocks) }

// A flux2KV is the KV cache of a pass, which fills it or reads it. It is nil for a
// pass without a cache.
type flux2KV struct {
	cache            Flux2Cache
	fill             bool
	text, references int // tokens
}

func newFlux2KV(s *Flux2Sequence, cache Flux2Cache, fill bool) *flux2KV {
	return &flux2KV{cache: cache, fill: fill, text: s.text.n, references: s.references.n}
}

func (kv *flux2KV) fills() bool { return kv != nil && kv.fill }

// state appends the arrays of the cache that a pass fills to the state of its layers.
func (kv *flux2KV) state(streams ...**mlx.Array) []**mlx.Array {
	if kv.fills() {
		for i := range kv.cache.Keys {
			streams = append(streams, &kv.cache.Keys[i], &kv.cache.Values[i])
		}
	}
	return streams
}

// attend is the attention of the layer j.layer with q, k and v [B, H, L, D].
func (kv *flux2KV) attend(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	q, k = m.RotateQK(j.options(), q, k)
	if kv.fill {
		return kv.extract(m, j, q, k, v)
	}
	return kv.cached(m, j, q, k, v)
}

// extract is attention over [text, references, target]. It puts keys and values of
// the references, which see only themselves, into the cache.
func (kv *flux2KV) extract(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	start, stop, n := kv.text, kv.text+kv.references, q.Dim(2)
	referencesQ := q.Slice(2, start, stop)
	q = mlx.Concat(2, q.Slice(2, 0, start), q.Slice(2, stop, n))
	q, k, v = m.TapQKV(j.options(), q, k, v)

	// copies: a slice would keep all of k and v in memory
	referencesK, referencesV := k.Slice(2, start, stop).Contiguous(), v.Slice(2, start, stop).Contiguous()
	kv.cache.Keys[j.layer], kv.cache.Values[j.layer] = referencesK, referencesV
	y, references := nn.Attention(q, k, v), nn.Attention(referencesQ, referencesK, referencesV)
	return mlx.Concat(2, y.Slice(2, 0, start), references, y.Slice(2, start, y.Dim(2)))
}

// cached is attention over [text, references, target] for the queries of text and target,
// with keys and values of the references from the cache.
func (kv *flux2KV) cached(m *nn.Module, j joint, q, k, v *mlx.Array) *mlx.Array {
	insert := func(x, cached *mlx.Array) *mlx.Array {
		return mlx.Concat(2, x.Slice(2, 0, kv.text), cached.AsType(x.Dtype()), x.Slice(2, kv.text, x.Dim(2)))
	}
	k, v = insert(k, kv.cache.Keys[j.layer]), insert(v, kv.cache.Values[j.layer])
	return nn.Attention(m.TapQKV(j.options(), q, k, v))
}
