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
	// TieWordEmbeddings reports that the language model's head has the weights of the embeddings.
	TieWordEmbeddings bool
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
	TieWordEmbeddings bool        `json:"tie_word_embeddings"` // as that of Qwen25VLConfig
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
		Tie          *bool                 `json:"tie_word_embeddings"`
	}{&c.Text, &c.Vision, &c.ImageTokenID, &c.TieWordEmbeddings})
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

// layers returns the config of the layers, which are Qwen3's without norms of heads.
func (c *Qwen25VLTextConfig) layers() Qwen3Config {
	return Qwen3Config{
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, IntermediateSize: c.IntermediateSize, NumHiddenLayers: c.NumHiddenLayers,
		NumAttentionHeads: c.NumAttentionHeads, NumKeyValueHeads: c.kvHeads(), HeadDim: c.headDim(), RMSNormEps: c.RMSNormEps,
	}
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
	return imageTokens{"Qwen2.5-VL", int32(c.ImageTokenID), c.Vision.patches()}
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

// NewQwen25VLForConditionalGeneration declares the model with its head.
func NewQwen25VLForConditionalGeneration(c Qwen25VLConfig, vision bool, dtype mlx.Dtype) *CausalLM {
	var sees ImageConfig
	if vision {
		sees = &c
	}
	return newCausalLM(NewQwen25VL(c, vision, dtype), c.TieWordEmbeddings || c.Text.TieWordEmbeddings, sees, dtype)
}

func (m *Qwen25VL) decoder() *qwen3Decoder { return m.LanguageModel.decoder() }

func (m *Qwen25VL) begin(p *pass) { p.rope = m.LanguageModel.rotary(p.positions(3)).Batched(p.tokens) }

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
	return m.hidden(mlx.FromInt32(ids, 1, len(ids)), images, newPass(nil, 1, len(ids), m.Dtype))
}

func (m *Qwen25VL) hidden(ids *mlx.Array, images []VisionInput, p *pass) *mlx.Array {
	var see func([]VisionInput) (*mlx.Array, []*mlx.Array)
	if m.Visual != nil {
		see = func(images []VisionInput) (*mlx.Array, []*mlx.Array) { return m.Visual.Forward(images, m.Dtype), nil }
	}
	in := m.Config.imageTokens().input(m.LanguageModel.EmbedTokens, ids, images, p, see)
	y := m.LanguageModel.Forward(in, p)
	if !m.Observed() {
		return y
	}
	pixels, grids := in.tapped()
	return m.Tap(y, in.ids, pixels, grids)
}

// qwen25VLText is Qwen2_5_VLTextModel.
type qwen25VLText struct {
	nn.Module    `in:"inputs_embeds position_ids"`
	qwen3Decoder `w:"."`
	RotaryEmb    *rotaryEmbedding `w:"rotary_emb"`

	rope qwenVLRope
}

func newQwen25VLText(c Qwen25VLTextConfig) *qwen25VLText {
	decoder := newQwen3Decoder(c.layers(), []int{c.NumHiddenLayers}, newQwen25VLLayer)
	return &qwen25VLText{qwen3Decoder: decoder, RotaryEmb: &rotaryEmbedding{}, rope: c.rope()}
}

// Forward takes embeddings [B, T, hidden_size].
func (m *qwen25VLText) Forward(in qwenVLInput, p *pass) *mlx.Array {
	ids, passed := in.positionIDs()
	p.rope = m.RotaryEmb.Forward(m.rotary(in.positions), p.dtype, p.batch, in.embeds, ids).Batched(p.tokens)
	return m.Tap(m.run(in.embeds, nil, p)[len(m.Layers)], in.embeds, passed)
}

func (m *qwen25VLText) rotary(positions [][]int) nn.Rope {
	return nn.NewMRope(positions, m.rope.MRopeSection, *m.rope.RopeTheta)
}

// newQwen25VLLayer declares Qwen2_5_VLDecoderLayer.
func newQwen25VLLayer(c Qwen3Config, index int) *qwen3Layer {
	l := newQwen3Layer(c, index)
	a := l.SelfAttn
	for _, p := range []*nn.Linear{a.QProj, a.KProj, a.VProj} {
		p.Bias = nn.NewParam(p.Out())
	}
	a.QNorm, a.KNorm = nil, nil
	return l
}
