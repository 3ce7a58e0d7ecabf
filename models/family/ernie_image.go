package family

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/textgen"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// ErnieImage is the family of ERNIE-Image.
var ErnieImage = &Family{
	Name: "ERNIE-Image",
	Pipelines: []*Class{
		{Name: "ErnieImagePipeline", Configure: configureErnieImage, Autoencoder: ernieStatistics, Components: []Member{
			{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
			{Folder: "text_encoder", Class: component.Mistral3ForConditionalGeneration, Alias: component.Mistral3Model,
				MFlux: component.Mistral3OfErnieImage},
			{Folder: "tokenizer", Class: component.TokenizersBackend},
			{Folder: "transformer", Class: component.ErnieImageTransformer2DModel},
			{Folder: "vae", Class: component.AutoencoderKLFlux2},
		}},
	},
	Models: publish(
		Model{
			Class: "ErnieImagePipeline", Licence: apache2, Scheduler: constantShift(4),
			// the autoencoder has the defaults of its class
			Configs: map[string]map[string]any{
				"text_encoder": {"text_config": component.Ministral3Of3B, "tie_word_embeddings": true},
				"transformer": {
					"hidden_size": 4096, "num_attention_heads": 32, "num_layers": 36, "ffn_hidden_size": 12288, "text_in_dim": 3072,
				},
			},
		},
		Model{Name: "ernie-image", Repo: "baidu/ERNIE-Image", Defaults: defaults(50, 4)},
		Model{Name: "ernie-image-turbo", Repo: "baidu/ERNIE-Image-Turbo", Defaults: defaults(8, 1), FileNames: []string{"turbo"}},
	),
	Rewriter: &Rewriter{
		Generate: ownGenerate, Edit: ownEdit, Source: ownRewriter.Source, Component: "pe", Message: ernieMessage,
		// as diffusers' pipeline, which limits the text by the tokenizer's model_max_length alone
		Sampling: textgen.Sampling{Temperature: 0.6, TopK: 50, TopP: 0.95}, MaxTokens: 2048,
	},
	Help: Help{
		Guidance: "1 or less disables it for ERNIE-Image, and ERNIE-Image-Turbo is made for 1",
	},
}

// ernieImage is diffusers' ErnieImagePipeline.
type ernieImage struct {
	defaultMethods
	unpatched
	textEncoder *textenc.Mistral3
	transformer *transformer.ErnieImage
	dtype       mlx.Dtype
}

func configureErnieImage(l *Configs) (Pipeline, Networks) {
	text, c := textenc.DefaultMistral3Config(), transformer.DefaultErnieImageConfig()
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Fits("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize, "text_in_dim", c.TextInDim)
	if l.Failed() {
		return nil, nil
	}
	e := &ernieImage{dtype: l.Dtype, unpatched: unpatched{c.InChannels}}
	// hidden_states[-2]: the last layer and the norm after it are not needed
	e.textEncoder = textenc.NewMistral3(text, []int{text.Text.NumHiddenLayers - 1}, e.dtype)
	e.transformer = transformer.NewErnieImage(c)
	return e, Networks{"text_encoder": e.textEncoder, "transformer": e.transformer}
}

// ernieStatistics sets what ErnieImagePipeline adds to the variances of latents, whatever the config has.
func ernieStatistics(a vae.Autoencoder) {
	if m, ok := a.(*vae.KLFlux2); ok {
		m.Config.BatchNormEps = 1e-5
	}
}

// ernieMessage returns the message of _enhance_prompt_with_pe, as Python's json.dumps writes it.
func ernieMessage(prompt string, width, height int) (string, error) {
	return fmt.Sprintf(`{"prompt": %s, "width": %d, "height": %d}`, pythonText(prompt), width, height), nil
}

// pythonText returns a text in JSON, as Python's json.dumps writes it with ensure_ascii=False.
func pythonText(text string) string {
	var quoted bytes.Buffer
	e := json.NewEncoder(&quoted)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(err) // any text can be encoded
	}
	// the encoder escapes these two as well
	return strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSuffix(quoted.String(), "\n"))
}

func (e *ernieImage) Defaults() Defaults { return defaults(50, 4) }

func (e *ernieImage) Multiple() int { return 1 }

// Sigmas returns torch.linspace(1, 0, steps+1) without the 0.
func (e *ernieImage) Sigmas(steps int) []float32 { return scheduler.SigmasToZero(steps) }

// PromptEncodings returns Ministral 3, which gets the prompt without a template or padding, as long as the
// tokenizer allows.
func (e *ernieImage) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1}, NeverCut: true,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, _ int) (Tokens, error) {
			ids, err := t.EncodeSpecial(prompt)
			if err != nil || len(ids) == 0 {
				return Tokens{IDs: []int32{0}, Total: 1}, err // as the pipeline does for a tokenizer without <s>
			}
			limit := len(ids)
			if most := t.MaxLength(); most > 0 {
				limit = min(limit, most)
			}
			return template{}.padded(t, prompt, limit)
		},
		Encode: func(ids []int32) *mlx.Array { return e.textEncoder.Forward(ids, 0, len(ids)).Squeeze(0) },
	}}
}

func (e *ernieImage) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	in := transformer.Inputs{Text: c.Text[0].ExpandDims(0)}
	s := e.transformer.Sequence(h, w, in.Text.Dim(1))
	return predictor(newForward(c, compile, s, e.transformer.Pass), in, e.dtype, func(in *transformer.Inputs, at scheduler.Interval) {
		in.Timestep = e.transformer.Timestep(at.Timestep)
	}), nil
}
