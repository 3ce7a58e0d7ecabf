package transformer

import (
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Flux2Config is transformer/config.json of diffusers' Flux2Transformer2DModel.
type Flux2Config struct {
	PatchSize                int     `json:"patch_size"`
	InChannels               int     `json:"in_channels"`
	OutChannels              *int    `json:"out_channels"`
	NumLayers                int     `json:"num_layers"`
	NumSingleLayers          int     `json:"num_single_layers"`
	AttentionHeadDim         int     `json:"attention_head_dim"`
	NumAttentionHeads        int     `json:"num_attention_heads"`
	JointAttentionDim        int     `json:"joint_attention_dim"`
	TimestepGuidanceChannels int     `json:"timestep_guidance_channels"`
	MLPRatio                 float64 `json:"mlp_ratio"`
	AxesDimsRope             []int   `json:"axes_dims_rope"`
	RopeTheta                float64 `json:"rope_theta"`
	Eps                      float64 `json:"eps"`
	GuidanceEmbeds           bool    `json:"guidance_embeds"`
}

// DefaultFlux2Config is what diffusers assumes where a config says nothing.
func DefaultFlux2Config() Flux2Config {
	return Flux2Config{
		PatchSize: 1, InChannels: 128, NumLayers: 8, NumSingleLayers: 48, AttentionHeadDim: 128, NumAttentionHeads: 48,
		JointAttentionDim: 15360, TimestepGuidanceChannels: 256, MLPRatio: 3, AxesDimsRope: []int{32, 32, 32, 32},
		RopeTheta: 2000, Eps: 1e-6, GuidanceEmbeds: true,
	}
}

// Validate says what of the config cannot be run.
func (c *Flux2Config) Validate() error {
	switch {
	case c.PatchSize != 1:
		return fmt.Errorf("patch_size %d: expected 1 (the autoencoder's latents are patches)", c.PatchSize)
	case c.InChannels < 1 || c.InChannels > nn.MaxDim:
		return fmt.Errorf("in_channels %d: expected 1 to %d", c.InChannels, nn.MaxDim)
	case outChannels(c.OutChannels, c.InChannels) != c.InChannels:
		return fmt.Errorf("out_channels %d: expected in_channels, %d", *c.OutChannels, c.InChannels)
	case c.JointAttentionDim < 1 || c.JointAttentionDim > nn.MaxDim:
		return fmt.Errorf("joint_attention_dim %d: expected 1 to %d", c.JointAttentionDim, nn.MaxDim)
	case c.TimestepGuidanceChannels < 2 || c.TimestepGuidanceChannels%2 != 0 || c.TimestepGuidanceChannels > nn.MaxDim:
		return fmt.Errorf("timestep_guidance_channels %d: must be positive and even", c.TimestepGuidanceChannels)
	case !(c.MLPRatio > 0 && c.MLPRatio <= 64) || !(c.RopeTheta > 0) || !(c.Eps >= 0):
		return fmt.Errorf("mlp_ratio %v, rope_theta %v, eps %v: must be positive", c.MLPRatio, c.RopeTheta, c.Eps)
	case c.NumAttentionHeads > 0 && c.AttentionHeadDim > 0 && c.hidden() < 1:
		return fmt.Errorf("mlp_ratio %v: no feed-forward is left", c.MLPRatio)
	case c.GuidanceEmbeds:
		return errors.New("guidance_embeds true: FLUX.2-dev, of which only the klein models are supported")
	}
	return validateJoint(c.NumAttentionHeads, c.AttentionHeadDim, c.NumLayers, c.NumSingleLayers, c.AxesDimsRope, 4)
}

// Flux2 is diffusers' Flux2Transformer2DModel.
type Flux2 struct {
	nn.Module
	PosEmbed                  posEmbed            `w:"pos_embed"`
	TimeGuidanceEmbed         *flux2TimeEmbed     `w:"time_guidance_embed"`
	DoubleStreamModulationImg *flux2Modulation    `w:"double_stream_modulation_img"`
	DoubleStreamModulationTxt *flux2Modulation    `w:"double_stream_modulation_txt"`
	SingleStreamModulation    *flux2Modulation    `w:"single_stream_modulation"`
	XEmbedder                 nn.Linear           `w:"x_embedder"`
	ContextEmbedder           nn.Linear           `w:"context_embedder"`
	TransformerBlocks         []*flux2Block       `w:"transformer_blocks"`
	SingleTransformerBlocks   []*flux2SingleBlock `w:"single_transformer_blocks"`

	NormOut *adaLayerNormContinuous `w:"norm_out"`
	ProjOut nn.Linear               `w:"proj_out"`

	Config Flux2Config
}

// NewFlux2 declares the model that a validated config describes.
func NewFlux2(c Flux2Config) *Flux2 {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	m := &Flux2{
		TimeGuidanceEmbed:         &flux2TimeEmbed{TimestepEmbedder: newTimestepEmbedding(c.TimestepGuidanceChannels, dim, false)},
		DoubleStreamModulationImg: newFlux2Modulation(dim, 6),
		DoubleStreamModulationTxt: newFlux2Modulation(dim, 6),
		SingleStreamModulation:    newFlux2Modulation(dim, 3),
		XEmbedder:                 nn.NewLinear(c.InChannels, dim, false),
		ContextEmbedder:           nn.NewLinear(c.JointAttentionDim, dim, false),
		NormOut:                   newAdaLayerNormContinuous(dim, c.Eps, false),
		ProjOut:                   nn.NewLinear(dim, c.InChannels, false),
		Config:                    c,
	}
	for range c.NumLayers {
		m.TransformerBlocks = append(m.TransformerBlocks, newFlux2Block(c))
	}
	for range c.NumSingleLayers {
		m.SingleTransformerBlocks = append(m.SingleTransformerBlocks, newFlux2SingleBlock(c))
	}
	return m
}

// Flux2Sequence is the layout of one picture size with one number of text tokens
// and some reference pictures: what stays the same over all steps.
type Flux2Sequence struct {
	h, w                     int
	text, target, references flux2Positions
}

// flux2Positions are those of a part of the sequence.
type flux2Positions struct {
	n    int
	at   *mlx.Array // [n, 4]
	rope nn.Rope
}

// then is the positions of p followed by those of q.
func (p flux2Positions) then(q flux2Positions) flux2Positions {
	if q.n == 0 {
		return p
	}
	return flux2Positions{p.n + q.n, mlx.Concat(0, p.at, q.at), p.rope.Concat(q.rope)}
}

// Sequence lays out latents of height×width with a text of the given number of
// tokens and references of the given heights and widths, all in the
// autoencoder's patches. Text token k is at (0, 0, 0, k), the latent in row y and
// column x at (0, y, x, 0), and that of reference r, from 0, at
// (10+10r, y, x, 0).
func (m *Flux2) Sequence(height, width, text int, references ...[2]int) (*Flux2Sequence, error) {
	for _, size := range append([][2]int{{height, width}}, references...) {
		if size[0] < 1 || size[1] < 1 {
			return nil, fmt.Errorf("latents of %d×%d: expected at least 1×1", size[0], size[1])
		}
	}
	layout := func(positions [][]int) flux2Positions {
		return flux2Positions{len(positions), positionArray(positions), nn.NewFluxRope(positions, m.Config.AxesDimsRope, m.Config.RopeTheta)}
	}
	var ofText, ofReferences [][]int
	for k := range text {
		ofText = append(ofText, []int{0, 0, 0, k})
	}
	for r, size := range references {
		ofReferences = appendGrid(ofReferences, size[0], size[1], 10+10*r, 4)
	}
	s := &Flux2Sequence{h: height, w: width, text: layout(ofText), target: layout(appendGrid(nil, height, width, 0, 4))}
	if len(references) > 0 {
		s.references = layout(ofReferences)
	}
	return s, nil
}

// Timestep is the sinusoidal embedding [1, timestep_guidance_channels] that
// Forward takes, for a time t from 0 to 1 (pure noise).
func (m *Flux2) Timestep(t float32) *mlx.Array {
	return nn.TimestepEmbedding(t*1000, m.Config.TimestepGuidanceChannels)
}

// Forward predicts from latents [B, C, h, w], a timestep, the text encoder's
// states [B, T, joint_attention_dim] and the tokens of references [B, R, C] (nil
// without) the velocity [B, C, h, w]. Text and references may be those of one for
// the whole batch. It computes in the latents' dtype.
func (m *Flux2) Forward(latents, timestep, text, references *mlx.Array, s *Flux2Sequence) *mlx.Array {
	tokens := flux2Tokens(latents)
	if references != nil {
		tokens = mlx.Concat(1, tokens, toBatch(references.AsType(latents.Dtype()), latents.Dim(0)))
	}
	out := m.forward(tokens, timestep, text, s, s.target.then(s.references), nil)
	return s.latents(out.Slice(1, 0, s.target.n))
}

// Extract is the first step of the kv variant (Flux2KleinKVPipeline): Forward with
// references that see only themselves, and are modulated as at time 0. What text
// and target see of them, it returns too, for [Flux2.Cached]: keys and values
// [B, heads, R, head_dim] of every layer in turn.
func (m *Flux2) Extract(latents, timestep, text, references *mlx.Array, s *Flux2Sequence) (velocity *mlx.Array, cache []*mlx.Array) {
	tokens := mlx.Concat(1, toBatch(references.AsType(latents.Dtype()), latents.Dim(0)), flux2Tokens(latents))
	kv := &flux2KV{extract: true}
	out := m.forward(tokens, timestep, text, s, s.references.then(s.target), kv)
	return s.latents(out), kv.cache
}

// Cached is a later step of the kv variant: Forward with what [Flux2.Extract]
// returned in the place of the references.
func (m *Flux2) Cached(latents, timestep, text *mlx.Array, cache []*mlx.Array, s *Flux2Sequence) *mlx.Array {
	if want := 2 * (len(m.TransformerBlocks) + len(m.SingleTransformerBlocks)); len(cache) != want {
		mlx.Throw(fmt.Errorf("%d keys and values of references, expected %d", len(cache), want))
	}
	return s.latents(m.forward(flux2Tokens(latents), timestep, text, s, s.target, &flux2KV{cache: cache}))
}

// flux2Tokens takes [B, C, h, w] to [B, h·w, C].
func flux2Tokens(x *mlx.Array) *mlx.Array {
	return x.Reshape(x.Dim(0), x.Dim(1), x.Dim(2)*x.Dim(3)).Transpose(0, 2, 1)
}

// latents takes the target's tokens [B, h·w, C] to [B, C, h, w].
func (s *Flux2Sequence) latents(x *mlx.Array) *mlx.Array {
	return x.Transpose(0, 2, 1).Reshape(x.Dim(0), x.Dim(2), s.h, s.w)
}

// A flux2KV is what a pass keeps of the references, or has of them from an
// earlier one.
type flux2KV struct {
	extract bool
	cache   []*mlx.Array
}

// forward takes an image stream's tokens [B, n, C] at positions at to what comes
// out of them [B, n, C]; without the references' in a pass that extracts.
func (m *Flux2) forward(tokens, timestep, text *mlx.Array, s *Flux2Sequence, at flux2Positions, kv *flux2KV) *mlx.Array {
	dtype := tokens.Dtype()
	text = text.AsType(dtype)
	extract := kv != nil && kv.extract

	temb := m.TimeGuidanceEmbed.Forward(timestep, dtype)
	ofImage := modulation{raw: m.DoubleStreamModulationImg.Forward(temb)}
	ofText := modulation{raw: m.DoubleStreamModulationTxt.Forward(temb)}
	single := modulation{raw: m.SingleStreamModulation.Forward(temb)}
	if extract {
		temb := m.TimeGuidanceEmbed.Forward(m.Timestep(0), dtype)
		ofImage.references, single.references = m.DoubleStreamModulationImg.Forward(temb), m.SingleStreamModulation.Forward(temb)
		ofImage.where = between(at.n, 0, s.references.n)
		single.where = between(s.text.n+at.n, s.text.n, s.text.n+s.references.n)
	}

	x := m.XEmbedder.Forward(tokens)
	c := toBatch(m.ContextEmbedder.Forward(text), x.Dim(0))
	ofImageRope := m.PosEmbed.Forward(at.rope, at.at)
	j := newFluxJoint(&m.Module, m.PosEmbed.Forward(s.text.rope, s.text.at).Concat(ofImageRope))

	// the states of both chains end with what a pass that extracts has kept
	layer := 0
	next := func() (joint, *flux2Attention) {
		if kv == nil {
			return j, &flux2Attention{}
		}
		a := &flux2Attention{text: s.text.n, references: s.references.n, rope: j.rope}
		j := j
		j.attend = a.extract
		if !extract {
			a.k, a.v = kv.cache[2*layer], kv.cache[2*layer+1]
			j.attend = a.cached
		}
		layer++
		return j, a
	}
	keep := func(state []*mlx.Array, a *flux2Attention) []*mlx.Array {
		if extract {
			state = append(state, a.k, a.v)
		}
		return state
	}
	state := mlx.ChainAll([]*mlx.Array{c, x}, m.TransformerBlocks, func(b *flux2Block, state []*mlx.Array) []*mlx.Array {
		j, a := next()
		c, x := b.Forward(state[0], state[1], ofImage, ofText, j)
		return keep(append([]*mlx.Array{c, x}, state[2:]...), a)
	})
	state = append([]*mlx.Array{mlx.Concat(1, state[:2]...)}, state[2:]...)
	state = mlx.ChainAll(state, m.SingleTransformerBlocks, func(b *flux2SingleBlock, state []*mlx.Array) []*mlx.Array {
		j, a := next()
		y := b.Forward(state[0], single, j)
		return keep(append([]*mlx.Array{y}, state[1:]...), a)
	})

	first := s.text.n
	if extract {
		kv.cache = state[1:]
		first += s.references.n
	}
	out := m.ProjOut.Forward(m.NormOut.Forward(state[0].Slice(1, first, state[0].Dim(1)), temb))
	return m.TapKeys("hidden_states encoder_hidden_states txt_ids img_ids", out, tokens, text, s.text.at.ExpandDims(0), at.at.ExpandDims(0))
}

// flux2Attention is the attention of one layer in the kv variant.
type flux2Attention struct {
	text, references int
	rope             nn.Rope
	k, v             *mlx.Array // of the references, rotated
}

// extract goes over [text, references, target] and keeps k and v of the
// references, which see only themselves.
func (a *flux2Attention) extract(m *nn.Module, q, k, v *mlx.Array) *mlx.Array {
	start, stop, n := a.text, a.text+a.references, q.Dim(2)
	entry := rotation(a.rope)
	var own *mlx.Array // the references' q
	entry.Arrange = func(q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
		own = q.Slice(2, start, stop)
		return mlx.Concat(2, q.Slice(2, 0, start), q.Slice(2, stop, n)), k, v
	}
	q, k, v = m.Enter(entry, q, k, v)
	// copies: a slice would keep all of k and v alive
	a.k, a.v = k.Slice(2, start, stop).Contiguous(), v.Slice(2, start, stop).Contiguous()
	y := nn.Attention(q, k, v)
	return mlx.Concat(2, y.Slice(2, 0, start), nn.Attention(own, a.k, a.v), y.Slice(2, start, y.Dim(2)))
}

// cached goes over [text, target], which see what was kept of the references
// between them.
func (a *flux2Attention) cached(m *nn.Module, q, k, v *mlx.Array) *mlx.Array {
	entry := rotation(a.rope)
	entry.Arrange = func(q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
		insert := func(x, kept *mlx.Array) *mlx.Array {
			return mlx.Concat(2, x.Slice(2, 0, a.text), kept.AsType(x.Dtype()), x.Slice(2, a.text, x.Dim(2)))
		}
		return q, insert(k, a.k), insert(v, a.v)
	}
	return nn.Attention(m.Enter(entry, q, k, v))
}

// flux2TimeEmbed is Flux2TimestepGuidanceEmbeddings without guidance.
type flux2TimeEmbed struct {
	nn.Module
	TimeProj         timeProj           `w:"time_proj"`
	TimestepEmbedder *timestepEmbedding `w:"timestep_embedder"`
}

func (t *flux2TimeEmbed) Forward(timestep *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return t.Tap(t.TimestepEmbedder.Forward(t.TimeProj.Forward(timestep, dtype))) // the reference's gets the time itself
}

// flux2Modulation is Flux2Modulation.
type flux2Modulation struct {
	nn.Module
	Linear nn.Linear `w:"linear"`
	Act    *nn.SiLU  `w:"act_fn"`
}

func newFlux2Modulation(dim, parts int) *flux2Modulation {
	return &flux2Modulation{Linear: nn.NewLinear(dim, parts*dim, false), Act: &nn.SiLU{}}
}

// Forward takes temb [B, dim] to [B, parts·dim].
func (m *flux2Modulation) Forward(temb *mlx.Array) *mlx.Array {
	return m.Tap(m.Linear.Forward(m.Act.Forward(temb)), temb)
}

// flux2Block is Flux2TransformerBlock.
type flux2Block struct {
	nn.Module
	Norm1        *nn.LayerNorm     `w:"norm1"`
	Norm1Context *nn.LayerNorm     `w:"norm1_context"`
	Attn         *jointAttention   `w:"attn"`
	Norm2        *nn.LayerNorm     `w:"norm2"`
	FF           *flux2FeedForward `w:"ff"`
	Norm2Context *nn.LayerNorm     `w:"norm2_context"`
	FFContext    *flux2FeedForward `w:"ff_context"`
}

func newFlux2Block(c Flux2Config) *flux2Block {
	dim := c.NumAttentionHeads * c.AttentionHeadDim
	ff := func() *flux2FeedForward {
		hidden := c.hidden()
		return &flux2FeedForward{LinearIn: nn.NewLinear(dim, 2*hidden, false), Act: newSwiGLU(), LinearOut: nn.NewLinear(hidden, dim, false)}
	}
	return &flux2Block{
		Norm1: nn.NewLayerNorm(c.Eps), Norm1Context: nn.NewLayerNorm(c.Eps),
		Attn:  newJointAttention(c.NumAttentionHeads, c.AttentionHeadDim, false, c.Eps),
		Norm2: nn.NewLayerNorm(c.Eps), FF: ff(), Norm2Context: nn.NewLayerNorm(c.Eps), FFContext: ff(),
	}
}

// hidden is the width of the feed-forwards.
func (c *Flux2Config) hidden() int {
	return int(float64(c.NumAttentionHeads*c.AttentionHeadDim) * c.MLPRatio)
}

// Forward takes the text c [B, T, dim] and the image x [B, L, dim].
func (b *flux2Block) Forward(c, x *mlx.Array, ofImage, ofText modulation, j joint) (nextC, nextX *mlx.Array) {
	partsX, partsC := ofImage.split(6), ofText.split(6)
	dx, dc := b.Attn.Forward(
		modulate(b.Norm1.Forward(x), partsX[0], partsX[1]),
		modulate(b.Norm1Context.Forward(c), partsC[0], partsC[1]), j)

	nextX = endBlock(x, dx, partsX[2:], b.Norm2, b.FF)
	nextX = b.TapFurther("1", nextX)
	nextC = limitHalf(endBlock(c, dc, partsC[2:], b.Norm2Context, b.FFContext))
	if b.Observed() {
		nextC = b.TapKeys("hidden_states encoder_hidden_states temb_mod_img temb_mod_txt image_rotary_emb.0 image_rotary_emb.1",
			nextC, x, c, ofImage.seen(), ofText.seen(), j.emb[0], j.emb[1])
	}
	return nextC, nextX
}

// flux2FeedForward is Flux2FeedForward.
type flux2FeedForward struct {
	nn.Module
	LinearIn  nn.Linear `w:"linear_in"`
	Act       *swiGLU   `w:"act_fn"`
	LinearOut nn.Linear `w:"linear_out"`
}

func (f *flux2FeedForward) Forward(x *mlx.Array) *mlx.Array {
	return f.Tap(f.LinearOut.Forward(f.Act.Forward(f.LinearIn.Forward(x))), x)
}

// swiGLU is Flux2SwiGLU: silu(a)·b of [a|b].
type swiGLU struct {
	nn.Module
	Gate *nn.SiLU `w:"gate_fn"`
}

func newSwiGLU() *swiGLU { return &swiGLU{Gate: &nn.SiLU{}} }

func (s *swiGLU) Forward(x *mlx.Array) *mlx.Array {
	half := x.Split(2, -1)
	return s.Tap(s.Gate.Forward(half[0]).Mul(half[1]), x)
}

// flux2SingleBlock is Flux2SingleTransformerBlock.
type flux2SingleBlock struct {
	nn.Module
	Norm *nn.LayerNorm           `w:"norm"`
	Attn *flux2ParallelAttention `w:"attn"`
}

// flux2ParallelAttention is Flux2ParallelSelfAttention, which has the
// feed-forward beside attention in the same projections.
type flux2ParallelAttention struct {
	nn.Module
	ToQKVMLP nn.Linear   `w:"to_qkv_mlp_proj"`
	Act      *swiGLU     `w:"mlp_act_fn"`
	NormQ    *nn.RMSNorm `w:"norm_q"`
	NormK    *nn.RMSNorm `w:"norm_k"`
	ToOut    nn.Linear   `w:"to_out"`

	heads, dim int
}

func newFlux2SingleBlock(c Flux2Config) *flux2SingleBlock {
	dim, hidden := c.NumAttentionHeads*c.AttentionHeadDim, c.hidden()
	return &flux2SingleBlock{Norm: nn.NewLayerNorm(c.Eps), Attn: &flux2ParallelAttention{
		ToQKVMLP: nn.NewLinear(dim, 3*dim+2*hidden, false), Act: newSwiGLU(),
		NormQ: nn.NewRMSNorm(c.AttentionHeadDim, c.Eps), NormK: nn.NewRMSNorm(c.AttentionHeadDim, c.Eps),
		ToOut: nn.NewLinear(dim+hidden, dim, false), heads: c.NumAttentionHeads, dim: dim,
	}}
}

// Forward takes [B, T+L, dim].
func (b *flux2SingleBlock) Forward(x *mlx.Array, mod modulation, j joint) *mlx.Array {
	parts := mod.split(3)
	y := b.Attn.Forward(modulate(b.Norm.Forward(x), parts[0], parts[1]), j)
	y = limitHalf(x.Add(parts[2].Mul(y)))
	if b.Observed() {
		y = b.TapKeys("hidden_states temb_mod image_rotary_emb.0 image_rotary_emb.1", y, x, mod.seen(), j.emb[0], j.emb[1])
	}
	return y
}

func (a *flux2ParallelAttention) Forward(x *mlx.Array, j joint) *mlx.Array {
	all := a.ToQKVMLP.Forward(x)
	qkv := all.Slice(2, 0, 3*a.dim).Split(3, -1)
	y := attend(&a.Module, j,
		a.NormQ.Forward(nn.SplitHeads(qkv[0], a.heads)), a.NormK.Forward(nn.SplitHeads(qkv[1], a.heads)), nn.SplitHeads(qkv[2], a.heads))
	mlp := a.Act.Forward(all.Slice(2, 3*a.dim, all.Dim(2)))
	y = a.ToOut.Forward(mlx.Concat(2, y, mlp))
	return a.TapKeys("hidden_states image_rotary_emb.0 image_rotary_emb.1", y, x, j.emb[0], j.emb[1])
}
