package family

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// krea2Licence is the licence of Krea 2.
var krea2Licence = Licence{
	Name: "Krea 2 Community License", ID: "krea-2-community-license", URL: "LICENSE.pdf",
	Commercial: CommercialConditional, Terms: "commercial use only below a yearly revenue of US$ 1 million",
}

// Krea2 is the family of Krea 2.
var Krea2 = &Family{
	Name: "Krea 2",
	Pipelines: []*Class{
		{Name: "Krea2Pipeline", Configure: configureKrea2, Guidance: picture.CFGScaleMinusOne, Components: []Member{
			{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
			{Folder: "text_encoder", Class: component.Qwen3VLForConditionalGeneration, Alias: component.Qwen3VLModel,
				MFlux: component.Qwen3VLOfKrea2},
			{Folder: "tokenizer", Class: component.Qwen2Tokenizer},
			{Folder: "transformer", Class: component.Krea2Transformer2DModel},
			{Folder: "vae", Class: component.AutoencoderKLQwenImage},
		}},
	},
	Models: publish(
		Model{
			Class: "Krea2Pipeline", Licence: krea2Licence, Gated: true, Scheduler: shiftBySize(1, 1.15, 6400),
			// transformer and autoencoder have the defaults of their classes
			Configs: map[string]map[string]any{"text_encoder": qwen3VLOf4B},
		},
		Model{
			Name: "krea-2", Aliases: []string{"krea2", "krea-2-turbo", "krea2-turbo"}, Repo: "krea/Krea-2-Turbo",
			Defaults: defaults(8, 0), Index: krea2Index(true),
		},
		Model{
			Name: "krea-2-raw", Aliases: []string{"krea2-raw"}, Repo: "krea/Krea-2-Raw",
			Defaults: defaults(52, 3.5), Index: krea2Index(false), FileNames: []string{"raw"},
		},
	),
	Rewriter: &ownRewriter,
	Help: Help{
		Guidance: "0 disables it for Krea 2 Raw, and Krea 2 Turbo has no guidance",
	},
}

// krea2Index returns the options of a published model.
func krea2Index(distilled bool) map[string]any {
	return map[string]any{"is_distilled": distilled, "patch_size": 2, "text_encoder_select_layers": krea2Layers}
}

// krea2 is diffusers' Krea2Pipeline.
type krea2 struct {
	defaultMethods
	fromPositive
	patches
	distilled   bool
	textEncoder *textenc.Qwen3VL
	transformer *transformer.Krea2
	dtype       mlx.Dtype
}

// krea2Layers are the hidden states that the published models use (text_encoder_select_layers).
var krea2Layers = []int{2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35}

// krea2End is the number of tokens at the end of the template
// (prompt_template_encode_num_suffix_tokens).
const krea2End = 5

func configureKrea2(l *Configs) (Pipeline, Networks) {
	text, c := textenc.DefaultQwen3VLConfig(), transformer.DefaultKrea2Config()
	own := struct {
		Layers      []int `json:"text_encoder_select_layers"`
		IsDistilled bool  `json:"is_distilled"`
		PatchSize   int   `json:"patch_size"`
	}{PatchSize: 2}
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Index(&own)
	if own.PatchSize != 2 {
		l.CheckIndex(fmt.Errorf("patch_size %d: expected 2", own.PatchSize))
	}
	layers := l.HiddenStates("text_encoder_select_layers", own.Layers, krea2Layers, 0, text.Text.NumHiddenLayers)
	l.Fits("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize, "text_hidden_dim", c.TextHiddenDim)
	l.Fits("text_encoder", "the number of text_encoder_select_layers", len(layers), "num_text_layers", c.NumTextLayers)
	if l.Failed() {
		return nil, nil
	}
	k := &krea2{dtype: l.Dtype, distilled: own.IsDistilled, patches: patches{c.InChannels}}
	k.textEncoder = textenc.NewQwen3VL(text, layers, k.dtype)
	k.transformer = transformer.NewKrea2(c)
	return k, Networks{"text_encoder": k.textEncoder, "transformer": k.transformer}
}

func (k *krea2) Defaults() Defaults {
	if k.distilled {
		return defaults(8, 0)
	}
	return defaults(28, 4.5)
}

// PromptEncodings returns Qwen3-VL's hidden states [n, num_text_layers, hidden_size]. diffusers pads
// the prompt before the end of the template, and hides the padding everywhere, so that without it the
// result is the same.
func (k *krea2) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1, -1},
		PrefixTokens: qwenImageDrop,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			return chat("", "").withSystem(qwenImageSystem).closed(t, prompt, qwenImageDrop+limit-krea2End)
		},
		Encode: func(ids []int32) *mlx.Array {
			x := k.textEncoder.Forward(ids).Squeeze(0)
			x = x.Slice(0, min(qwenImageDrop, len(ids)-1), len(ids))
			return x.Reshape(x.Dim(0), len(k.textEncoder.HiddenStates), k.textEncoder.Config.Text.HiddenSize)
		},
	}}
}

// Guidance refuses guidance for the distilled model.
func (k *krea2) Guidance(g Guidance) (bool, error) {
	if k.distilled {
		return false, withoutGuidance(g.Scale, 0, "Krea 2 Raw has")
	}
	return k.fromPositive.Guidance(g)
}

// Mu returns the shift of the distilled model, which is the same for all sizes.
func (k *krea2) Mu(shift scheduler.DynamicShift, tokens, _ int) float64 {
	if k.distilled {
		return 1.15
	}
	return shift.Mu(tokens)
}

// DrawsUnpacked reports that mflux does so.
func (k *krea2) DrawsUnpacked() {}

func (k *krea2) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	text := c.Text[0].ExpandDims(0)
	s, err := k.transformer.Sequence(h, w, text.Dim(1))
	if err != nil {
		return nil, errs.Request(err)
	}
	if !k.transformer.Observed() {
		text = c.once(func() *mlx.Array { return k.transformer.FuseText(text, k.dtype) })
	}
	in := transformer.Inputs{Text: text}
	return predictor(newForward(c, compile, s, k.transformer.Pass), in, k.dtype, byTime(k.transformer)), nil
}
