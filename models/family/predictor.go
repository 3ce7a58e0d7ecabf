package family

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// A forward runs the transformer for its inputs.
type forward func(in transformer.Inputs) *mlx.Array

// A splitter is a transformer's sequence, which members of a group may share.
type splitter interface{ SplitOver(g *mlx.Group) }

// newForward returns the forward pass of a transformer for a sequence, of which a step cache may leave out parts.
func newForward[S splitter](c Conditioning, compile Compiler, s S, pass func(in transformer.Inputs, s S) transformer.Pass) forward {
	s.SplitOver(c.Sequence)
	return stepcache.Forward(c.StepCache, compile, func(in transformer.Inputs) transformer.Pass { return pass(in, s) })
}

// predictor returns a predictor that runs f with some inputs, the latents in dtype, and what set sets for an interval.
func predictor(f forward, in transformer.Inputs, dtype mlx.Dtype, set func(in *transformer.Inputs, at scheduler.Interval)) Predictor {
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		in.Latents = latents.AsType(dtype)
		set(&in, at)
		return f(in).AsType(mlx.Float32)
	}
}

// byTime sets the timestep, of which a transformer takes the time from 0 to 1 (pure noise).
func byTime(m interface{ Timestep(t float32) *mlx.Array }) func(in *transformer.Inputs, at scheduler.Interval) {
	return func(in *transformer.Inputs, at scheduler.Interval) { in.Timestep = m.Timestep(at.Timestep / 1000) }
}

// kvTransformer is a transformer that may keep a KV cache between steps, for sequences of a type S.
type kvTransformer[S any] interface {
	Timestep(t float32) *mlx.Array
	// Pass is a step without a cache.
	Pass(in transformer.Inputs, s S) transformer.Pass
	// Extract is a step that fills the cache.
	Extract(in transformer.Inputs, s S) (*mlx.Array, transformer.KVCache)
	// CachedPass is a step that reads it.
	CachedPass(in transformer.Inputs, s S) transformer.Pass
}

// kvPredictor returns a predictor for a transformer that takes the text and the references of in, and
// latents in dtype. If cached is set, it fills a KV cache in the first step and reads it in the next ones.
func kvPredictor[S splitter](c Conditioning, compile Compiler, m kvTransformer[S], s S, in transformer.Inputs, dtype mlx.Dtype,
	cached bool,
) Predictor {
	if cached {
		return predictor(kvForward(c, compile, m, s), in, dtype, byTime(m))
	}
	return predictor(newForward(c, compile, s, m.Pass), in, dtype, byTime(m))
}

// kvForward returns a function that fills a KV cache at its first call and reads it at the next ones, of
// which a step cache may leave out parts of the pass.
func kvForward[S splitter](c Conditioning, compile Compiler, m kvTransformer[S], s S) forward {
	type outputs struct {
		Velocity *mlx.Array
		Cache    transformer.KVCache
	}
	fill := mlx.Named(compile, func(in transformer.Inputs) (out outputs) {
		out.Velocity, out.Cache = m.Extract(in, s)
		return out
	})
	read := newForward(c, compile, s, m.CachedPass)
	var cache *transformer.KVCache
	return func(in transformer.Inputs) *mlx.Array {
		if cache != nil {
			in.Cache = *cache
			return read(in)
		}
		out := fill(in)
		cache = &out.Cache
		c.Keep(cache.Keys...)
		c.Keep(cache.Values...)
		return out.Velocity
	}
}
