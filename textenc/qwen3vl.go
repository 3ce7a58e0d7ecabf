package textenc

import (
	"cmp"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen3VLConfig is text_encoder/config.json of transformers' Qwen3VLModel and
// Qwen3VLForConditionalGeneration.
type Qwen3VLConfig struct {
	Text         Qwen3VLTextConfig    `json:"text_config"`
	Vision       *Qwen3VLVisionConfig `json:"vision_config"` // nil: text only
	ImageTokenID int                  `json:"image_token_id"`
	// TieWordEmbeddings reports, as that of Text, that the language model's head has the weights of the embeddings.
	TieWordEmbeddings bool `json:"tie_word_embeddings"`

	model string // its name for errors, Qwen3-VL if it is empty
}

// Qwen3VLTextConfig is text_config of transformers' Qwen3VLConfig, as version 4
// (rope_theta, rope_scaling) and version 5 (rope_parameters) write it.
type Qwen3VLTextConfig struct {
	Qwen3Config
	NumKeyValueHeads *int        `json:"num_key_value_heads"` // nil: num_attention_heads
	RopeScaling      *qwenVLRope `json:"rope_scaling"`
	RopeParameters   *qwenVLRope `json:"rope_parameters"`
}

// DefaultQwen3VLConfig returns the values that transformers uses for fields that a config
// lacks.
func DefaultQwen3VLConfig() Qwen3VLConfig {
	return Qwen3VLConfig{
		Text:         Qwen3VLTextConfig{Qwen3Config: DefaultQwen3Config(), NumKeyValueHeads: new(32)},
		ImageTokenID: 151655,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *Qwen3VLConfig) Validate() error {
	if err := c.Text.Validate(); err != nil {
		return err
	}
	return c.validateVision()
}

func (c *Qwen3VLConfig) validateVision() error {
	if c.Vision == nil {
		return nil
	}
	return validateVision(c.Vision, c.Vision.OutHiddenSize, c.Text.HiddenSize)
}

// ExpandImages repeats each image token in a tokenized prompt as often as its image has
// features. The prompt has one for each image.
func (c *Qwen3VLConfig) ExpandImages(ids []int32, images []VisionInput) ([]int32, error) {
	return c.imageTokens().expand(ids, images)
}

// imageTokens describes the tokens of images, which need a vision encoder.
func (c *Qwen3VLConfig) imageTokens() imageTokens {
	t := imageTokens{model: cmp.Or(c.model, "Qwen3-VL"), id: int32(c.ImageTokenID)}
	if c.Vision != nil {
		t.patches = c.Vision.patches()
	}
	return t
}

// Validate returns an error if the language model cannot be run with the config.
func (c *Qwen3VLTextConfig) Validate() error {
	layers := c.layers()
	if err := layers.Validate(); err != nil {
		return err
	}
	rope := c.rope()
	switch {
	case rope.RopeType != "default":
		return fmt.Errorf("rope_type %q, expected default", rope.RopeType)
	case !(*rope.RopeTheta > 0):
		return fmt.Errorf("rope_theta %g must be positive", *rope.RopeTheta)
	case len(rope.MRopeSection) != 3:
		return fmt.Errorf("mrope_section %v, expected three numbers", rope.MRopeSection)
	case min(rope.MRopeSection[0], rope.MRopeSection[1], rope.MRopeSection[2]) < 0:
		return fmt.Errorf("mrope_section %v: must not be negative", rope.MRopeSection)
	}
	return nil
}

// layers returns the config of the layers, which are Qwen3's.
func (c *Qwen3VLTextConfig) layers() Qwen3Config {
	q := c.Qwen3Config
	if c.NumKeyValueHeads == nil {
		q.NumKeyValueHeads = c.NumAttentionHeads
	} else {
		q.NumKeyValueHeads = *c.NumKeyValueHeads
	}
	q.RopeTheta = nil
	return q
}

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen3VLTextConfig) rope() qwenVLRope {
	r := newQwenVLRope(c.RopeScaling, c.RopeParameters, c.RopeTheta, 500000)
	if r.MRopeSection == nil {
		r.MRopeSection = []int{24, 20, 20}
	}
	return r
}

// Qwen3VL is transformers' Qwen3VLModel, used as a text encoder that returns hidden states
// of some of its layers. It is Qwen3VLForConditionalGeneration without lm_head.
type Qwen3VL struct {
	nn.Module     `in:"input_ids pixel_values image_grid_thw"`
	Visual        visionEncoder `w:"visual"` // nil without a vision encoder
	LanguageModel *qwenVLText   `w:"language_model"`

	Config       Qwen3VLConfig
	HiddenStates []int
	Dtype        mlx.Dtype // in which it computes
}

// NewQwen3VL declares the model of a validated config that returns some of transformers'
// hidden_states, at least one: 0 is the embeddings, i the output of layer i-1, and
// num_hidden_layers the output of the final norm; or [LastBeforeNorm]. Layers that these
// states do not need are neither loaded nor run. In float16 the residual streams and the
// hidden states are float32. The vision encoder is left out: see [Qwen3VL.WithVision].
//
// Checkpoints have the language model's tensors as language_model.layers or, in ComfyUI's
// files, as layers, and all with or without a prefix: load it with the prefix "model.".
func NewQwen3VL(c Qwen3VLConfig, hiddenStates []int, dtype mlx.Dtype) *Qwen3VL {
	text := newQwenVLText(c.Text.layers(), c.Text.rope().interleaved(c.Text.HeadDim/2), hiddenStates, newQwen3Layer)
	m := &Qwen3VL{LanguageModel: text, Config: c, HiddenStates: hiddenStates, Dtype: dtype}
	shortNames(m)
	return m
}

// NewQwen3VLForConditionalGeneration declares the model with its head, with the vision encoder if vision
// is set. Its hidden states are also those that [NewQwen3VL] would return.
func NewQwen3VLForConditionalGeneration(c Qwen3VLConfig, hiddenStates []int, vision bool, dtype mlx.Dtype) *CausalLM {
	m := NewQwen3VL(c, append([]int{c.Text.NumHiddenLayers}, hiddenStates...), dtype)
	m.HiddenStates = hiddenStates
	return newQwen3VLCausalLM(m, vision, c.TieWordEmbeddings || c.Text.TieWordEmbeddings)
}

func newQwen3VLCausalLM(m *Qwen3VL, vision, tied bool) *CausalLM {
	var sees ImageConfig
	if vision {
		m, sees = m.WithVision(), &m.Config
	}
	shortNames(m)
	return newCausalLM(m, tied, sees, m.Dtype)
}

func (m *Qwen3VL) hidden(ids *mlx.Array, images []VisionInput, p *pass) *mlx.Array {
	return m.states(ids, images, p)[m.Config.Text.NumHiddenLayers]
}

func (m *Qwen3VL) decoder() *qwen3Decoder { return m.LanguageModel.decoder() }

func (m *Qwen3VL) begin(p *pass) { m.LanguageModel.begin(p) }

// WithVision adds the vision encoder, which the config must have, to a model that is not
// loaded yet, and returns the model.
func (m *Qwen3VL) WithVision() *Qwen3VL {
	m.Visual = newQwen3VLVision(*m.Config.Vision)
	return m
}

// Unused returns patterns of the checkpoint's tensors that the hidden states do not need.
func (m *Qwen3VL) Unused() []string {
	unused := []string{"lm_head.*", "mtp.*"} // in mflux's files it may be quantized
	if m.Visual == nil {
		unused = append(unused, "visual.*")
	}
	for _, prefix := range []string{"language_model.", ""} { // see shortNames
		unused = append(unused, m.LanguageModel.unused(prefix, m.Config.Text.NumHiddenLayers)...)
	}
	return unused
}

// Forward returns the hidden states of ids, concatenated on the last axis:
// [1, len(ids), hidden_size·len(HiddenStates)], in float32 for float16. Leave out padding: no
// token depends on later ones.
func (m *Qwen3VL) Forward(ids []int32) *mlx.Array { return m.ForwardImages(ids, nil) }

// ForwardImages is Forward with features of images in the place of the image tokens, whose
// number [Qwen3VLConfig.ExpandImages] adapts. Without images, all ids are text.
func (m *Qwen3VL) ForwardImages(ids []int32, images []VisionInput) *mlx.Array {
	return besides(m.states(mlx.FromInt32(ids, 1, len(ids)), images, newPass(nil, 1, len(ids), m.Dtype)), m.HiddenStates)
}

// ForwardPadded is Forward with padding after the first valid ids, at least one. No token sees the padding. The rows of
// padding see all valid tokens, and are all at one position.
func (m *Qwen3VL) ForwardPadded(ids []int32, valid, position int) *mlx.Array {
	if valid < 1 || valid > len(ids) {
		mlx.Throw(fmt.Errorf("%d valid ones of %d token ids for Qwen3-VL, expected at least one", valid, len(ids)))
	}
	p := newPass(nil, 1, len(ids), m.Dtype)
	p.valid, p.endAt = valid, position
	return besides(m.states(mlx.FromInt32(ids, 1, len(ids)), nil, p), m.HiddenStates)
}

// states returns hidden states of ids [B, T] by their numbers.
func (m *Qwen3VL) states(ids *mlx.Array, images []VisionInput, p *pass) map[int]*mlx.Array {
	in := m.Config.imageTokens().input(m.LanguageModel.EmbedTokens, ids, images, p, m.Visual)
	states := m.LanguageModel.Forward(in, p)
	if last, ok := m.LanguageModel.last(); ok && m.Observed() {
		pixels, grids := in.tapped()
		states[last] = m.Tap(states[last], in.ids, pixels, grids)
	}
	return states
}
