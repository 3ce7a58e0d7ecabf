package transformer

import (
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// NaDiTConfig has the arguments of SeedVR2's NaDiT that its published sizes differ in, with the names of its makers.
type NaDiTConfig struct {
	VidInChannels  int     `json:"vid_in_channels" size:"1"` // noise, the image's latents, and a mask
	VidOutChannels int     `json:"vid_out_channels" size:"1"`
	VidDim         int     `json:"vid_dim" size:"1"` // of both streams
	TxtInDim       int     `json:"txt_in_dim" size:"1"`
	Heads          int     `json:"heads"`
	HeadDim        int     `json:"head_dim"`
	NumLayers      int     `json:"num_layers" layers:"1"`
	MMLayers       int     `json:"mm_layers" layers:"0"` // the first blocks, which have weights for each stream; the others share them
	MLPType        string  `json:"mlp_type"`
	MLPDim         int     `json:"mlp_dim" size:"1"` // of the feed-forwards; the makers derive it from expand_ratio
	VidOutNorm     bool    `json:"vid_out_norm"`
	RopeType       string  `json:"rope_type"`
	RopeDim        int     `json:"rope_dim"`
	NormEps        float64 `json:"norm_eps" number:"nonnegative"`
	Window         [2]int  `json:"window"` // windows along the height and the width of a 720p video
}

// DefaultNaDiTConfig returns the config of the model of 3 billion parameters.
func DefaultNaDiTConfig() NaDiTConfig {
	return NaDiTConfig{
		VidInChannels: 33, VidOutChannels: 16, VidDim: 2560, TxtInDim: 5120, Heads: 20, HeadDim: 128, NumLayers: 32, MMLayers: 10,
		MLPType: "swiglu", MLPDim: 6912, VidOutNorm: true, RopeType: "mmrope3d", RopeDim: 128, NormEps: 1e-5, Window: [2]int{3, 3},
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *NaDiTConfig) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case min(c.Window[0], c.Window[1]) < 1 || max(c.Window[0], c.Window[1]) > nn.MaxDim:
		return fmt.Errorf("window %v: expected 1 to %d", c.Window, nn.MaxDim)
	case c.Heads < 1 || c.HeadDim < 2 || c.HeadDim%2 != 0 || c.Heads > nn.MaxDim/c.HeadDim:
		return fmt.Errorf("heads %d of head_dim %d: expected an even size and a width of at most %d", c.Heads, c.HeadDim, nn.MaxDim)
	case c.MMLayers > c.NumLayers:
		return fmt.Errorf("mm_layers %d: expected at most num_layers, %d", c.MMLayers, c.NumLayers)
	case c.VidInChannels != 2*c.VidOutChannels+1:
		return fmt.Errorf("vid_in_channels %d: expected 2·%d+1, for noise, latents and a mask", c.VidInChannels, c.VidOutChannels)
	case c.MLPType != "swiglu" && c.MLPType != "normal":
		return fmt.Errorf("mlp_type %q: expected swiglu or normal", c.MLPType)
	case c.RopeType != "mmrope3d" && c.RopeType != "rope3d":
		return fmt.Errorf("rope_type %q: expected mmrope3d or rope3d", c.RopeType)
	case c.RopeDim < 6 || c.RopeDim > c.HeadDim:
		return fmt.Errorf("rope_dim %d: expected 6 to head_dim %d", c.RopeDim, c.HeadDim)
	}
	return nil
}

// NaDiT is the transformer of SeedVR2 for a video of one frame: attention in windows, each of which sees the whole text.
// The windows of every second block are shifted by half of their size.
type NaDiT struct {
	nn.Module `in:"vid txt"`

	VidIn      *patchProjection `w:"vid_in"`
	TxtIn      *nn.Linear       `w:"txt_in"`
	EmbIn      *seedTime        `w:"emb_in"`
	Layers     []*seedBlock     `w:"blocks"`
	VidOutNorm *nn.RMSNorm      `w:"vid_out_norm"` // nil in the model of 7 billion parameters, as the next
	VidOutAda  *adaOut          `w:"vid_out_ada"`
	VidOut     *patchProjection `w:"vid_out"`

	Config NaDiTConfig
}

const patch = 2 // latents along each side of a token

// NewNaDiT declares the model of a validated config.
func NewNaDiT(c NaDiTConfig) *NaDiT {
	dim := c.VidDim
	m := &NaDiT{
		VidIn: &patchProjection{Proj: nn.NewLinear(c.VidInChannels*patch*patch, dim, true)},
		TxtIn: nn.NewLinear(c.TxtInDim, dim, true),
		EmbIn: &seedTime{
			ProjIn: nn.NewLinear(timestepFeatures, dim, true), ProjHid: nn.NewLinear(dim, dim, true),
			ProjOut: nn.NewLinear(dim, 6*dim, true), Act: &nn.SiLU{},
		},
		VidOut: &patchProjection{Proj: nn.NewLinear(dim, c.VidOutChannels*patch*patch, true)},
		Config: c,
	}
	for i := range c.NumLayers {
		m.Layers = append(m.Layers, newSeedBlock(c, i))
	}
	if c.VidOutNorm {
		m.VidOutNorm = nn.NewRMSNorm(dim, c.NormEps)
		m.VidOutAda = &adaOut{Shift: nn.NewParam(dim), Scale: nn.NewParam(dim)}
	}
	return m
}

// patchProjection is NaPatchIn or NaPatchOut.
type patchProjection struct {
	Proj *nn.Linear `w:"proj"`
}

// seedTime is TimeEmbedding.
type seedTime struct {
	nn.Module
	ProjIn  *nn.Linear `w:"proj_in"`
	ProjHid *nn.Linear `w:"proj_hid"`
	ProjOut *nn.Linear `w:"proj_out"`
	Act     *nn.SiLU   `w:"act"`
}

// Forward takes a time, up to 1000, to [1, 6·dim].
func (e *seedTime) Forward(t float32, dtype mlx.Dtype) *mlx.Array {
	halves := nn.TimestepEmbedding(t, timestepFeatures).Split(2, 1)
	in := mlx.Concat(1, halves[1], halves[0]).AsType(dtype) // sines first
	x := e.Act.Forward(e.ProjIn.Forward(in))
	return e.Tap(e.ProjOut.Forward(e.Act.Forward(e.ProjHid.Forward(x))))
}

// adaOut is AdaSingle at the end.
type adaOut struct {
	Shift nn.Param `w:"out_shift"`
	Scale nn.Param `w:"out_scale"`
}

// A mm is MMModule: a module for each stream, or one for both.
type mm[T any] struct {
	Vid *T `w:"vid"`
	Txt *T `w:"txt"`
	All *T `w:"all"`
}

func newMM[T any](shared bool, declare func() *T) mm[T] {
	if shared {
		return mm[T]{All: declare()}
	}
	return mm[T]{Vid: declare(), Txt: declare()}
}

func (m mm[T]) vid() *T {
	if m.All != nil {
		return m.All
	}
	return m.Vid
}

func (m mm[T]) txt() *T {
	if m.All != nil {
		return m.All
	}
	return m.Txt
}

// adaSingle is AdaSingle: what a block adds to the shift, scale and gate of the time.
type adaSingle struct {
	AttnShift nn.Param `w:"attn_shift"`
	AttnScale nn.Param `w:"attn_scale"`
	AttnGate  nn.Param `w:"attn_gate"`
	MLPShift  nn.Param `w:"mlp_shift"`
	MLPScale  nn.Param `w:"mlp_scale"`
	MLPGate   nn.Param `w:"mlp_gate"`
}

// modulations returns those of attention and feed-forward, from those of the time.
func (a *adaSingle) modulations(time []modulation, dtype mlx.Dtype) (attn, mlp modulation) {
	return time[0].plus(&a.AttnShift, &a.AttnScale, &a.AttnGate, dtype), time[1].plus(&a.MLPShift, &a.MLPScale, &a.MLPGate, dtype)
}

// plus adds parameters to a modulation of the time, in float32. The reference multiplies by the scale itself, not by 1+scale.
func (m modulation) plus(shift, scale, gate *nn.Param, dtype mlx.Dtype) modulation {
	sum := func(x *mlx.Array, p *nn.Param, less float64) *mlx.Array {
		if p == nil {
			return nil
		}
		return x.Add(p.As(mlx.Float32)).Plus(-less).AsType(dtype)
	}
	return modulation{Shift: sum(m.Shift, shift, 0), Scale: sum(m.Scale, scale, 1), Gate: sum(m.Gate, gate, 0)}
}

// seedBlock is NaMMSRTransformerBlock.
type seedBlock struct {
	nn.Module `in:"vid txt"`
	AttnNorm  mm[nn.RMSNorm] `w:"attn_norm"`
	Attn      *seedAttention `w:"attn"`
	MLPNorm   mm[nn.RMSNorm] `w:"mlp_norm"`
	MLP       mm[seedMLP]    `w:"mlp"`
	Ada       mm[adaSingle]  `w:"ada"`

	last      bool // the text is not needed afterwards
	plainText bool // its text is not modulated
}

func newSeedBlock(c NaDiTConfig, i int) *seedBlock {
	shared := i >= c.MMLayers
	norm := func() *nn.RMSNorm { return nn.NewPlainRMSNorm(c.NormEps) }
	b := &seedBlock{
		AttnNorm: newMM(shared, norm), Attn: newSeedAttention(c, shared, i%2), MLPNorm: newMM(shared, norm),
		MLP: newMM(shared, func() *seedMLP { return newSeedMLP(c) }),
		Ada: newMM(shared, func() *adaSingle {
			p := func() nn.Param { return nn.NewParam(c.VidDim) }
			return &adaSingle{p(), p(), p(), p(), p(), p()}
		}),
		last: i == c.NumLayers-1,
	}
	if b.last && c.RopeType == "mmrope3d" { // the makers' second version of the network
		b.plainText, b.MLPNorm.Txt, b.MLP.Txt, b.Ada.Txt = true, nil, nil, nil
	}
	return b
}

// Forward takes the image x [1, L, dim] and the text c [1, T, dim]. The text is nil after the last block.
func (b *seedBlock) Forward(x, c *mlx.Array, p *seedPass) (*mlx.Array, *mlx.Array) {
	attn, mlp := b.Ada.vid().modulations(p.time, p.dtype)
	var textAttn, textMLP modulation
	text := b.AttnNorm.txt()
	normed := func() *mlx.Array { return text.Forward(c).AsType(p.dtype) }
	if !b.plainText {
		textAttn, textMLP = b.Ada.txt().modulations(p.time, p.dtype)
		normed = func() *mlx.Array { return textAttn.norm(text, c) }
	}
	// the scopes let MLX free what large images need most memory for
	d := mlx.Scopes(func() []*mlx.Array { return b.Attn.Forward(attn.norm(b.AttnNorm.vid(), x), normed(), p, b.last) })
	fed := func(x, dx *mlx.Array, attn, mlp modulation, n *nn.RMSNorm, f *seedMLP) *mlx.Array {
		return mlx.Scope(func() *mlx.Array {
			y, h := attn.addThenNorm(x, dx, n, mlp)
			return mlp.add(y, f.Forward(h))
		})
	}
	y := fed(x, d[0], attn, mlp, b.MLPNorm.vid(), b.MLP.vid())
	if b.last {
		return b.Tap(y, x, c), nil
	}
	return b.Tap2(y, fed(c, d[1], textAttn, textMLP, b.MLPNorm.txt(), b.MLP.txt()), x, c)
}

// seedMLP is SwiGLUMLP, or MLP, which has no gate.
type seedMLP struct {
	nn.Module
	ProjInGate *nn.Linear     `w:"proj_in_gate"`
	ProjIn     *nn.Linear     `w:"proj_in"`
	Act        *nn.Activation `w:"act"`
	ProjOut    *nn.Linear     `w:"proj_out"`

	In nn.Stack
}

func newSeedMLP(c NaDiTConfig) *seedMLP {
	bias := c.MLPType == "normal"
	f := &seedMLP{ProjIn: nn.NewLinear(c.VidDim, c.MLPDim, bias), ProjOut: nn.NewLinear(c.MLPDim, c.VidDim, bias)}
	if bias {
		f.Act = &nn.Activation{Func: func(x *mlx.Array) *mlx.Array { return mlx.ConcatGELU(nil, mlx.AllColumns(x)) }}
		return f
	}
	f.ProjInGate = nn.NewLinear(c.VidDim, c.MLPDim, false)
	f.In = nn.NewStack(f.ProjInGate, f.ProjIn)
	return f
}

// Forward may return a wide result: see [nn.Linear.ForwardWide].
func (f *seedMLP) Forward(x *mlx.Array) *mlx.Array {
	if f.Act != nil {
		return f.Tap(f.ProjOut.ForwardWide(f.Act.Forward(f.ProjIn.Forward(x)), x.Dtype()), x)
	}
	in := f.In.Forward(x)
	return f.Tap(f.ProjOut.ForwardWide(nn.WideSwiGLU(nil, in[0], in[1]), x.Dtype()), x)
}

// seedAttention is NaSwinAttention.
type seedAttention struct {
	nn.Module `in:"0 1"`
	ProjQKV   mm[nn.Linear]  `w:"proj_qkv"`
	NormQ     mm[nn.RMSNorm] `w:"norm_q"`
	NormK     mm[nn.RMSNorm] `w:"norm_k"`
	ProjOut   mm[nn.Linear]  `w:"proj_out"`

	heads, shift int // shift is 1 for windows that are shifted
}

func newSeedAttention(c NaDiTConfig, shared bool, shift int) *seedAttention {
	inner := c.Heads * c.HeadDim
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(c.HeadDim, c.NormEps) }
	return &seedAttention{
		ProjQKV: newMM(shared, func() *nn.Linear { return nn.NewLinear(c.VidDim, 3*inner, false) }),
		NormQ:   newMM(shared, norm), NormK: newMM(shared, norm),
		ProjOut: newMM(shared, func() *nn.Linear { return nn.NewLinear(inner, c.VidDim, true) }),
		heads:   c.Heads, shift: shift,
	}
}

// Forward returns what attention adds to the image x [1, L, dim] and to the text c [1, T, dim]: the mean of what the text is in
// all windows, which is left out in the last block. Both may be wide: see [nn.Linear.ForwardWide].
func (a *seedAttention) Forward(x, c *mlx.Array, p *seedPass, last bool) []*mlx.Array {
	w := p.windows[a.shift]
	own := seedQKV(a.ProjQKV.vid(), x, a.NormQ.vid(), a.NormK.vid())
	h := a.NormRope(w.rope, a.heads, seedQKV(a.ProjQKV.txt(), c, a.NormQ.txt(), a.NormK.txt()), own)
	text, all := c.Dim(1), h.Q.Dim(1)
	var image, texts []*mlx.Array
	sorted := func(y *mlx.Array) *mlx.Array { return y.Slice(1, text, all).Take(1, w.order) }
	qs, ks, vs := sorted(h.Q), sorted(h.K), sorted(h.V)
	from := 0
	for _, g := range w.groups {
		in := func(y, sorted *mlx.Array) *mlx.Array { // [n, tokens+T, H, D]
			heads, d := y.Dim(2), y.Dim(3)
			own := sorted.Slice(1, from, from+g.n*g.tokens).Reshape(g.n, g.tokens, heads, d)
			return mlx.Concat(1, own, y.Slice(1, 0, text).BroadcastTo(g.n, text, heads, d))
		}
		y := joint{}.attend(&a.Module, nn.QKVHeads{Q: in(h.Q, qs), K: in(h.K, ks), V: in(h.V, vs)})
		image = append(image, y.Slice(1, 0, g.tokens).Reshape(1, g.n*g.tokens, -1))
		texts = append(texts, y.Slice(1, g.tokens, y.Dim(1)).AsType(mlx.Float32).Sum(0))
		from += g.n * g.tokens
	}
	dx := a.ProjOut.vid().ForwardWide(mlx.Concat(1, image...).Take(1, w.back), x.Dtype())
	if last {
		return []*mlx.Array{a.Tap(dx, x, c)}
	}
	mean := mlx.Concat(0, texts...).Sum(0).Over(float64(w.count)).AsType(x.Dtype())
	dx, dc := a.Tap2(dx, a.ProjOut.txt().ForwardWide(mean, x.Dtype()), x, c)
	return []*mlx.Array{dx, dc}
}

// seedQKV projects a stream by one matrix.
func seedQKV(l *nn.Linear, x *mlx.Array, normQ, normK *nn.RMSNorm) nn.QKV {
	y, size := l.Forward(x), l.Out()/3
	return nn.NewQKV([]mlx.Columns{{X: y, Size: size}, {X: y, From: size, Size: size}, {X: y, From: 2 * size, Size: size}}, normQ, normK)
}

// A SeedVR2Sequence is the layout of an image size with a number of text tokens.
type SeedVR2Sequence struct {
	h, w    int // in tokens
	windows [2]seedWindows
}

// seedWindows are the windows of a block, in groups of equal height and width.
type seedWindows struct {
	count       int
	groups      []windowGroup
	order, back []int32 // the image's tokens in the order of the groups, and the inverse
	rope        nn.Rope // of the text's tokens and then the image's, as they are in their windows
}

type windowGroup struct{ n, tokens int }

// Sequence lays out latents of height×width, both even, with a text of the given number of tokens.
func (m *NaDiT) Sequence(height, width, text int) (*SeedVR2Sequence, error) {
	if height < patch || width < patch || height%patch != 0 || width%patch != 0 {
		return nil, fmt.Errorf("latents of %dx%d: expected positive multiples of %d", width, height, patch)
	}
	s := &SeedVR2Sequence{h: height / patch, w: width / patch}
	rows, columns := m.Config.windowSizes(s.h, s.w)
	for i := range s.windows {
		shift := float64(i) / 2
		s.windows[i] = m.layOut(spans(s.h, rows, shift), spans(s.w, columns, shift), s.w, text)
	}
	return s, nil
}

// windowSizes returns the height and width of windows in tokens: the image is divided as a video of 720p with its area of 45x80
// tokens would be.
func (c *NaDiTConfig) windowSizes(h, w int) (int, int) {
	scale := math.Sqrt(45 * 80 / (float64(h) * float64(w)))
	size := func(n, windows int) int {
		return max(1, int(math.Ceil(math.RoundToEven(float64(n)*scale)/float64(windows))))
	}
	return size(h, c.Window[0]), size(w, c.Window[1])
}

// spans divides n tokens into windows of a size, shifted by a share of it if there are several.
func spans(n, size int, shift float64) (all [][2]int) {
	count := (n + size - 1) / size
	if size >= n {
		shift = 0
	}
	if shift > 0 {
		count = int(math.Ceil((float64(n)-shift)/float64(size))) + 1
	}
	for i := range count {
		from := max(0, int((float64(i)-shift)*float64(size)))
		to := min(n, int((float64(i)-shift+1)*float64(size)))
		if to > from {
			all = append(all, [2]int{from, to})
		}
	}
	return all
}

// layOut divides tokens of a width into windows of rows and columns.
func (m *NaDiT) layOut(rows, columns [][2]int, w, text int) seedWindows {
	h := rows[len(rows)-1][1]
	byShape := map[[2]int][][2]int{} // the tokens at the top left
	var shapes [][2]int
	for _, r := range rows {
		for _, c := range columns {
			shape := [2]int{r[1] - r[0], c[1] - c[0]}
			if byShape[shape] == nil {
				shapes = append(shapes, shape)
			}
			byShape[shape] = append(byShape[shape], [2]int{r[0], c[0]})
		}
	}
	out := seedWindows{count: len(rows) * len(columns), back: make([]int32, h*w)}
	table := newAxialRope(m.Config, text)
	angles := make([][]float32, h*w)
	for _, shape := range shapes {
		out.groups = append(out.groups, windowGroup{len(byShape[shape]), shape[0] * shape[1]})
		at := table.window(shape[0], shape[1])
		for _, corner := range byShape[shape] {
			for y := range shape[0] {
				for x := range shape[1] {
					token := (corner[0]+y)*w + corner[1] + x
					angles[token] = at(y, x)
					out.back[token] = int32(len(out.order))
					out.order = append(out.order, int32(token))
				}
			}
		}
	}
	out.rope = table.rope(angles)
	return out
}

// An axialRope has the angles of rotary embeddings in three axes, time, height and width.
type axialRope struct {
	frequencies []float32
	text        int
	mm          bool // the text is rotated too, and positions are whole numbers
	pairs       int  // of features in a head
}

// newAxialRope computes the frequencies as rotary_embedding_torch does. Those in files are rounded to their dtype.
func newAxialRope(c NaDiTConfig, text int) axialRope {
	r := axialRope{text: text, mm: c.RopeType == "mmrope3d", pairs: c.HeadDim / 2}
	d := c.RopeDim / 3
	if r.mm {
		for i := range d / 2 {
			r.frequencies = append(r.frequencies, float32(1/float64(float32(math.Pow(10000, float64(float32(2*i)/float32(d)))))))
		}
		return r
	}
	const largest = 128 // max_freq/2
	for _, f := range linspace(1, largest, d/2) {
		r.frequencies = append(r.frequencies, f*math.Pi)
	}
	return r
}

// window returns the angles of a token in row y and column x of a window.
func (r axialRope) window(h, w int) func(y, x int) []float32 {
	if r.mm { // after the text in time
		return func(y, x int) []float32 { return r.angles(float32(r.text), float32(y), float32(x)) }
	}
	rows, columns := linspace(-1, 1, h), linspace(-1, 1, w)
	return func(y, x int) []float32 { return r.angles(-1, rows[y], columns[x]) }
}

func (r axialRope) angles(positions ...float32) (out []float32) {
	for _, p := range positions {
		for _, f := range r.frequencies {
			out = append(out, p*f)
		}
	}
	return out
}

// rope returns the table of the text and the image's tokens. Features without an angle are not rotated.
func (r axialRope) rope(image [][]float32) nn.Rope {
	rows := make([][]float32, r.text, r.text+len(image))
	if r.mm {
		for i := range rows {
			rows[i] = r.angles(float32(i), float32(i), float32(i))
		}
	}
	rows = append(rows, image...)
	cos, sin := make([]float32, len(rows)*r.pairs), make([]float32, len(rows)*r.pairs)
	for i := range cos {
		cos[i] = 1
	}
	for i, row := range rows {
		for j, angle := range row {
			s, c := math.Sincos(float64(angle))
			cos[i*r.pairs+j], sin[i*r.pairs+j] = float32(c), float32(s)
		}
	}
	return nn.Rope{Cos: mlx.FromFloat32(cos, len(rows), r.pairs), Sin: mlx.FromFloat32(sin, len(rows), r.pairs)}
}

// linspace is torch.linspace in float32.
func linspace(from, to float32, n int) []float32 {
	out := make([]float32, n)
	step := (to - from) / float32(max(1, n-1))
	for i := range out {
		if out[i] = from + step*float32(i); i >= n/2 && n > 1 {
			out[i] = to - step*float32(n-1-i)
		}
	}
	return out
}

type seedPass struct {
	*SeedVR2Sequence
	time  []modulation // of attention and feed-forward, [1, 1, dim] each, float32
	dtype mlx.Dtype
}

// Forward returns the velocity [1, 16, h, w] for noise and image latents [1, 16, h, w], at a time up to 1000 (pure noise). text is
// [1, T, txt_in_dim]. It computes in the dtype of the latents, in float16 with float32 residual streams. progress, if
// set, is called with the number of blocks that are done.
func (m *NaDiT) Forward(noise, latents, text *mlx.Array, t float32, s *SeedVR2Sequence, progress func(blocks int)) *mlx.Array {
	dtype, dim := latents.Dtype(), m.Config.VidDim
	mask := mlx.Full(1, dtype, 1, 1, latents.Dim(2), latents.Dim(3))
	in := mlx.Concat(1, noise.AsType(dtype), latents, mask)
	x := nn.WidenFP16(m.VidIn.Proj.Forward(patches(in)))
	c := nn.WidenFP16(m.TxtIn.Forward(text.AsType(dtype)))
	emb := m.EmbIn.Forward(t, dtype).AsType(mlx.Float32).Reshape(1, dim, 2, 3)
	p := &seedPass{SeedVR2Sequence: s, dtype: dtype}
	for i := range 2 {
		part := func(g int) *mlx.Array { return emb.Slice(2, i, i+1).Slice(3, g, g+1).Reshape(1, 1, dim) }
		p.time = append(p.time, modulation{Shift: part(0), Scale: part(1), Gate: part(2)})
	}
	for i, b := range mlx.Layers(m.Layers, &x, &c) {
		x, c = b.Forward(x, c, p)
		if progress != nil {
			progress(i + 1)
		}
	}
	x = x.AsType(nn.WideDtype(dtype))
	if m.VidOutNorm != nil { // with the time of attention: the makers' cache of it has the same key
		x = p.time[0].plus(&m.VidOutAda.Shift, &m.VidOutAda.Scale, nil, dtype).norm(m.VidOutNorm, x)
	}
	return m.Tap(unpatch(m.VidOut.Proj.Forward(x.AsType(dtype)), s.h, s.w), in, text)
}

// patches takes [B, C, H, W] to tokens [B, H/2·W/2, 4C] with the feature index (2·dy+dx)·C + c.
func patches(x *mlx.Array) *mlx.Array {
	b, c, h, w := x.Dim(0), x.Dim(1), x.Dim(2)/patch, x.Dim(3)/patch
	return x.Reshape(b, c, h, patch, w, patch).Transpose(0, 2, 4, 3, 5, 1).Reshape(b, h*w, patch*patch*c)
}

// unpatch is the inverse of patches for h×w tokens.
func unpatch(x *mlx.Array, h, w int) *mlx.Array {
	b, c := x.Dim(0), x.Dim(2)/(patch*patch)
	return x.Reshape(b, h, w, patch, patch, c).Transpose(0, 5, 1, 3, 2, 4).Reshape(b, c, h*patch, w*patch)
}
