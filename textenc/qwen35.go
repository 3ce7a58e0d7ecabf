package textenc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen35Config is config.json of transformers' Qwen3_5ForConditionalGeneration, or of
// Qwen3_5ForCausalLM, whose fields are those of text_config.
type Qwen35Config struct {
	Text              Qwen35TextConfig
	Vision            *Qwen3VLVisionConfig // nil: text only
	ImageTokenID      int
	TieWordEmbeddings bool // or that of Text
}

// Qwen35TextConfig is transformers' Qwen3_5TextConfig. Of the layers some have full attention, and the
// others a gated delta rule.
type Qwen35TextConfig struct {
	Qwen3VLTextConfig
	PartialRotaryFactor   *float64 `json:"partial_rotary_factor"` // of head_dim, if rope_parameters lacks it
	FullAttentionInterval int      `json:"full_attention_interval"`
	AttnOutputGate        bool     `json:"attn_output_gate"`
	LinearConvKernelDim   int      `json:"linear_conv_kernel_dim" size:"2"`
	LinearKeyHeadDim      int      `json:"linear_key_head_dim" size:"1"`
	LinearValueHeadDim    int      `json:"linear_value_head_dim" size:"1"`
	LinearNumKeyHeads     int      `json:"linear_num_key_heads" size:"1"`
	LinearNumValueHeads   int      `json:"linear_num_value_heads" size:"1"`
}

// The values of layer_types.
const (
	fullAttention   = "full_attention"
	linearAttention = "linear_attention"
)

// DefaultQwen35Config returns the values that transformers uses for fields that a config lacks.
func DefaultQwen35Config() Qwen35Config {
	return Qwen35Config{
		Text: Qwen35TextConfig{
			Qwen3VLTextConfig: Qwen3VLTextConfig{
				Qwen3Config: Qwen3Config{
					VocabSize: 248320, HiddenSize: 4096, IntermediateSize: 12288, NumHiddenLayers: 32,
					NumAttentionHeads: 16, HeadDim: 256, HiddenAct: "silu", RMSNormEps: 1e-6,
				},
				NumKeyValueHeads: new(4),
			},
			FullAttentionInterval: 4, AttnOutputGate: true, LinearConvKernelDim: 4,
			LinearKeyHeadDim: 128, LinearValueHeadDim: 128, LinearNumKeyHeads: 16, LinearNumValueHeads: 32,
		},
		ImageTokenID: 248056,
	}
}

// UnmarshalJSON reads either layout. Fields that the JSON lacks keep their values.
func (c *Qwen35Config) UnmarshalJSON(data []byte) error {
	layout := struct {
		Text         *json.RawMessage      `json:"text_config"`
		Vision       **Qwen3VLVisionConfig `json:"vision_config"`
		ImageTokenID *int                  `json:"image_token_id"`
		Tie          *bool                 `json:"tie_word_embeddings"`
	}{Vision: &c.Vision, ImageTokenID: &c.ImageTokenID, Tie: &c.TieWordEmbeddings}
	if err := json.Unmarshal(data, &layout); err != nil {
		return err
	}
	if layout.Text != nil {
		data = *layout.Text
	}
	if c.Vision != nil {
		c.Vision.DeepstackVisualIndexes = nil
	}
	return json.Unmarshal(data, &c.Text)
}

// Validate returns an error if the model cannot be run with the config.
func (c *Qwen35Config) Validate() error {
	if err := c.Text.Validate(); err != nil {
		return err
	}
	vl := c.vl()
	return vl.validateVision()
}

// vl returns the config of the Qwen3-VL that has these layers.
func (c *Qwen35Config) vl() Qwen3VLConfig {
	return Qwen3VLConfig{Text: c.Text.Qwen3VLTextConfig, Vision: c.Vision, ImageTokenID: c.ImageTokenID, model: "Qwen3.5"}
}

// Validate returns an error if the language model cannot be run with the config.
func (c *Qwen35TextConfig) Validate() error {
	attention := c.Qwen3VLTextConfig
	attention.LayerTypes = nil
	rope := c.rope()
	attention.RopeScaling, attention.RopeParameters = &rope, nil
	if err := attention.Validate(); err != nil {
		return err
	}
	types := c.types()
	unknown := func(t string) bool { return t != fullAttention && t != linearAttention }
	k, v := c.LinearNumKeyHeads, c.LinearNumValueHeads
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case !c.AttnOutputGate:
		return errors.New("attn_output_gate false: expected true")
	case len(types) != c.NumHiddenLayers || slices.ContainsFunc(types, unknown):
		return fmt.Errorf("layer_types %q, expected %s or %s for each of %d layers",
			types, fullAttention, linearAttention, c.NumHiddenLayers)
	case v%k != 0:
		return fmt.Errorf("linear_num_value_heads %d must be a multiple of linear_num_key_heads %d", v, k)
	case c.rotated() < 2 || c.rotated()%2 != 0 || c.rotated() > c.HeadDim:
		return fmt.Errorf("partial_rotary_factor %g of head_dim %d: expected an even number of features",
			*rope.PartialRotaryFactor, c.HeadDim)
	}
	return nil
}

// types returns the types of the layers.
func (c *Qwen35TextConfig) types() []string {
	if c.LayerTypes != nil {
		return c.LayerTypes
	}
	types := make([]string, c.NumHiddenLayers)
	for i := range types {
		if types[i] = linearAttention; c.FullAttentionInterval > 0 && (i+1)%c.FullAttentionInterval == 0 {
			types[i] = fullAttention
		}
	}
	return types
}

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen35TextConfig) rope() qwenVLRope {
	r := newQwenVLRope(c.RopeScaling, c.RopeParameters, c.RopeTheta, 10000)
	quarter := 0.25
	r.PartialRotaryFactor = cmp.Or(r.PartialRotaryFactor, c.PartialRotaryFactor, &quarter)
	if r.MRopeSection == nil {
		r.MRopeSection = []int{11, 11, 10}
	}
	return r
}

// rotated returns how many features of a head are rotated.
func (c *Qwen35TextConfig) rotated() int {
	return int(float64(c.HeadDim) * *c.rope().PartialRotaryFactor)
}

// NewQwen35ForConditionalGeneration declares transformers' Qwen3_5ForConditionalGeneration, with the vision
// encoder if vision is set, or Qwen3_5ForCausalLM, which is the same without it.
func NewQwen35ForConditionalGeneration(c Qwen35Config, vision bool, dtype mlx.Dtype) *CausalLM {
	vl := c.vl()
	text := newQwenVLText(vl.Text.layers(), c.Text.rope().interleaved(c.Text.rotated()/2), []int{c.Text.NumHiddenLayers}, c.Text.layer)
	text.Norm.Offset = 1
	m := &Qwen3VL{LanguageModel: text, Config: vl, Dtype: dtype}
	return newQwen3VLCausalLM(m, vision, c.TieWordEmbeddings || c.Text.TieWordEmbeddings)
}

// layer declares Qwen3_5DecoderLayer: that of Qwen3 with norms whose weights are stored minus one, and
// with a gate for the output of attention, or with a gated delta rule instead.
func (c *Qwen35TextConfig) layer(q Qwen3Config, index int) *qwen3Layer {
	l := newQwen3Layer(q, index)
	l.InputLayerNorm.Offset, l.PostAttentionLayerNorm.Offset = 1, 1
	if c.types()[index] == linearAttention {
		l.SelfAttn, l.LinearAttn = nil, newGatedDeltaNet(c, index)
		return l
	}
	a := l.SelfAttn
	a.QProj, a.gated = nn.NewLinear(q.HiddenSize, 2*a.QProj.Out(), false), true
	a.QKV = nn.NewStack(a.QProj, a.KProj, a.VProj)
	a.QNorm.Offset, a.KNorm.Offset = 1, 1
	return l
}
