package family

import (
	"image"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// flux2DevComponents are the components of Flux2Pipeline.
var flux2DevComponents = []Member{
	{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
	{Folder: "text_encoder", Class: component.Mistral3ForConditionalGeneration},
	{Folder: "tokenizer", Class: component.PixtralProcessor},
	{Folder: "transformer", Class: component.Flux2Transformer2DModel},
	{Folder: "vae", Class: component.AutoencoderKLFlux2},
}

// flux2Dev is diffusers' Flux2Pipeline: FLUX.2-dev. Its transformer takes the guidance scale.
type flux2Dev struct {
	flux2
	text *textenc.Mistral3
}

// flux2DevOutLayers are the hidden states that the published model uses (text_encoder_out_layers).
var flux2DevOutLayers = []int{10, 20, 30}

func configureFlux2Dev(l *Configs) (Pipeline, Networks) {
	f := &flux2Dev{}
	text := textenc.DefaultMistral3Config()
	l.Read("text_encoder", &text)
	layers := f.read(l, flux2DevOutLayers, text.Text.HiddenSize, text.Text.NumHiddenLayers, true)
	if l.Failed() {
		return nil, nil
	}
	f.text = textenc.NewMistral3(text, layers, f.dtype)
	return f, Networks{"text_encoder": f.text, "transformer": f.transformer}
}

func (f *flux2Dev) Defaults() Defaults { return defaults(50, 4) }

func (f *flux2Dev) Guidance(Guidance) (bool, error) { return false, nil }

// flux2Chat is Mistral's chat template, with the system message of Flux2Pipeline. <s> is not repeated by
// the tokenizer.
var flux2Chat = template{
	before: "<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on object " +
		"relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]",
	after: "[/INST]",
}

// PromptEncodings returns Mistral 3, which sees the prompt padded to the full length, on the side that the
// tokenizer pads. The transformer treats padding like other tokens.
func (f *flux2Dev) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			tokens, err := flux2Chat.cut(t, strings.ReplaceAll(prompt, "[IMG]", ""), limit)
			if err == nil {
				tokens.IDs, err = t.Pad(tokens.IDs, limit)
			}
			return tokens, err
		},
		Padded:       true,
		EncodeMasked: func(ids []int32, first, end int) *mlx.Array { return f.text.Forward(ids, first, end).Squeeze(0) },
	}}
}
