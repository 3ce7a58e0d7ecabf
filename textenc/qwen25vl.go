package textenc

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen25VLConfig is text_encoder/config.json of transformers'
// Qwen2_5_VLForConditionalGeneration. The language model's settings are in text_config or,
// in older files, at the top level.
type Qwen25VLConfig struct {
	Text         Qwen25VLTextConfig
	Vision       Qwen25VLVisionConfig
	ImageTokenID int
}

// Qwen25VLTextConfig is the config of the language model, as version 4 of transformers
// (rope_theta, rope_scaling) and version 5 (rope_parameters) write it.
type Qwen25VLTextConfig struct {
	VocabSize         int         `json:"vocab_size"`
	HiddenSize        int         `json:"hidden_size"`
	IntermediateSize  int         `json:"intermediate_size"`
	NumHiddenLayers   int         `json:"num_hidden_layers"`
	NumAttentionHeads int         `json:"num_attention_heads"`
	NumKeyValueHeads  *int        `json:"num_key_value_heads"` // nil: num_attention_heads
	HiddenAct         string      `json:"hidden_act"`
	RMSNormEps        float64     `json:"rms_norm_eps"`
	UseSlidingWindow  bool        `json:"use_sliding_window"`
	LayerTypes        []string    `json:"layer_types"`
	RopeTheta         *float64    `json:"rope_theta"`
	RopeScaling       *qwenVLRope `json:"rope_scaling"`
	RopeParameters    *qwenVLRope `json:"rope_parameters"`
}

// DefaultQwen25VLConfig returns the values that transformers uses for fields that a
// config lacks.
func DefaultQwen25VLConfig() Qwen25VLConfig {
	kvHeads := 8
	return Qwen25VLConfig{
		Text: Qwen25VLTextConfig{
			VocabSize: 152064, HiddenSize: 8192, IntermediateSize: 29568, NumHiddenLayers: 80,
			NumAttentionHeads: 64, NumKeyValueHeads: &kvHeads, HiddenAct: "silu", RMSNormEps: 1e-5,
		},
		Vision: Qwen25VLVisionConfig{
			Depth: 32, HiddenSize: 3584, IntermediateSize: 3420, NumHeads: 16, HiddenAct: "silu",
			InChannels: 3, PatchSize: 14, SpatialMergeSize: 2, TemporalPatchSize: 2, WindowSize: 112,
			OutHiddenSize: 3584, FullAttBlockIndexes: []int{7, 15, 23, 31},
		},
		ImageTokenID: 151655,
	}
}

// UnmarshalJSON reads either layout. Fields that the JSON lacks keep their values.
func (c *Qwen25VLConfig) UnmarshalJSON(data []byte) error {
	var layout struct {
		Text *struct{} `json:"text_config"`
	}
	if err := json.Unmarshal(data, &layout); err != nil {
		return err
	}
	if layout.Text == nil {
		if err := json.Unmarshal(data, &c.Text); err != nil {
			return err
		}
	}
	return json.Unmarshal(data, &struct {
		Text         *Qwen25VLTextConfig   `json:"text_config"`
		Vision       *Qwen25VLVisionConfig `json:"vision_config"`
		ImageTokenID *int                  `json:"image_token_id"`
	}{&c.Text, &c.Vision, &c.ImageTokenID})
}

// Validate returns an error if the model cannot be run with the config.
func (c *Qwen25VLConfig) Validate() error {
	if err := c.Text.validate(); err != nil {
		return err
	}
	if err := c.Vision.validate(); err != nil {
		return fmt.Errorf("vision_config: %w", err)
	}
	if c.Vision.OutHiddenSize != c.Text.HiddenSize {
		return fmt.Errorf("vision_config: out_hidden_size %d must be hidden_size %d", c.Vision.OutHiddenSize, c.Text.HiddenSize)
	}
	return nil
}

func (c *Qwen25VLTextConfig) validate() error {
	rope := c.rope()
	pairs := 0
	for _, n := range rope.MRopeSection {
		if n < 1 || n > nn.MaxDim {
			return fmt.Errorf("mrope_section %v: must be positive", rope.MRopeSection)
		}
		pairs += n
	}
	switch {
	case min(c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers, c.NumAttentionHeads, c.kvHeads()) < 1:
		return errors.New("vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads " +
			"and num_key_value_heads must be positive")
	case c.NumHiddenLayers > nn.MaxLayers || max(c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumAttentionHeads) > nn.MaxDim:
		return fmt.Errorf("more than %d layers, or a size above %d", nn.MaxLayers, nn.MaxDim)
	case c.NumAttentionHeads%c.kvHeads() != 0:
		return fmt.Errorf("num_attention_heads %d must be a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.kvHeads())
	case c.HiddenSize%c.NumAttentionHeads != 0 || c.headDim()%2 != 0:
		return fmt.Errorf("hidden_size %d must be num_attention_heads %d times an even number", c.HiddenSize, c.NumAttentionHeads)
	case c.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q, expected silu", c.HiddenAct)
	case !(c.RMSNormEps >= 0):
		return fmt.Errorf("rms_norm_eps %g must not be negative", c.RMSNormEps)
	case c.UseSlidingWindow:
		return errors.New("use_sliding_window true")
	case slices.ContainsFunc(c.LayerTypes, func(t string) bool { return t != "full_attention" }):
		return fmt.Errorf("layer_types %q, expected full_attention only", c.LayerTypes)
	case rope.RopeType != "default":
		return fmt.Errorf("rope_type %q, expected default or mrope", rope.RopeType)
	case !(*rope.RopeTheta > 0):
		return fmt.Errorf("rope_theta %g must be positive", *rope.RopeTheta)
	case pairs != c.headDim()/2:
		return fmt.Errorf("mrope_section %v must sum to %d, half the size of a head", rope.MRopeSection, c.headDim()/2)
	}
	return nil
}

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen25VLTextConfig) rope() qwenVLRope {
	r := newQwenVLRope(c.RopeScaling, c.RopeParameters, c.RopeTheta, 1e6)
	if r.RopeType == "mrope" {
		r.RopeType = "default"
	}
	if r.MRopeSection == nil {
		r.MRopeSection = []int{16, 24, 24}
	}
	return r
}

func (c *Qwen25VLTextConfig) headDim() int { return c.HiddenSize / c.NumAttentionHeads }

func (c *Qwen25VLTextConfig) kvHeads() int {
	if c.NumKeyValueHeads == nil {
		return c.NumAttentionHeads
	}
	return *c.NumKeyValueHeads
}

// ExpandImages repeats each image token in a tokenized prompt as often as its image
// has features. The prompt has one for each image.
func (c *Qwen25VLConfig) ExpandImages(ids []int32, images []VisionInput) ([]int32, error) {
	return c.imageTokens().expand(ids, images)
}

func (c *Qwen25VLConfig) imageTokens() imageTokens {
	return imageTokens{int32(c.ImageTokenID), c.Vision.patches()}
}

// Qwen25VL is transformers' Qwen2_5_VLModel, used as a text encoder. It is
// Qwen2_5_VLForConditionalGeneration without lm_head.
type Qwen25VL struct {
	nn.Module     `in:"input_ids pixel_values image_grid_thw"`
	Visual        *qwen25VLVision `w:"visual"` // nil without a vision encoder
	LanguageModel *qwen25VLText   `w:"language_model"`

	Config Qwen25VLConfig
	Dtype  mlx.Dtype // in which it computes
}

// NewQwen25VL declares the model of a validated config, with the vision encoder only if
// vision is set. In float16 the residual streams, whose values reach tens of millions, and
// the outputs that are added to them are float32.
//
// Checkpoints have the language model's tensors as model.layers or as
// model.language_model.layers, and the vision encoder's as visual or model.visual:
// load it with the prefix "model.".
func NewQwen25VL(c Qwen25VLConfig, vision bool, dtype mlx.Dtype) *Qwen25VL {
	m := &Qwen25VL{LanguageModel: newQwen25VLText(c.Text), Config: c, Dtype: dtype}
	if vision {
		m.Visual = newQwen25VLVision(c.Vision)
	}
	shortNames(m)
	return m
}

// Unused returns patterns of tensors that a checkpoint may have and that are not needed.
func (m *Qwen25VL) Unused() []string {
	unused := []string{"lm_head.weight"}
	if m.Visual == nil {
		unused = append(unused, "visual.*")
	}
	return unused
}

// Forward returns the last hidden states of ids after the final norm,
// [1, len(ids), hidden_size], in float32 for float16. Features of images replace the image
// tokens, whose number [Qwen25VLConfig.ExpandImages] adapts. Without images, all ids are
// text. Leave out padding: no token depends on later ones.
func (m *Qwen25VL) Forward(ids []int32, images []VisionInput) *mlx.Array {
	if len(ids) == 0 {
		mlx.Throw(errors.New("no token ids for Qwen2.5-VL"))
	}
	if len(images) == 0 {
		images = nil
	} else if m.Visual == nil {
		mlx.Throw(errors.New("images for a Qwen2.5-VL without its vision encoder"))
	}
	tokens := m.Config.imageTokens()
	positions, err := tokens.place(ids, images)
	if err != nil {
		mlx.Throw(fmt.Errorf("Qwen2.5-VL: %w", err))
	}
	x := m.LanguageModel.EmbedTokens.Forward(ids, m.Dtype)
	if images != nil {
		x = tokens.replace(x, ids, m.Visual.Forward(images, m.Dtype))
	}
	return m.tap(m.LanguageModel.Forward(x, positions, images != nil, m.Dtype), ids, images)
}

// tap passes the output through the hook with the inputs of the reference.
func (m *Qwen25VL) tap(y *mlx.Array, ids []int32, images []VisionInput) *mlx.Array {
	if !m.Observed() {
		return y
	}
	var pixels, grids *mlx.Array
	if images != nil {
		pixels, grids = pixelsOf(images), gridsOf(images)
	}
	return m.Tap(y, mlx.FromInt32(ids, 1, len(ids)), pixels, grids)
}

// qwen25VLText is Qwen2_5_VLTextModel.
type qwen25VLText struct {
	nn.Module   `in:"inputs_embeds position_ids"`
	EmbedTokens *nn.Embedding    `w:"embed_tokens"`
	Layers      []*qwen25VLLayer `w:"layers"`
	Norm        *nn.RMSNorm      `w:"norm"`
	RotaryEmb   *rotaryEmbedding `w:"rotary_emb"`

	rope qwenVLRope
}

func newQwen25VLText(c Qwen25VLTextConfig) *qwen25VLText {
	m := &qwen25VLText{
		EmbedTokens: nn.NewEmbedding(c.VocabSize, c.HiddenSize), Norm: nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps),
		RotaryEmb: &rotaryEmbedding{}, rope: c.rope(),
	}
	for range c.NumHiddenLayers {
		m.Layers = append(m.Layers, newQwen25VLLayer(c))
	}
	return m
}

// Forward takes embeddings [1, T, hidden_size]. If they include images, the reference
// gets the positions too.
func (m *qwen25VLText) Forward(embeds *mlx.Array, positions [][]int, images bool, dtype mlx.Dtype) *mlx.Array {
	ids := transposed(positions).ExpandDims(1)
	rope := nn.NewMRope(positions, m.rope.MRopeSection, *m.rope.RopeTheta)
	rope = m.RotaryEmb.Forward(rope, dtype, true, embeds, ids)
	x := nn.WidenFP16(embeds)
	for _, l := range mlx.Layers(m.Layers, &x) {
		x = l.Forward(x, rope, dtype)
	}
	if !images {
		ids = nil
	}
	return m.Tap(m.Norm.Forward(x), embeds, ids)
}

// qwen25VLLayer is Qwen2_5_VLDecoderLayer.
type qwen25VLLayer struct {
	nn.Module
	SelfAttn               *qwen25VLAttention `w:"self_attn"`
	MLP                    *qwen25VLMLP       `w:"mlp"`
	InputLayerNorm         *nn.RMSNorm        `w:"input_layernorm"`
	PostAttentionLayerNorm *nn.RMSNorm        `w:"post_attention_layernorm"`
}

func newQwen25VLLayer(c Qwen25VLTextConfig) *qwen25VLLayer {
	kv := c.kvHeads() * c.headDim()
	return &qwen25VLLayer{
		SelfAttn: &qwen25VLAttention{
			QProj: nn.NewLinear(c.HiddenSize, c.HiddenSize, true), KProj: nn.NewLinear(c.HiddenSize, kv, true),
			VProj: nn.NewLinear(c.HiddenSize, kv, true), OProj: nn.NewLinear(c.HiddenSize, c.HiddenSize, false),
			heads: c.NumAttentionHeads, kvHeads: c.kvHeads(),
		},
		MLP:                    newQwen25VLMLP(c.HiddenSize, c.IntermediateSize, false),
		InputLayerNorm:         nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps),
		PostAttentionLayerNorm: nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps),
	}
}

func (l *qwen25VLLayer) Forward(x *mlx.Array, rope nn.Rope, dtype mlx.Dtype) *mlx.Array {
	y := x.Add(l.SelfAttn.Forward(l.InputLayerNorm.Forward(x).AsType(dtype), rope))
	y = y.Add(l.MLP.Forward(l.PostAttentionLayerNorm.Forward(y).AsType(dtype)))
	return l.Tap(y, x)
}

// qwen25VLAttention is Qwen2_5_VLAttention: grouped queries, with bias.
type qwen25VLAttention struct {
	nn.Module `in:"hidden_states"`

	QProj *nn.Linear `w:"q_proj"`
	KProj *nn.Linear `w:"k_proj"`
	VProj *nn.Linear `w:"v_proj"`
	OProj *nn.Linear `w:"o_proj"`

	heads, kvHeads int
}

func (a *qwen25VLAttention) Forward(x *mlx.Array, rope nn.Rope) *mlx.Array {
	q := nn.Heads(a.QProj.Forward(x), a.heads)
	k := nn.Heads(a.KProj.Forward(x), a.kvHeads)
	v := nn.Heads(a.VProj.Forward(x), a.kvHeads)
	y := a.Attend(nn.AttentionOptions{Rotate: rope.HalfSplit, Causal: true}, q, k, v)
	return a.Tap(a.OProj.ForwardWide(nn.MergeHeads(y), x.Dtype()), x)
}

// qwen25VLMLP is Qwen2MLP and Qwen2_5_VLMLP: down(silu(gate x)·up x).
type qwen25VLMLP struct {
	nn.Module
	GateProj *nn.Linear `w:"gate_proj"`
	UpProj   *nn.Linear `w:"up_proj"`
	DownProj *nn.Linear `w:"down_proj"`
	ActFn    *nn.SiLU   `w:"act_fn"`
}

func newQwen25VLMLP(dim, hidden int, bias bool) *qwen25VLMLP {
	return &qwen25VLMLP{
		GateProj: nn.NewLinear(dim, hidden, bias), UpProj: nn.NewLinear(dim, hidden, bias),
		DownProj: nn.NewLinear(hidden, dim, bias), ActFn: &nn.SiLU{},
	}
}

func (m *qwen25VLMLP) Forward(x *mlx.Array) *mlx.Array {
	y := nn.WidenFP16(m.ActFn.Forward(m.GateProj.Forward(x))).Mul(nn.WidenFP16(m.UpProj.Forward(x)))
	return m.Tap(m.DownProj.ForwardWide(y, x.Dtype()), x)
}
