package textenc

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// steps are compiled functions for one token. Each has what is between the attention of one layer and that
// of the next, so that its arrays have the same shapes for every token; the first begins with ids, and
// the last ends with the logits. Attention itself, over the tokens so far, is between them.
type steps struct {
	model  *CausalLM
	parts  []func([]*mlx.Array) []*mlx.Array
	ranges [][2]int // of each part, the layers whose attention is before and after it
	frees  []func()
}

func (s *steps) free() {
	for _, free := range s.frees {
		free()
	}
}

func newSteps(m *CausalLM, mode mlx.CompileMode) *steps {
	s := &steps{model: m}
	layers, before := m.Model.decoder().Layers, -1
	for i := range len(layers) + 1 {
		if i < len(layers) && layers[i].LinearAttn != nil {
			continue
		}
		from := before
		run, free := mlx.CompileUntil(mode, func(in []*mlx.Array) []*mlx.Array { return s.part(from, i, in) })
		s.parts, s.ranges, s.frees = append(s.parts, run), append(s.ranges, [2]int{from, i}), append(s.frees, free)
		before = i
	}
	return s
}

// part computes what is between the attention of one layer, -1 before the first, and another. Its inputs are
// the cos and sin of the rotary embedding, then ids, or the input of the layer, its attention and maybe its
// gate, then the states of linear layers. Its outputs are the input of the next layer, its queries, keys,
// values and maybe gate, or the logits; then the new states.
func (s *steps) part(from, to int, in []*mlx.Array) (out []*mlx.Array) {
	m := s.model
	d := m.Model.decoder()
	rope, next := nn.Rope{Cos: in[0], Sin: in[1]}, in[2:]
	take := func() (x *mlx.Array) {
		x, next = next[0], next[1:]
		return x
	}
	p := &pass{cache: &Cache{layers: make([]layerCache, len(d.Layers))}, batch: in[2].Dim(0), tokens: 1, dtype: m.dtype, rope: rope}
	x, more := take(), (*mlx.Array)(nil) // its summands
	if from < 0 {
		x = nn.WidenFP16(d.EmbedTokens.Gather(x, m.dtype))
	} else {
		l := d.Layers[from]
		y, gated := take(), projected{}
		if l.SelfAttn.gated {
			gated.gate = take()
		}
		x, more = l.after(x, l.SelfAttn.output(gated, y, m.dtype), m.dtype)
	}
	for i := from + 1; i < to; i++ {
		l := d.Layers[i]
		p.cache.layers[i] = layerCache{take(), take()}
		var y *mlx.Array
		x, y = addThenNorm(l.InputLayerNorm, x, more)
		x, more = l.after(x, l.LinearAttn.Forward(y.AsType(m.dtype), p), m.dtype)
	}
	if to < len(d.Layers) {
		l := d.Layers[to]
		x, y := addThenNorm(l.InputLayerNorm, x, more)
		q := l.SelfAttn.project(y.AsType(m.dtype), rope)
		if out = []*mlx.Array{x, q.q, q.k, q.v}; q.gate != nil {
			out = append(out, q.gate)
		}
	} else {
		_, y := addThenNorm(d.Norm, x, more)
		out = []*mlx.Array{m.LMHead.ForwardWide(y, m.dtype).AsType(mlx.Float32)}
	}
	for _, l := range p.cache.layers[from+1 : to] {
		out = append(out, l[:]...)
	}
	return out
}

// step is logits for one token [B, 1], which is text, after those in a cache.
func (m *CausalLM) step(ids *mlx.Array, p *pass) *mlx.Array {
	c := p.cache
	if c.steps == nil {
		c.steps = newSteps(m, c.mode)
	}
	m.Model.begin(p)
	layers, carried := m.Model.decoder().Layers, []*mlx.Array{ids}
	for i, run := range c.steps.parts {
		from, to := c.steps.ranges[i][0], c.steps.ranges[i][1]
		in := append([]*mlx.Array{p.rope.Cos, p.rope.Sin}, carried...)
		for _, l := range c.layers[from+1 : to] {
			in = append(in, l[:]...)
		}
		out := run(in)
		states := out[len(out)-2*(to-from-1):]
		for j := range states[:len(states)/2] {
			c.layers[from+1+j].set(states[2*j], states[2*j+1])
		}
		out = out[:len(out)-len(states)]
		if to == len(layers) {
			carried = out
			break
		}
		y := layers[to].SelfAttn.attend(projected{q: out[1], k: out[2], v: out[3]}, p)
		carried = append([]*mlx.Array{out[0], y}, slices.Clone(out[4:])...)
	}
	p.end()
	return carried[0]
}
