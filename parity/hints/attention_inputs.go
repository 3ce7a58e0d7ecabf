package hints

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// enteredAttention finds q, k and v as they enter the attention of a text encoder: with a
// causal mask, with pads, or with T5's bias.
func enteredAttention(s *search, module string) *attention {
	a := &attention{q: s.array(module, inner(hooks.Q)), k: s.array(module, inner(hooks.K)), v: s.array(module, inner(hooks.V))}
	if a.q == nil || a.k == nil || a.v == nil || a.q.Ndim() != 4 || !s.isInput() || !strings.HasPrefix(module, "text_encoder") {
		return nil
	}
	a.rotations = []rotation{unrotated}
	n := a.q.Dim(2)
	first, _, _ := strings.Cut(module, ".block.")
	bias := s.array(first+".block.0.layer.0.SelfAttention", hooks.Point{Key: "1"})
	if bias != nil && slices.Equal(bias.Shape(), []int{1, a.q.Dim(1), n, n}) {
		biased := func(name string, bias *mlx.Array) mask {
			return mask{"position bias", name, func(q, k, v *mlx.Array, scale float64) *mlx.Array {
				return mlx.Attention(q, k, v, float32(scale), bias.AsType(q.Dtype()))
			}}
		}
		a.unscaled, a.byHead = true, true
		a.masks = []mask{biased("a bias of positions", bias), open,
			biased("a bias of positions with queries and keys exchanged", bias.Transpose(0, 1, 3, 2))}
		return a
	}
	a.masks = append(s.padded(n), causal, open)
	return a
}

// padded returns the mask of a prompt that is padded to n tokens, if it is.
func (s *search) padded(n int) []mask {
	prompt := []string{"prompt", "negative"}[min(1, s.Name.Call)]
	tokens := s.Tensor(hooks.Name{Module: prompt + ".attention_mask", Step: -1})
	if tokens == nil || tokens.Size() != n {
		return nil
	}
	valid := int(tokens.AsType(mlx.Float32).Reshape(-1).Sum(0).Floats()[0])
	if valid == 0 || valid == n {
		return nil
	}
	return []mask{{"pads", "a causal mask that hides pads too", func(q, k, v *mlx.Array, scale float64) *mlx.Array {
		q = q.Times(scale * math.Sqrt(float64(q.Dim(3)))) // which scales by 1/√D itself
		return nn.PaddedCausalAttention(q, k, v, valid)
	}}}
}

// rotatedAttention finds q and k before their rotation, v, and the rotary table: of a text
// encoder, or of a transformer with a stream for text and one for the image, or with a single
// stream.
func rotatedAttention(s *search, module string) *attention {
	q, k := s.unrotated(module, hooks.Q), s.unrotated(module, hooks.K)
	if q == nil || k == nil {
		return nil
	}
	l, d, v := q.Dim(2), q.Dim(3), s.values(module, k.Dim(1))
	rope, ok := s.rotaryTable(module, l, d)
	if !ok || v == nil || k.Dim(2) != l || v.Dim(2) != l {
		return nil
	}
	if b, h, n := k.Dim(0), k.Dim(1), v.Dim(1)/k.Dim(1); n > 1 { // the values are repeated for grouped queries already
		k = k.ExpandDims(2).BroadcastTo(b, h, n, l, d).Reshape(b, h*n, l, d)
	}
	a := &attention{q: q, k: k, v: v, rotations: rotations(rope), masks: []mask{open, causal}}
	if c := s.array(module+".norm_added_q", hooks.Point{}); c != nil {
		a.text = c.Dim(1)
		a.masks = append(a.masks, apart(a.text))
	}
	if strings.HasPrefix(module, "text_encoder") { // where positions are counted
		positions := make([][]int, l)
		for i := range positions {
			positions[i] = []int{i}
		}
		for _, theta := range []float64{1e4, 1e5, 5e5, 1e6, 1e7} {
			other := nn.NewRope(positions, []int{d}, theta)
			a.rotations = append(a.rotations, rotation{"rope theta", fmt.Sprintf("a theta of %g", theta), other.HalfSplit})
		}
	}
	n, mlp := s.want.shape[1], s.array(module+".mlp_act_fn", hooks.Point{})
	a.cut = func(y *mlx.Array) *mlx.Array {
		switch {
		case strings.HasSuffix(s.Name.Module, ".to_add_out"):
			return y.Slice(1, 0, n)
		case n < l:
			return y.Slice(1, l-n, l)
		case mlp != nil && strings.HasSuffix(s.Name.Module, ".to_out"):
			return mlx.Concat(2, y, mlp) // a block with one stream projects both
		}
		return y
	}
	return a
}

// streams returns an output of a module's text stream joined with one of its image stream, or
// the latter if there is no text stream.
func (s *search) streams(module, text, image string) *mlx.Array {
	c, x := s.array(module+"."+text, hooks.Point{}), s.array(module+"."+image, hooks.Point{})
	if c != nil && x != nil {
		return mlx.Concat(1, c, x)
	}
	return x
}

// lengthFirst reports whether q, k and v of a module are recorded as [B, L, H, D].
func lengthFirst(module string) bool { return strings.HasPrefix(module, "transformer.") }

func headsFirst(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1, 3) }

// unrotated returns q or k of a module before their rotation [B, H, L, D], or nil: as recorded,
// or as their norm returns them.
func (s *search) unrotated(module, key string) *mlx.Array {
	x := s.array(module, inner(key+".unrotated"))
	if x != nil && !lengthFirst(module) {
		return x
	}
	if x == nil {
		x = s.streams(module, "norm_added_"+key, "norm_"+key)
	}
	if x == nil {
		x = s.array(module+"."+key+"_norm", hooks.Point{})
	}
	if x == nil || x.Ndim() != 4 {
		return nil
	}
	return headsFirst(x)
}

// values returns v of a module [B, H, L, D], or nil.
func (s *search) values(module string, heads int) *mlx.Array {
	if v := s.array(module, inner(hooks.V)); v != nil && lengthFirst(module) {
		return headsFirst(v)
	} else if v != nil {
		return v
	}
	v := s.streams(module, "add_v_proj", "to_v")
	if v == nil {
		v = s.array(module+".v_proj", hooks.Point{})
	}
	if v == nil || v.Ndim() != 3 {
		return nil
	}
	return nn.Heads(v, heads)
}

// rotaryTable returns the rotary table that a module gets, for l tokens and d features.
func (s *search) rotaryTable(module string, l, d int) (r nn.Rope, ok bool) {
	paired := func(x *mlx.Array) nn.Rope { // [L, D/2, 2]
		parts := x.Split(2, 2)
		return nn.Rope{Cos: parts[0].Squeeze(2), Sin: parts[1].Squeeze(2)}
	}
	// Columns are there twice: next to each other in [L, D], and as two halves in [B, L, D].
	doubled := func(x *mlx.Array) *mlx.Array { return x.Reshape(x.Dim(0), -1, 2).Slice(2, 0, 1).Squeeze(2) }
	halves := func(x *mlx.Array) *mlx.Array { return x.Slice(0, 0, 1).Squeeze(0).Slice(1, 0, x.Dim(2)/2) }
	in := func(key string) *mlx.Array { return s.array(module, input(key)) }
	freqs := in("freqs_cis")
	image, text := in("image_rotary_emb.0"), in("image_rotary_emb.1") // or cosines and sines
	cos, sin := in("position_embeddings.0"), in("position_embeddings.1")
	switch {
	case freqs != nil && freqs.Ndim() == 4: // Z-Image
		r = paired(freqs.Slice(0, 0, 1).Squeeze(0))
	case image != nil && text != nil && image.Ndim() == 3: // Qwen-Image
		r = paired(mlx.Concat(0, text, image))
	case image != nil && text != nil && image.Ndim() == 2: // FLUX
		r = nn.Rope{Cos: doubled(image), Sin: doubled(text)}
	case cos != nil && sin != nil && cos.Ndim() == 3: // text encoders
		r = nn.Rope{Cos: halves(cos), Sin: halves(sin)}
	default:
		return r, false
	}
	return r, slices.Equal(r.Cos.Shape(), []int{l, d / 2})
}

// beforeRotation returns the wrong q or k as it is before its rotation.
func (s *search) beforeRotation(module string) (tensor, bool) {
	key, shape := s.Name.Point.Key, s.want.shape
	part, ok := map[string]int{hooks.Q: 0, hooks.K: 1}[key]
	if !ok || len(shape) != 4 {
		return tensor{}, false
	}
	x := s.unrotated(module, key)
	if qkv := s.array(module+".qkv", hooks.Point{}); x == nil && qkv != nil && qkv.Ndim() == 2 && qkv.Dim(0) >= shape[2] {
		x = nn.Heads(qkv.Split(3, 1)[part].Slice(0, 0, shape[2]).ExpandDims(0), shape[1]) // recorded of the first window
	}
	if x != nil && lengthFirst(module) {
		x = headsFirst(x)
	}
	if x == nil || !slices.Equal(x.Shape(), shape) {
		return tensor{}, false
	}
	return hostTensor("", x), true
}

// pairs finds out, without a rotary table, which features of q or k are rotated together: the
// length of each pair stays.
func (s *search) pairs(x tensor) {
	d := x.last()
	lengths := func(t tensor, halfSplit bool) tensor {
		out := tensor{shape: slices.Clone(t.shape), v: make([]float64, 0, len(t.v)/2)}
		out.shape[len(out.shape)-1] /= 2
		for i := 0; i < len(t.v); i += d {
			for k := range d / 2 {
				a, b := t.v[i+2*k], t.v[i+2*k+1]
				if halfSplit {
					a, b = t.v[i+k], t.v[i+k+d/2]
				}
				out.v = append(out.v, math.Hypot(a, b))
			}
		}
		return out
	}
	name := func(t tensor) string {
		same := func(a, b tensor) bool { return distance(a, b) <= 1e-3*norm(x) }
		interleaved, half := same(lengths(t, false), lengths(x, false)), same(lengths(t, true), lengths(x, true))
		switch {
		case same(t, x):
			return "no rotation"
		case interleaved && !half:
			return "interleaved pairs"
		case half && !interleaved:
			return "half-split pairs"
		}
		return ""
	}
	switch ours, ref := name(s.got), name(s.want); {
	case ref == "":
	case ours == "":
		half := ref == "half-split pairs"
		if o, ok := s.orderAlong(lengths(s.want, half), lengths(s.got, half), 1); ok {
			s.say("order of streams", "RoPE: the tokens are %s before they are rotated", o.text)
		}
	case ours != ref:
		s.say("rope layout", "RoPE: ours has %s, the reference %s", ours, ref)
	case s.off > 1e-2*norm(x):
		s.say("rope angles", "RoPE: both have %s, the angles differ: other positions, theta, or direction", ours)
	}
}
