package textenc

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A step is a compiled function for one token after others. It gets the arrays of the cache, with equal shapes
// for every token, so that Go queues one function for a token, and MLX the same graph each time.
type step struct {
	run  func([]*mlx.Array) []*mlx.Array
	free func()
}

// steps reports whether a pass can be a step, and prepares it.
func (m *CausalLM) steps(p *pass, images []VisionInput) bool {
	c := p.cache
	if c.mode == 0 || p.tokens > 1 || len(images) > 0 || p.mask != nil || c.tokens == 0 || m.Observed() {
		return false
	}
	if c.recent == mlx.TailTokens {
		c.settle()
	}
	if c.table[0] == nil {
		ahead := newPass(c, p.batch, mlx.TailTokens, p.dtype)
		for _, pass := range []*pass{p, ahead} {
			if m.Model.begin(pass); pass.queries != nil {
				return false
			}
		}
		c.table.set(0, ahead.rope.Cos, ahead.rope.Sin, mlx.NewPositions(c.tokens))
	}
	return true
}

// states returns which arrays of the layer's cache a step gets, [0, all), and which it changes, [from, all).
func (l *qwen3Layer) states() (from, all int) {
	if l.LinearAttn != nil {
		return 0, 2
	}
	return 2, 3
}

// step returns logits for ids [B, 1] of a pass for which steps was true.
func (m *CausalLM) step(ids *mlx.Array, p *pass) *mlx.Array {
	c := p.cache
	if c.step == nil {
		run, free := mlx.CompileUntil(c.mode, m.token)
		c.step = &step{run, free}
	}
	in := []*mlx.Array{ids}
	for _, rows := range c.table {
		in = append(in, rows.Slice(-2, c.recent, c.recent+1))
	}
	layers := m.Model.decoder().Layers
	for i, l := range layers {
		_, all := l.states()
		if all == 3 && c.layers[i][2] == nil {
			c.layers[i].set(2, mlx.NewTail(c.layers[i][0]))
		}
		in = append(in, c.layers[i][:all]...)
	}
	out := c.step.run(in)
	logits, changed := out[0], out[1:]
	for i, l := range layers {
		from, all := l.states()
		c.layers[i].set(from, changed[:all-from]...)
		changed = changed[all-from:]
	}
	c.recent++
	p.end()
	return logits
}

// token is the function of a step. It returns the logits and the arrays of the cache that change.
func (m *CausalLM) token(in []*mlx.Array) (out []*mlx.Array) {
	d := m.Model.decoder()
	c := &Cache{layers: make([]keptArrays, len(d.Layers))}
	p := &pass{cache: c, batch: in[0].Dim(0), tokens: 1, dtype: m.dtype, rope: nn.Rope{Cos: in[1], Sin: in[2]}, position: in[3]}
	x, more := nn.WidenFP16(d.EmbedTokens.Gather(in[0], m.dtype)), (*mlx.Array)(nil) // summands
	in = in[4:]
	for i, l := range d.Layers {
		from, all := l.states()
		in = in[copy(c.layers[i][:all], in):]
		x, more = l.next(x, more, p)
		out = append(out, c.layers[i][from:all]...)
	}
	_, y := addThenNorm(d.Norm, x, more)
	return slices.Insert(out, 0, m.LMHead.ForwardWide(y, m.dtype).AsType(mlx.Float32))
}

// next is Forward in a step: it returns two summands of the output for those of the input, of which more may be nil.
func (l *qwen3Layer) next(x, more *mlx.Array, p *pass) (*mlx.Array, *mlx.Array) {
	var attention *mlx.Array
	if sum, qkv := l.qkv(x, more); qkv != nil {
		x, attention = sum, l.SelfAttn.attend(qkv, p)
	} else {
		var y *mlx.Array
		x, y = addThenNorm(l.InputLayerNorm, x, more)
		attention = l.attend(y.AsType(p.dtype), p)
	}
	if sum, y := l.MLP.GateUp.Row(l.PostAttentionLayerNorm, x, attention, true); y != nil {
		return sum, l.MLP.DownProj.ForwardWide(y[0].X, p.dtype)
	}
	return l.after(x, attention, p.dtype)
}

// qkv returns the sum of x and more, and the projections of its norm, nil if no kernel computes them.
func (l *qwen3Layer) qkv(x, more *mlx.Array) (sum *mlx.Array, columns []mlx.Columns) {
	if l.SelfAttn == nil {
		return nil, nil
	}
	return l.SelfAttn.QKV.Row(l.InputLayerNorm, x, more, false)
}

// tokenCache returns a layer's cache in a step.
func (p *pass) tokenCache(layer int) mlx.TokenCache {
	c := p.cache.layers[layer]
	return mlx.TokenCache{Keys: c[0], Values: c[1], Tail: c[2], Position: p.position}
}
