package family

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// kvTransformer is a transformer that may keep a KV cache between steps, for sequences of a type S.
type kvTransformer[S any] interface {
	Timestep(t float32) *mlx.Array
	// Pass is a step without a cache.
	Pass(in transformer.KVInputs, s S) transformer.Pass
	// Extract is a step that fills the cache.
	Extract(in transformer.KVInputs, s S) (*mlx.Array, transformer.KVCache)
	// CachedPass is a step that reads it.
	CachedPass(in transformer.KVInputs, s S) transformer.Pass
}

// kvPredictor returns a predictor for a transformer that takes the text and the references of in, and
// latents in dtype. If cached is set, it fills a KV cache in the first step and reads it in the next ones.
func kvPredictor[S any](c Conditioning, compile Compiler, m kvTransformer[S], s S, in transformer.KVInputs, dtype mlx.Dtype,
	cached bool,
) Predictor {
	var forward func(transformer.KVInputs) *mlx.Array
	if cached {
		forward = kvForward(c, compile, m, s)
	} else {
		forward = stepcache.Forward(c.StepCache, compile, func(in transformer.KVInputs) transformer.Pass { return m.Pass(in, s) })
	}
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		in.Latents, in.Timestep = latents.AsType(dtype), m.Timestep(at.Timestep/1000)
		return forward(in).AsType(mlx.Float32)
	}
}

// kvForward returns a function that fills a KV cache at its first call and reads it at the next ones, of
// which a step cache may leave out parts of the pass.
func kvForward[S any](c Conditioning, compile Compiler, m kvTransformer[S], s S) func(transformer.KVInputs) *mlx.Array {
	type outputs struct {
		Velocity *mlx.Array
		Cache    transformer.KVCache
	}
	fill := mlx.Named(compile, func(in transformer.KVInputs) (out outputs) {
		out.Velocity, out.Cache = m.Extract(in, s)
		return out
	})
	forward := stepcache.Forward(c.StepCache, compile, func(in transformer.KVInputs) transformer.Pass { return m.CachedPass(in, s) })
	var cache *transformer.KVCache
	return func(in transformer.KVInputs) *mlx.Array {
		if cache != nil {
			in.Cache = *cache
			return forward(in)
		}
		out := fill(in)
		cache = &out.Cache
		c.Keep(cache.Keys...)
		c.Keep(cache.Values...)
		return out.Velocity
	}
}
