package textenc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Mistral3Config is text_encoder/config.json of transformers' Mistral3ForConditionalGeneration. Its vision
// encoder is not used.
type Mistral3Config struct {
	Text MistralConfig `json:"text_config"`
}

// MistralConfig is the config of transformers' MistralModel or Ministral3Model, as its model_type says. Its
// fields are those of Qwen3Model, whose layers have norms of heads in addition.
type MistralConfig struct {
	Qwen3Config
	ModelType     string          `json:"model_type"`
	SlidingWindow json.RawMessage `json:"sliding_window"`
}

// ministral3 is the model_type of Ministral3Model.
const ministral3 = "ministral3"

// DefaultMistral3Config returns the values that transformers uses for fields that a config lacks: those of
// Mistral Small 3.
func DefaultMistral3Config() Mistral3Config {
	c := DefaultQwen3Config()
	c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 131072, 5120, 32768, 40
	c.NumKeyValueHeads, c.RMSNormEps, c.RopeTheta = 8, 1e-5, new(float64(1e9))
	return Mistral3Config{Text: MistralConfig{Qwen3Config: c, ModelType: "mistral"}}
}

// DefaultMinistral3Config returns the values that transformers uses for fields that the config of a
// Ministral3Model lacks.
func DefaultMinistral3Config() MistralConfig {
	c := DefaultMistral3Config().Text
	c.ModelType, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers, c.RopeTheta = ministral3, 4096, 14336, 34, nil
	c.RopeParameters = &ropeParameters{
		RopeTheta: new(float64(1e6)), RopeType: "yarn", Factor: 16, Original: 16384, BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 1,
		Llama4Beta: 0.1,
	}
	return c
}

// UnmarshalJSON reads a config, with the defaults of its model_type. Rotary embeddings have no defaults
// if a config has any of their values.
func (c *MistralConfig) UnmarshalJSON(data []byte) error {
	var has struct {
		ModelType  string `json:"model_type"`
		Parameters any    `json:"rope_parameters"`
	}
	if err := json.Unmarshal(data, &has); err != nil {
		return err
	}
	if has.ModelType == ministral3 {
		*c = DefaultMinistral3Config()
	}
	if has.Parameters != nil {
		c.RopeParameters = nil
	}
	type fields MistralConfig
	return json.Unmarshal(data, (*fields)(c))
}

// Validate returns an error if the language model cannot be run with the config.
func (c *MistralConfig) Validate() error {
	if w := string(c.SlidingWindow); w != "" && w != "null" {
		return fmt.Errorf("sliding_window %s: expected null", w)
	}
	if c.ModelType != "" && c.ModelType != "mistral" && c.ModelType != ministral3 {
		return fmt.Errorf("model_type %q: expected mistral or %s", c.ModelType, ministral3)
	}
	return c.Qwen3Config.Validate()
}

// Validate returns an error if the language model cannot be run with the config.
func (c *Mistral3Config) Validate() error {
	if err := c.Text.Validate(); err != nil {
		return fmt.Errorf("text_config: %w", err)
	}
	return nil
}

// Mistral3 is transformers' Mistral3ForConditionalGeneration without its vision encoder and head, used as
// a text encoder that returns hidden states of some of its layers.
type Mistral3 struct {
	nn.Module     `in:"input_ids"`
	LanguageModel *Qwen3 `w:"language_model"` // MistralModel or Ministral3Model, whose layers are Qwen3's without norms of heads

	Config       Mistral3Config
	HiddenStates []int
	Dtype        mlx.Dtype // in which it computes
}

func newMistralModel(c MistralConfig, hiddenStates []int, dtype mlx.Dtype) *Qwen3 {
	m := &Qwen3{Config: c.Qwen3Config, HiddenStates: hiddenStates, Dtype: dtype, scaled: c.ModelType == ministral3}
	m.qwen3Decoder = newQwen3Decoder(c.Qwen3Config, hiddenStates, newMistralLayer)
	return m
}

// NewMinistral3ForCausalLM declares the model with its head.
func NewMinistral3ForCausalLM(c MistralConfig, dtype mlx.Dtype) *CausalLM {
	return newCausalLM(newMistralModel(c, []int{c.NumHiddenLayers}, dtype), c.TieWordEmbeddings, nil, dtype)
}

// NewMistral3 declares the model of a validated config that returns some of transformers' hidden_states, as
// [NewQwen3]. Its tensors have names as in transformers 5 or 4.
func NewMistral3(c Mistral3Config, hiddenStates []int, dtype mlx.Dtype) *Mistral3 {
	m := &Mistral3{LanguageModel: newMistralModel(c.Text, hiddenStates, dtype), Config: c, HiddenStates: hiddenStates, Dtype: dtype}
	for _, p := range nn.Parameters(m) {
		*p.Param = p.Or(strings.Replace(p.Name, "language_model.", "language_model.model.", 1))
	}
	return m
}

// NewMistral3ForConditionalGeneration declares the model with its head and without the vision encoder. Its
// hidden states are also those that [NewMistral3] would return. The head is tied to the embeddings if text_config
// says so: the config around it, which transformers 5 writes, has true for all models.
func NewMistral3ForConditionalGeneration(c Mistral3Config, hiddenStates []int, dtype mlx.Dtype) *CausalLM {
	m := NewMistral3(c, append([]int{c.Text.NumHiddenLayers}, hiddenStates...), dtype)
	m.HiddenStates = hiddenStates
	lm := newCausalLM(m, c.Text.TieWordEmbeddings, nil, dtype)
	if head, ok := lm.LMHead.(*nn.Linear); ok {
		head.Weight = head.Weight.Or("language_model.lm_head.weight")
	}
	return lm
}

func (m *Mistral3) decoder() *qwen3Decoder { return m.LanguageModel.decoder() }

func (m *Mistral3) begin(p *pass) { m.LanguageModel.begin(p) }

func (m *Mistral3) hidden(ids *mlx.Array, images []VisionInput, p *pass) *mlx.Array {
	return m.Tap(m.LanguageModel.hidden(ids, images, p), ids)
}

// newMistralLayer declares MistralDecoderLayer.
func newMistralLayer(c Qwen3Config, index int) *qwen3Layer {
	l := newQwen3Layer(c, index)
	l.SelfAttn.QNorm, l.SelfAttn.KNorm = nil, nil
	return l
}

// Unused returns patterns of the checkpoint's tensors that the hidden states do not need.
func (m *Mistral3) Unused() (unused []string) {
	unused = []string{"lm_head.weight", "language_model.lm_head.weight", "vision_tower.*", "multi_modal_projector.*"}
	for _, prefix := range []string{"language_model.", "language_model.model."} {
		unused = append(unused, m.LanguageModel.unused(prefix, m.Config.Text.NumHiddenLayers)...)
	}
	return unused
}

// Forward returns the hidden states of ids, concatenated on the last axis: [1, len(ids),
// hidden_size·len(HiddenStates)]. Ids before the one numbered first and from the one numbered end on are
// padding, which no other token sees; positions count from the first id on. In float16 the states are
// float32, as the residual stream.
func (m *Mistral3) Forward(ids []int32, first, end int) *mlx.Array {
	if first < 0 || first >= end || end > len(ids) {
		mlx.Throw(errors.New("no token ids for Mistral 3 that are no padding"))
	}
	p := newPass(nil, 1, len(ids), m.Dtype)
	p.valid, p.padding = end, first
	return besides(m.LanguageModel.states(m.LanguageModel.EmbedTokens.Forward(ids, m.Dtype), p), m.HiddenStates)
}
