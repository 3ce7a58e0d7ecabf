package hints

import (
	"fmt"
	"math"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Attention is computed anew with about manyScores scores: of some heads, if all have more. One head
// may have mostScores.
const (
	manyScores = 1 << 25
	mostScores = 1 << 28
)

// An attention has what the reference's attention is computed from, and the ways in which it
// may be computed. The reference's is the first that gives its tensor; ours is then looked for
// among those that differ from it in one respect.
type attention struct {
	q, k, v   *mlx.Array // [B, H, L, D], q and k before the rotation
	rotations []rotation // the reference uses one of the first two
	masks     []mask
	text      int                           // tokens of the text, where the image's follow in the same sequence
	unscaled  bool                          // scores are not scaled by 1/√D
	cut       func(y *mlx.Array) *mlx.Array // the part of the result [B, L, H·D] that is wrong; nil is all
	byHead    bool                          // a mask has another bias for each head
}

// A rotation is a way to apply rotary embeddings, with the key of the hint if ours uses it.
type rotation struct {
	key, name string
	f         func(x *mlx.Array) *mlx.Array
}

var unrotated = rotation{"rope layout", "no rotation", func(x *mlx.Array) *mlx.Array { return x }}

// rotations returns the ways to rotate by a table.
func rotations(rope nn.Rope) []rotation {
	back := nn.Rope{Cos: rope.Cos, Sin: rope.Sin.Neg()}
	return []rotation{
		{"rope layout", "interleaved pairs", rope.Interleaved},
		{"rope layout", "half-split pairs", rope.HalfSplit},
		{"rope layout", "interleaved pairs turned backwards", back.Interleaved},
		{"rope layout", "half-split pairs turned backwards", back.HalfSplit},
		unrotated,
	}
}

// A mask decides which tokens attend to which others; f computes attention with it, the scores
// being scaled. If the two sides differ in it, the hint has the reference's key, or ours if that
// is empty.
type mask struct {
	key, name string
	f         func(q, k, v *mlx.Array, scale float64) *mlx.Array
}

var open = mask{"", "no mask", func(q, k, v *mlx.Array, scale float64) *mlx.Array {
	return mlx.Attention(q, k, v, float32(scale), nil)
}}

var causal = mask{"attention mask", "a causal mask", func(q, k, v *mlx.Array, scale float64) *mlx.Array {
	return mlx.CausalAttention(q, k, v, float32(scale))
}}

// apart is attention where the first n tokens and the others see only themselves.
func apart(n int) mask {
	return mask{"one stream", "text and image that see only themselves", func(q, k, v *mlx.Array, scale float64) *mlx.Array {
		part := func(from, to int) *mlx.Array {
			return mlx.Attention(q.Slice(2, from, to), k.Slice(2, from, to), v.Slice(2, from, to), float32(scale), nil)
		}
		return mlx.Concat(2, part(0, n), part(n, q.Dim(2)))
	}}
}

// A method is one way to compute an attention.
type method struct {
	rotation     rotation
	mask         mask
	scale        float64
	cast, in     mlx.Dtype // what q, k and v have been cast to, and what the rest is computed in
	imageFirst   bool      // joined as [image, text] instead of [text, image]
	splitSwapped bool      // the result is split as [image, text]
}

// rotateTokens moves the first n tokens of an axis to its end.
func rotateTokens(x *mlx.Array, axis, n int) *mlx.Array {
	return mlx.Concat(axis, x.Slice(axis, n, x.Dim(axis)), x.Slice(axis, 0, n))
}

func (a *attention) compute(m method) tensor {
	l := a.q.Dim(2)
	enter := func(x *mlx.Array, rotate func(*mlx.Array) *mlx.Array) *mlx.Array {
		if m.imageFirst {
			x = rotateTokens(x, 2, a.text)
		}
		return rotate(x).AsType(m.cast).AsType(m.in)
	}
	y := m.mask.f(enter(a.q, m.rotation.f), enter(a.k, m.rotation.f), enter(a.v, unrotated.f), m.scale)
	y = nn.MergeHeads(y).AsType(mlx.Float32)
	if m.imageFirst {
		y = rotateTokens(y, 1, l-a.text)
	}
	if m.splitSwapped {
		y = rotateTokens(y, 1, a.text)
	}
	if a.cut != nil {
		y = a.cut(y)
	}
	return hostTensor("", y)
}

// attention explains what leaves attention, and q and k as they enter it.
func (s *search) attention() {
	module, ok := s.attentionModule()
	if !ok {
		return
	}
	if s.Name.Point.Kind == hooks.Inner {
		if x, ok := s.beforeRotation(module); ok {
			s.pairs(x)
		}
		return
	}
	whole := s.unparted()
	for _, find := range []func(*search, string) *attention{enteredAttention, rotatedAttention} {
		a := find(whole, module)
		if len(s.hints) > 0 || a == nil {
			continue
		}
		q := s.whole
		if n, rows := a.q.Dim(2), q.Ours.Dim(0); q.Ours.Ndim() == 2 && n < rows { // q, k and v are of the first window
			q = q.cut(part{q.Ours.Shape(), 0, 0, n})
		}
		tokens := a.q.Dim(2)
		if a, q = a.narrow(q); a == nil {
			s.limits = append(s.limits, fmt.Sprintf("attention of %d tokens is too long to be computed with known mistakes", tokens))
			continue
		}
		if other := newSearch(q); other.off > 0 && other.part == nil {
			other.attended(a)
			s.hints = other.hints
		}
	}
}

// unparted returns a search with the shapes, but not the values, of the whole tensor.
func (s *search) unparted() *search {
	shape := s.whole.Ours.Shape()
	return &search{Question: s.whole, whole: s.whole, got: tensor{shape: shape}, want: tensor{shape: shape}}
}

// narrow returns an attention of a few heads, and the question about their features, if all would
// be too much to compute; nil if one head is.
func (a *attention) narrow(q Question) (*attention, Question) {
	heads, tokens, dim := a.q.Dim(1), a.q.Dim(2), a.q.Dim(3)
	group := max(1, heads/a.k.Dim(1)) // query heads of one key
	scores := tokens * a.k.Dim(2)
	n := min(heads, max(group, min(manyScores/scores, maxValues/(tokens*dim))/group*group))
	switch {
	case n == heads && q.Ours.Size() <= maxValues:
		return a, q
	case group*scores > mostScores || a.byHead || a.k.Dim(1) != a.v.Dim(1) || q.Ours.Dim(-1) < heads*dim:
		return nil, q
	}
	axis := q.Ours.Ndim() - 1
	wrong := q.worst(axis, group*dim)
	from := min(wrong.from/(group*dim)*group, heads-n) // the first of the heads
	b := *a
	b.q = a.q.Slice(1, from, from+n)
	b.k, b.v = a.k.Slice(1, from/group, (from+n)/group), a.v.Slice(1, from/group, (from+n)/group)
	b.cut = func(y *mlx.Array) *mlx.Array {
		if a.cut != nil {
			y = a.cut(y)
		}
		return y.Slice(2, 0, n*dim) // features of an MLP may follow
	}
	features := part{q.Ours.Shape(), axis, from * dim, (from + n) * dim}
	q.Ours, q.Reference = features.of(q.Ours), features.of(q.Reference)
	return &b, q
}

// attentionModule returns the attention that the wrong tensor is of: an inner value, an input of
// the projection of its result, or its output where it has no such projection.
func (s *search) attentionModule() (string, bool) {
	module := s.Name.Module
	switch s.Name.Point.Kind {
	case hooks.Inner:
		return module, true
	case hooks.Input:
		module = strings.TrimSuffix(hooks.Parent(module), ".to_out")
		word := strings.ToLower(module)
		return module, strings.Contains(word, "attn") || strings.Contains(word, "attention")
	}
	return module, strings.HasSuffix(module, ".attn") || strings.HasSuffix(module, ".attention")
}

// attended explains the result of attention.
func (s *search) attended(a *attention) {
	for i, r := range a.rotations[:min(2, len(a.rotations))] {
		for k, m := range a.masks {
			ref := method{rotation: r, mask: m, scale: 1 / math.Sqrt(float64(a.q.Dim(3))), cast: mlx.Float32, in: mlx.Float32}
			if a.unscaled {
				ref.scale = 1
			}
			if s.isReference(a.compute(ref)) {
				s.try(a.variants(ref, i, k)...)
				return
			}
		}
	}
}

// variants are the mistakes: methods that differ in one respect from the reference's, which
// uses the given rotation and mask of its lists.
func (a *attention) variants(ref method, usedRotation, usedMask int) (out []variant) {
	add := func(key, text string, change func(m *method)) {
		out = append(out, variant{key, "attention: " + text, func() tensor {
			m := ref
			change(&m)
			return a.compute(m)
		}})
	}
	root := math.Sqrt(float64(a.q.Dim(3)))
	for _, scale := range []float64{1, 1 / root, 1 / (root * root)} {
		if scale != ref.scale {
			text := fmt.Sprintf("scores are scaled by %.4g, in the reference by %.4g (1/√D is %.4g)", scale, ref.scale, 1/root)
			add("attention scale", text, func(m *method) { m.scale = scale })
		}
	}
	for i, other := range a.masks {
		if i == usedMask {
			continue
		}
		key := ref.mask.key
		if key == "" {
			key = other.key
		}
		add(key, fmt.Sprintf("ours has %s, the reference %s", other.name, ref.mask.name), func(m *method) { m.mask = other })
	}
	for _, dtype := range []mlx.Dtype{mlx.BFloat16, mlx.Float16} {
		add("lost upcast", fmt.Sprintf("it is computed in %v", dtype), func(m *method) { m.cast, m.in = dtype, dtype })
		add("lost upcast", fmt.Sprintf("q, k and v have been in %v", dtype), func(m *method) { m.cast = dtype })
	}
	for i, other := range a.rotations {
		if i != usedRotation {
			add(other.key, fmt.Sprintf("RoPE: ours has %s, the reference %s", other.name, ref.rotation.name),
				func(m *method) { m.rotation = other })
		}
	}
	if a.text > 0 && a.text < a.q.Dim(2) {
		add("order of streams", "image and text are joined as [image, text], but the rotary tables are those of [text, image]",
			func(m *method) { m.imageFirst = true })
		add("order of streams", "the result is split as if it were [image, text], and is [text, image]",
			func(m *method) { m.splitSwapped = true })
	}
	return out
}
