package textenc

import (
	"encoding/json"
	"fmt"

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

// Qwen25VLTextConfig is the config of the language model, whose layers are Qwen3's with biases and without norms of heads.
// The width and the number of the heads determine their size.
type Qwen25VLTextConfig struct{ Qwen3VLTextConfig }

// DefaultQwen25VLConfig returns the values that transformers uses for fields that a
// config lacks.
func DefaultQwen25VLConfig() Qwen25VLConfig {
	return Qwen25VLConfig{
		Text: Qwen25VLTextConfig{Qwen3VLTextConfig{
			Qwen3Config: Qwen3Config{
				VocabSize: 152064, HiddenSize: 8192, IntermediateSize: 29568, NumHiddenLayers: 80,
				NumAttentionHeads: 64, HiddenAct: "silu", RMSNormEps: 1e-5,
			},
			NumKeyValueHeads: new(8),
		}},
		Vision: Qwen25VLVisionConfig{
			visionConfig: visionConfig{
				Depth: 32, HiddenSize: 3584, IntermediateSize: 3420, NumHeads: 16, HiddenAct: "silu",
				InChannels: 3, PatchSize: 14, SpatialMergeSize: 2, TemporalPatchSize: 2, OutHiddenSize: 3584,
			},
			WindowSize: 112, FullAttBlockIndexes: []int{7, 15, 23, 31},
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
	if err := c.Text.Validate(); err != nil {
		return err
	}
	return validateVision(&c.Vision, c.Vision.OutHiddenSize, c.Text.HiddenSize)
}

// Validate returns an error if the language model cannot be run with the config.
func (c *Qwen25VLTextConfig) Validate() error {
	layers, rope, pairs := c.layers(), c.rope(), 0
	if c.NumAttentionHeads > 0 && (c.HiddenSize%c.NumAttentionHeads != 0 || layers.HeadDim%2 != 0) {
		return fmt.Errorf("hidden_size %d must be num_attention_heads %d times an even number", c.HiddenSize, c.NumAttentionHeads)
	}
	if err := layers.Validate(); err != nil {
		return err
	}
	for _, n := range rope.MRopeSection {
		if n < 1 || n > nn.MaxDim {
			return fmt.Errorf("mrope_section %v: must be positive", rope.MRopeSection)
		}
		pairs += n
	}
	switch {
	case rope.RopeType != "default":
		return fmt.Errorf("rope_type %q, expected default or mrope", rope.RopeType)
	case !(*rope.RopeTheta > 0):
		return fmt.Errorf("rope_theta %g must be positive", *rope.RopeTheta)
	case pairs != layers.HeadDim/2:
		return fmt.Errorf("mrope_section %v must sum to %d, half the size of a head", rope.MRopeSection, layers.HeadDim/2)
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

// layers returns the config of the layers.
func (c *Qwen25VLTextConfig) layers() Qwen3Config {
	q := c.Qwen3VLTextConfig.layers()
	q.HeadDim, q.AttentionBias = c.HiddenSize/max(c.NumAttentionHeads, 1), false
	return q
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
	Visual        visionEncoder `w:"visual"` // nil without a vision encoder
	LanguageModel *qwenVLText   `w:"language_model"`

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
	rope := c.Text.rope()
	rotary := func(positions [][]int) nn.Rope { return nn.NewMRope(positions, rope.MRopeSection, *rope.RopeTheta) }
	text := newQwenVLText(c.Text.layers(), rotary, []int{c.Text.NumHiddenLayers}, newQwen25VLLayer)
	m := &Qwen25VL{LanguageModel: text, Config: c, Dtype: dtype}
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

func (m *Qwen25VL) begin(p *pass) { m.LanguageModel.begin(p) }

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
	in := m.Config.imageTokens().input(m.LanguageModel.EmbedTokens, ids, images, p, m.Visual)
	y := m.LanguageModel.Forward(in, p)[m.Config.Text.NumHiddenLayers]
	if !m.Observed() {
		return y
	}
	pixels, grids := in.tapped()
	return m.Tap(y, in.ids, pixels, grids)
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
