package parity

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// This file has the hints about what FLUX has of its own: attention over joined
// streams, positions, several text encoders, and patches.

// row is one along the last axis.
func (t tensor) row(i int) tensor {
	d := t.last()
	return tensor{t.name, []int{d}, t.v[i*d : (i+1)*d]}
}

// columns are some of the last axis.
func (t tensor) columns(from, to int) tensor {
	d := t.last()
	shape := slices.Clone(t.shape)
	shape[len(shape)-1] = to - from
	out := tensor{t.name, shape, make([]float64, 0, len(t.v)/d*(to-from))}
	for i := 0; i < len(t.v); i += d {
		out.v = append(out.v, t.v[i+from:i+to]...)
	}
	return out
}

// positions compares tables of positions, one column for each axis.
func (s *search) positions() {
	key := s.name.Point.Key
	if s.name.Point.Kind != hooks.Input || !strings.HasSuffix(s.name.Module, "pos_embed") && !strings.HasSuffix(key, "_ids") || s.want.last() > 8 || len(s.want.v) == s.want.last() {
		return
	}
	for axis := range s.want.last() {
		got, want := s.got.columns(axis, axis+1), s.want.columns(axis, axis+1)
		for i, w := range want.v {
			if g := got.v[i]; g != w {
				s.say("positions", "axis %d of the positions is %g for token %d, in the reference %g", axis, g, i, w)
				return
			}
		}
	}
}

// hiddenLayers looks for the layers whose outputs lie side by side in a prompt's
// embeds.
func (s *search) hiddenLayers() {
	if s.name.Module != "prompt.embeds" && s.name.Module != "negative.embeds" {
		return
	}
	call := 0
	if s.name.Module == "negative.embeds" {
		call = 1
	}
	d := 0
	var layers []tensor
	for _, name := range s.r.ref.Names() {
		n, err := hooks.ParseName(name)
		if err != nil || n.Call != call || n.Point != (hooks.Point{}) || !strings.HasPrefix(n.Module, "text_encoder") || !strings.HasSuffix(parentOf(n.Module), ".layers") {
			continue
		}
		if a := s.r.ref.Array(name); a.Size() <= maxHinted {
			layers = append(layers, hostTensor(n.Module, a))
			d = layers[0].last()
		}
	}
	if d == 0 || s.want.last()%d != 0 || s.want.last() == d {
		return
	}
	of := func(part tensor) string {
		for _, l := range layers {
			if len(l.v) == len(part.v) && distance(l, part) <= 1e-3*norm(part) {
				return l.name
			}
		}
		return ""
	}
	var ours, refs []string
	for at := 0; at < s.want.last(); at += d {
		ours = append(ours, of(s.got.columns(at, at+d)))
		refs = append(refs, of(s.want.columns(at, at+d)))
	}
	if !slices.Equal(ours, refs) && !slices.Contains(ours, "") {
		s.say("hidden layer", "ours are the hidden states of %s, the reference's those of %s", strings.Join(ours, ", "), strings.Join(refs, ", "))
	}
}

// pooledRow looks for the token whose row is CLIP's pooled output.
func (s *search) pooledRow() {
	if !strings.HasSuffix(s.name.Module, ".pooled_embeds") {
		return
	}
	call := 0
	if strings.HasPrefix(s.name.Module, "negative") {
		call = 1
	}
	states := s.r.ref.Array(hooks.Name{Module: "text_encoder.final_layer_norm", Step: -1, Call: call}.String())
	if states == nil || states.Size() > maxHinted || states.Ndim() != 3 || states.Dim(2) != s.want.last() {
		return
	}
	t := hostTensor("", states)
	find := func(x tensor) int {
		for i := range len(t.v) / t.last() {
			if distance(t.row(i), x) <= 1e-3*norm(x) {
				return i
			}
		}
		return -1
	}
	if ours, ref := find(s.got), find(s.want); ours >= 0 && ours != ref {
		s.say("pooled row", "ours is the state of token %d, the reference's that of token %d, the first end token", ours, ref)
	}
}

// guidance compares how the predictions for prompt and negative prompt are
// joined, where these are calls.
func (s *search) guidance() {
	if s.name.Module != "noise_pred" || s.name.Step < 0 || len(s.want.shape) != 4 {
		return
	}
	var both [2]tensor
	for call := range both {
		a := s.r.ref.Array(hooks.Name{Module: "transformer", Step: s.name.Step, Call: call}.String())
		if a == nil || a.Ndim() != 3 || a.Dim(2) != s.want.shape[1] || a.Size() != len(s.want.v) {
			return // FLUX.2's tokens are the latents' own
		}
		both[call] = hostTensor("", a.Transpose(0, 2, 1))
	}
	dot := func(a, b tensor) float64 {
		sum := 0.0
		for i, x := range a.v {
			sum += x * b.v[i]
		}
		return sum
	}
	p, n := both[0], both[1]
	pp, pn, nn := dot(p, p), dot(p, n), dot(n, n)
	det := pp*nn - pn*pn
	if !(det > 1e-9*pp*nn) {
		return
	}
	// parts of both in a tensor, by least squares
	parts := func(x tensor) (a, b float64, made tensor) {
		xp, xn := dot(x, p), dot(x, n)
		a, b = (xp*nn-xn*pn)/det, (xn*pp-xp*pn)/det
		return a, b, p.with(n, func(x, y float64) float64 { return a*x + b*y })
	}
	a, b, ours := parts(s.got)
	c, d, ref := parts(s.want)
	if s.fits(ours) && s.isReference(ref) {
		s.say("guidance", "ours is %.4g times the prediction for the prompt and %.4g times that for the negative prompt, the reference %.4g and %.4g times", a, b, c, d)
	}
}

// packing looks at latents, whose 2×2 patches are channels of the transformer, in
// other orders of channel, row and column, and at their scaling, which may differ
// for each of these.
func (s *search) packing() {
	n := len(s.want.shape)
	tokens := n == 3 && s.want.last()%4 == 0 && (s.name.Module == "transformer" || strings.HasSuffix(s.name.Module, "x_embedder") || strings.HasSuffix(s.name.Module, ".img_in") || strings.HasSuffix(s.name.Module, ".proj_out"))
	patches := n == 4 && s.name.Module == "latents.reference" && s.want.shape[1]%4 == 0
	whole := n == 4 && s.want.shape[2]%2 == 0 && s.want.shape[3]%2 == 0 && slices.Contains([]string{"vae.decode.in", "latents", "noise_pred"}, s.name.Module)
	var want, got tensor // [..., channel, row, column of the patch, ...]
	var first int        // axis of the channel
	split := func(t tensor) tensor {
		x := t.shape
		switch {
		case tokens:
			return t.reshape(x[0], x[1], x[2]/4, 2, 2, 1)
		case patches:
			return t.reshape(x[0], 1, x[1]/4, 2, 2, x[2]*x[3])
		}
		// the patches of each place together, as the others have them
		y := t.reshape(x[0]*x[1], x[2]/2, 2, x[3]/2, 2).permute([]int{0, 2, 4, 1, 3})
		return y.reshape(x[0], 1, x[1], 2, 2, x[2]*x[3]/4)
	}
	if !tokens && !patches && !whole {
		return
	}
	first = 2
	want, got = split(s.want), split(s.got)
	c := want.shape[first]
	if s.off = distance(got, want); s.off == 0 {
		return
	}
	near := func(candidate tensor) bool { return distance(candidate, got) <= 0.1*s.off }
	for _, order := range []struct {
		name string
		axes []int // of [channel, row, column] in the order of the values
	}{
		{"row, column, channel", []int{1, 2, 0}}, {"channel, column, row", []int{0, 2, 1}}, {"column, row, channel", []int{2, 1, 0}},
	} {
		axes := []int{0, 1, first + order.axes[0], first + order.axes[1], first + order.axes[2], 5}
		other := want.permute(axes)
		other.shape = want.shape
		// and the other way round
		sizes := []int{c, 2, 2}
		back := make([]int, 3)
		for i, a := range order.axes {
			back[a] = i
		}
		inverse := want.reshape(want.shape[0], want.shape[1], sizes[order.axes[0]], sizes[order.axes[1]], sizes[order.axes[2]], want.shape[5])
		inverse = inverse.permute([]int{0, 1, first + back[0], first + back[1], first + back[2], 5})
		if near(other) || near(inverse) {
			s.say("packing order", "the features of ours are in the order of %s of each 2×2 patch, or taken for that; the reference's are channel, row, column", order.name)
			return
		}
	}
	if tokens {
		return
	}
	// channels last, so that affine fits each of them by itself
	last := func(t tensor) tensor {
		y := t.permute([]int{0, 1, 5, 2, 3, 4})
		return y.reshape(y.shape[0]*y.shape[2], 4*c)
	}
	x, y := last(want), last(got)
	if len(x.v)/x.last() >= 4 && distance(affine(x, y), y) <= 0.1*s.off {
		s.say("latent scaling", "ours is the reference but for a factor and an offset of each of the %d channels of a patch: the scaling of latents is missing, there twice, or the wrong way round (scaling_factor and shift_factor, or the statistics of bn)", 4*c)
	}
}

// joint explains attention over text and image together, in the blocks that have
// two streams and in those with one. It says whether the module is one of those.
func (s *search) joint(module string) bool {
	get := func(path string, point hooks.Point) *mlx.Array {
		return s.array(hooks.Name{Module: strings.TrimSuffix(module+"."+path, "."), Step: s.name.Step, Call: s.name.Call, Point: point})
	}
	in := func(key string) *mlx.Array { return get("", hooks.Point{Kind: hooks.Input, Key: key}) }
	inner := func(key string) *mlx.Array { return get("", hooks.Point{Kind: hooks.Inner, Key: key}) }
	cos, sin := in("image_rotary_emb.0"), in("image_rotary_emb.1")
	var rope nn.Rope
	half := func(x *mlx.Array, part int) *mlx.Array {
		return x.Reshape(x.Dim(0), -1, 2).Slice(2, part, part+1).Squeeze(2)
	}
	switch {
	case cos == nil || sin == nil:
		return false
	case cos.Ndim() == 3 && sin.Ndim() == 3: // Qwen-Image's of image and of text, complex
		both := mlx.Concat(0, sin, cos)
		rope = nn.Rope{Cos: half(both, 0), Sin: half(both, 1)}
	case cos.Ndim() == 2: // the columns are there twice
		rope = nn.Rope{Cos: half(cos, 0), Sin: half(sin, 0)}
	default:
		return false
	}
	l := rope.Cos.Dim(0)
	text := 0 // tokens of the text, where they are apart
	heads := func(x *mlx.Array, like *mlx.Array) *mlx.Array {
		if x == nil || x.Ndim() == 4 || like == nil {
			return x
		}
		return nn.SplitHeads(x, like.Dim(2))
	}
	joined := func(text, image string, like *mlx.Array) *mlx.Array {
		of := func(path string) *mlx.Array { return heads(get(path, hooks.Point{}), like) }
		c, x := of(text), of(image)
		switch {
		case x == nil:
			return nil
		case c == nil:
			return x
		}
		return mlx.Concat(1, c, x)
	}
	if c := get("norm_added_q", hooks.Point{}); c != nil {
		text = c.Dim(1)
	}
	q, k, v := inner(hooks.QUnrotated), inner(hooks.KUnrotated), inner(hooks.V)
	if q == nil {
		q = joined("norm_added_q", "norm_q", nil)
	}
	if k == nil {
		k = joined("norm_added_k", "norm_k", nil)
	}
	if v == nil {
		v = joined("add_v_proj", "to_v", q)
	}
	if q == nil || k == nil || q.Ndim() != 4 || q.Dim(1) != l || k.Dim(1) != l || q.Dim(3) != 2*rope.Cos.Dim(1) || l > 2048 {
		return true
	}
	headsFirst := func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1, 3) }
	swap := func(x *mlx.Array, at int) *mlx.Array { return mlx.Concat(1, x.Slice(1, at, l), x.Slice(1, 0, at)) }
	back := nn.Rope{Cos: rope.Cos, Sin: rope.Sin.Neg()}
	type rotation struct {
		name string
		f    func(*mlx.Array) *mlx.Array
	}
	right := rotation{"interleaved pairs", rope.Interleaved}
	wrong := []rotation{
		{"half-split pairs", rope.HalfSplit}, {"interleaved pairs turned backwards", back.Interleaved},
		{"no rotation", func(x *mlx.Array) *mlx.Array { return x }},
	}
	if s.name.Point.Kind == hooks.Inner {
		x := map[string]*mlx.Array{hooks.Q: q, hooks.K: k}[s.name.Point.Key]
		if x == nil {
			return true
		}
		made := func(f func(*mlx.Array) *mlx.Array, x *mlx.Array) tensor {
			return hostTensor("", headsFirst(f(headsFirst(x))))
		}
		if !s.isReference(made(right.f, x)) {
			return true
		}
		for _, ours := range wrong {
			if s.fits(made(ours.f, x)) {
				s.say("rope layout", "RoPE: ours has %s, the reference %s", ours.name, right.name)
				return true
			}
		}
		if text > 0 && text < l && (s.fits(made(right.f, swap(x, text))) || s.fits(hostTensor("", swap(headsFirst(right.f(headsFirst(x))), text)))) {
			s.say("order of streams", "%s has image before text, the reference text before image", s.name.Point.Key)
		}
		return true
	}
	if v == nil || v.Ndim() != 4 || v.Dim(1) != l {
		return true
	}
	// what is looked at of all tokens' results [B, L, H·D]
	n := s.want.shape[1]
	mlp := get("mlp_act_fn", hooks.Point{})
	part := func(y *mlx.Array) tensor {
		switch {
		case strings.HasSuffix(s.name.Module, ".to_add_out"):
			y = y.Slice(1, 0, n)
		case n < l:
			y = y.Slice(1, l-n, l)
		case mlp != nil && strings.HasSuffix(s.name.Module, ".to_out"):
			y = mlx.Concat(2, y, mlp)
		}
		return hostTensor("", y)
	}
	scale := 1 / math.Sqrt(float64(q.Dim(3)))
	// through is what q, k and v have been cast to, and in the dtype of the rest
	attendIn := func(rotate func(*mlx.Array) *mlx.Array, q, k, v *mlx.Array, scale float64, through, in mlx.Dtype) *mlx.Array {
		f := func(x *mlx.Array) *mlx.Array { return x.AsType(through).AsType(in) }
		y := mlx.Attention(f(rotate(headsFirst(q))), f(rotate(headsFirst(k))), f(headsFirst(v)), float32(scale), nil)
		return nn.MergeHeads(y).AsType(mlx.Float32)
	}
	attend := func(rotate func(*mlx.Array) *mlx.Array, q, k, v *mlx.Array, scale float64, in mlx.Dtype) *mlx.Array {
		return attendIn(rotate, q, k, v, scale, in, in)
	}
	if !s.isReference(part(attend(right.f, q, k, v, scale, mlx.Float32))) {
		return true
	}
	type way struct {
		key, text string
		value     func() *mlx.Array
	}
	ways := []way{
		{"attention scale", "the scale 1/√D is missing", func() *mlx.Array { return attend(right.f, q, k, v, 1, mlx.Float32) }},
		{"attention scale", "the scale 1/√D is there twice", func() *mlx.Array { return attend(right.f, q, k, v, scale*scale, mlx.Float32) }},
		{"lost upcast", "it is computed in bfloat16", func() *mlx.Array { return attend(right.f, q, k, v, scale, mlx.BFloat16) }},
		{"lost upcast", "it is computed in float16", func() *mlx.Array { return attend(right.f, q, k, v, scale, mlx.Float16) }},
		{"lost upcast", "q, k and v have been in bfloat16", func() *mlx.Array { return attendIn(right.f, q, k, v, scale, mlx.BFloat16, mlx.Float32) }},
		{"lost upcast", "q, k and v have been in float16", func() *mlx.Array { return attendIn(right.f, q, k, v, scale, mlx.Float16, mlx.Float32) }},
		{"attention mask", "there is a causal mask, and should be none", func() *mlx.Array {
			return nn.MergeHeads(nn.CausalAttention(right.f(headsFirst(q)), right.f(headsFirst(k)), headsFirst(v)))
		}},
	}
	for _, ours := range wrong {
		ways = append(ways, way{"rope layout", fmt.Sprintf("RoPE: ours has %s, the reference %s", ours.name, right.name), func() *mlx.Array {
			return attend(ours.f, q, k, v, scale, mlx.Float32)
		}})
	}
	if text > 0 && text < l {
		ways = append(ways,
			way{"order of streams", "image and text are joined as [image, text], but the tables of positions are those of [text, image]", func() *mlx.Array {
				return swap(attend(right.f, swap(q, text), swap(k, text), swap(v, text), scale, mlx.Float32), l-text)
			}},
			way{"order of streams", "the result is taken apart as if it were [image, text], and is [text, image]", func() *mlx.Array {
				return swap(attend(right.f, q, k, v, scale, mlx.Float32), text)
			}},
			way{"one stream", "the image sees only itself, and so does the text", func() *mlx.Array {
				y := right.f(headsFirst(q))
				z := right.f(headsFirst(k))
				only := func(from, to int) *mlx.Array {
					return mlx.Attention(y.Slice(2, from, to), z.Slice(2, from, to), headsFirst(v).Slice(2, from, to), float32(scale), nil)
				}
				return nn.MergeHeads(mlx.Concat(2, only(0, text), only(text, l)))
			}})
	}
	for _, w := range ways {
		if s.fits(part(w.value())) {
			s.say(w.key, "attention: %s", w.text)
			return true
		}
	}
	return true
}

// textAttention explains that of text encoders whose q, k and v are in the
// reference's run as they enter it: causal ones, T5's with its bias, and those
// with pads.
func (s *search) textAttention(module string) {
	get := func(module string, point hooks.Point) *mlx.Array {
		return s.array(hooks.Name{Module: module, Step: -1, Call: s.name.Call, Point: point})
	}
	inner := func(key string) *mlx.Array { return get(module, hooks.Point{Kind: hooks.Inner, Key: key}) }
	q, k, v := inner(hooks.Q), inner(hooks.K), inner(hooks.V)
	if q == nil || k == nil || v == nil || q.Ndim() != 4 || q.Dim(2) > 2048 || s.name.Point.Kind != hooks.Input {
		return
	}
	scale, n := 1/math.Sqrt(float64(q.Dim(3))), q.Dim(2)
	attend := func(scale float64, mask *mlx.Array) tensor {
		return hostTensor("", nn.MergeHeads(mlx.Attention(q, k, v, float32(scale), mask)))
	}
	type way struct {
		key, text string
		value     func() tensor
	}
	try := func(ref tensor, ways ...way) bool {
		if !s.isReference(ref) {
			return false
		}
		for _, w := range ways {
			if s.fits(w.value()) {
				s.say(w.key, "attention: %s", w.text)
				break
			}
		}
		return true
	}
	first, _, _ := strings.Cut(module, ".block.")
	for _, bias := range []*mlx.Array{
		get(module, hooks.Point{Kind: hooks.Input, Key: "position_bias"}), get(module, hooks.Point{Key: "1"}),
		get(first+".block.0.layer.0.SelfAttention", hooks.Point{Key: "1"}),
	} {
		if bias == nil || !slices.Equal(bias.Shape(), []int{1, q.Dim(1), n, n}) {
			continue
		}
		try(attend(1, bias),
			way{"position bias", "the bias of positions is missing", func() tensor { return attend(1, nil) }},
			way{"attention scale", "scores are scaled by 1/√D, which T5's are not", func() tensor { return attend(scale, bias) }},
			way{"attention scale", "scores and bias are scaled by 1/√D, which T5's are not", func() tensor { return attend(scale, bias.Times(scale)) }},
			way{"position bias", "the bias of positions is scaled by 1/√D", func() tensor { return attend(1, bias.Times(scale)) }},
			way{"position bias", "queries and keys are confused in the bias of positions", func() tensor { return attend(1, bias.Transpose(0, 1, 3, 2)) }})
		return
	}
	causal := func() tensor { return hostTensor("", nn.MergeHeads(nn.CausalAttention(q, k, v))) }
	open := func() tensor { return attend(scale, nil) }
	for _, what := range []string{"prompt", "negative"} {
		mask := s.r.ref.Array(what + ".attention_mask")
		if mask == nil || mask.Size() != n {
			continue
		}
		valid := 0
		for _, m := range mask.AsType(mlx.Int32).Int32s() {
			valid += int(m)
		}
		if valid < 1 || valid == n {
			continue
		}
		if try(hostTensor("", nn.MergeHeads(nn.PaddedCausalAttention(q, k, v, valid))),
			way{"pads", "pads are seen, and should be masked", causal}, way{"attention mask", "the causal mask is missing, and that of pads", open}) {
			return
		}
	}
	if !try(causal(), way{"attention mask", "the causal mask is missing", open},
		way{"attention scale", "the scale 1/√D is missing", func() tensor {
			return hostTensor("", nn.MergeHeads(mlx.CausalAttention(q, k, v, 1)))
		}}) {
		try(open(), way{"attention mask", "there is a causal mask, and should be none", causal}, way{"attention scale", "the scale 1/√D is missing", func() tensor { return attend(1, nil) }})
	}
}
