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

// MistralConfig is the config of transformers' MistralModel. Its fields are those of Qwen3Model, whose
// layers have norms of heads in addition.
type MistralConfig struct {
	Qwen3Config
	SlidingWindow json.RawMessage `json:"sliding_window"`
}

// DefaultMistral3Config returns the values that transformers uses for fields that a config lacks: those of
// Mistral Small 3.
func DefaultMistral3Config() Mistral3Config {
	c := DefaultQwen3Config()
	c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 131072, 5120, 32768, 40
	c.NumKeyValueHeads, c.RMSNormEps, c.RopeTheta = 8, 1e-5, new(float64(1e9))
	return Mistral3Config{Text: MistralConfig{Qwen3Config: c}}
}

// Validate returns an error if the language model cannot be run with the config.
func (c *Mistral3Config) Validate() error {
	if w := string(c.Text.SlidingWindow); w != "" && w != "null" {
		return fmt.Errorf("text_config: sliding_window %s: expected null", w)
	}
	if err := c.Text.Qwen3Config.Validate(); err != nil {
		return fmt.Errorf("text_config: %w", err)
	}
	return nil
}

// Mistral3 is transformers' Mistral3ForConditionalGeneration without its vision encoder and head, used as
// a text encoder that returns hidden states of some of its layers.
type Mistral3 struct {
	nn.Module
	LanguageModel *mistralModel `w:"language_model"`

	Config       Mistral3Config
	HiddenStates []int
	Dtype        mlx.Dtype // in which it computes
}

// mistralModel is MistralModel, whose layers are Qwen3's without norms of heads.
type mistralModel struct {
	nn.Module
	qwen3Decoder `w:"."`
}

// NewMistral3 declares the model of a validated config that returns some of transformers' hidden_states, as
// [NewQwen3]. Its tensors have names as in transformers 5 or 4.
func NewMistral3(c Mistral3Config, hiddenStates []int, dtype mlx.Dtype) *Mistral3 {
	text := &mistralModel{qwen3Decoder: newQwen3Decoder(c.Text.Qwen3Config, hiddenStates, newMistralLayer)}
	m := &Mistral3{LanguageModel: text, Config: c, HiddenStates: hiddenStates, Dtype: dtype}
	for _, p := range nn.Parameters(m) {
		*p.Param = p.Or(strings.Replace(p.Name, "language_model.", "language_model.model.", 1))
	}
	return m
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
	text := m.LanguageModel
	p := newPass(nil, 1, len(ids), m.Dtype)
	p.valid, p.padding = end, first
	p.rope = nn.NewRope(p.positions(1), []int{m.Config.Text.HeadDim}, m.Config.Text.ropeTheta())
	return besides(text.run(text.EmbedTokens.Forward(ids, m.Dtype), nil, p), m.HiddenStates)
}
