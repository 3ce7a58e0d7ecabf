package family

import (
	"fmt"
	"image"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textgen"
	"github.com/gomflux/gomflux/transformer"
)

// flux2Licence is the licence of the larger models.
var flux2Licence = Licence{
	Name: "FLUX Non-Commercial License", ID: "flux-non-commercial-license", URL: "LICENSE.md",
	Commercial: CommercialForbidden, Terms: noCommercialUse,
}

// flux2DevLicence is the licence of FLUX.2-dev.
var flux2DevLicence = Licence{
	Name: "FLUX [dev] Non-Commercial License", ID: "flux-dev-non-commercial-license", URL: "LICENSE.txt",
	Commercial: CommercialForbidden, Terms: noCommercialUse,
}

// Flux2 is the family of FLUX.2.
var Flux2 = &Family{
	Name: "FLUX.2",
	Pipelines: []*Class{
		{Name: "Flux2KleinPipeline", Also: []string{"Flux2KleinInpaintPipeline"}, Configure: configureFlux2,
			Components: flux2Components, References: anyNumber},
		{Name: "Flux2KleinKVPipeline", Configure: configureFlux2KV, Components: flux2Components, References: anyNumber},
		{Name: "Flux2Pipeline", Guidance: picture.DistilledCFGScale, Configure: configureFlux2Dev,
			Components: flux2DevComponents, References: anyNumber},
	},
	Models: slices.Concat(
		publish(klein4B, Model{
			Name: "flux2-klein-4b", Aliases: []string{"flux2-klein", "klein-4b", "flux.2-klein-4b"},
			Repo: "black-forest-labs/FLUX.2-klein-4B", Defaults: defaults(4, 1), Index: map[string]any{"is_distilled": true},
		}),
		publish(klein9B, Model{
			Name: "flux2-klein-9b", Aliases: []string{"klein-9b", "flux.2-klein-9b"},
			Repo: "black-forest-labs/FLUX.2-klein-9B", Defaults: defaults(4, 1), Index: map[string]any{"is_distilled": true},
		}, Model{
			Name: "flux2-klein-9b-kv", Aliases: []string{"klein-9b-kv", "flux.2-klein-9b-kv"},
			Repo: "black-forest-labs/FLUX.2-klein-9b-kv", Defaults: defaults(4, 1), Class: "Flux2KleinKVPipeline",
			Index: map[string]any{"is_distilled": true},
		}),
		publish(klein4B, Model{
			Name: "flux2-klein-base-4b", Aliases: []string{"flux2-base-4b", "klein-base-4b", "flux.2-klein-base-4b"},
			Repo: "black-forest-labs/FLUX.2-klein-base-4B", Defaults: defaults(50, 4),
		}),
		publish(klein9B, Model{
			Name: "flux2-klein-base-9b", Aliases: []string{"flux2-base-9b", "klein-base-9b", "flux.2-klein-base-9b"},
			Repo: "black-forest-labs/FLUX.2-klein-base-9B", Defaults: defaults(50, 4),
		}),
		publish(Model{Class: "Flux2Pipeline"}, Model{
			Name: "flux2-dev", Aliases: []string{"flux.2-dev"}, Repo: "black-forest-labs/FLUX.2-dev", Defaults: defaults(50, 4),
			Licence: flux2DevLicence, Gated: true, Scheduler: flowShift, Processor: pixtralProcessor,
			Transformer: map[string]any{"guidance_embeds": true},
		}),
	),
	Rewriter: &Rewriter{
		Generate: flux2Upsampling, Edit: flux2EditUpsampling,
		Source:   "flux2/system_messages.py of black-forest-labs/flux2, Apache-2.0",
		Sampling: textgen.Sampling{Temperature: 0.15}, MaxTokens: 512, // as diffusers' Flux2Pipeline
	},
	Help: Help{
		Guidance: "FLUX.2-dev takes any value, 1 or less disables it for FLUX.2-klein-base, and FLUX.2-klein has no guidance",
		Editors:  "FLUX.2",
		Editing: `FLUX.2 takes any number of reference images. Each side must have at least
64 pixels, and the long side at most 8 times as many as the short side. Images
larger than a megapixel are reduced to one, and all are cropped at the center so
that their sides are multiples of 16. Prompts refer to them as image 1, image 2
and so on. Without --height and --width the result has the size of the first
image after that.`,
	},
}

// flux2Components are the components of FLUX.2-klein's pipelines.
var flux2Components = []Member{
	{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
	{Folder: "text_encoder", Class: component.Qwen3Model, Alias: component.Qwen3ForCausalLM},
	{Folder: "tokenizer", Class: component.Qwen2TokenizerFast},
	{Folder: "transformer", Class: component.Flux2Transformer2DModel},
	{Folder: "vae", Class: component.AutoencoderKLFlux2},
}

// What the models of a size share. The autoencoder has the defaults of its class.
var (
	klein4B = Model{
		Class: "Flux2KleinPipeline", Licence: apache2, Scheduler: flowShift, Transformer: map[string]any{"joint_attention_dim": 7680},
		Configs: map[string]map[string]any{
			"text_encoder": qwen3Of4B,
			"transformer":  {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "guidance_embeds": false},
		},
	}
	klein9B = Model{
		Class: "Flux2KleinPipeline", Licence: flux2Licence, Gated: true, Scheduler: flowShift,
		Transformer: map[string]any{"joint_attention_dim": 12288},
		Configs: map[string]map[string]any{
			"text_encoder": qwen3Of8B,
			"transformer":  {"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "guidance_embeds": false},
		},
	}
)

// flux2 is diffusers' Flux2KleinPipeline: FLUX.2-klein, distilled and base. With cached set it is
// Flux2KleinKVPipeline, which computes the keys and values of reference images once.
type flux2 struct {
	defaultMethods
	unpatched
	megapixelReferences
	cached      bool
	distilled   bool
	textEncoder *textenc.Qwen3
	transformer *transformer.Flux2
	dtype       mlx.Dtype
}

// flux2OutLayers are the hidden states that the published models use
// (text_encoder_out_layers).
var flux2OutLayers = []int{9, 18, 27}

func configureFlux2(l *Configs) (Pipeline, Networks) { return (&flux2{}).declare(l) }

func configureFlux2KV(l *Configs) (Pipeline, Networks) { return (&flux2{cached: true}).declare(l) }

// declare reads the configs and declares the networks.
func (f *flux2) declare(l *Configs) (Pipeline, Networks) {
	text := textenc.DefaultQwen3Config()
	l.Read("text_encoder", &text)
	layers := f.read(l, flux2OutLayers, text.HiddenSize, text.NumHiddenLayers, false)
	if l.Failed() {
		return nil, nil
	}
	f.textEncoder = textenc.NewQwen3(text, layers, f.dtype)
	return f, Networks{"text_encoder": f.textEncoder, "transformer": f.transformer}
}

// read reads the configs besides the text encoder's, of which it gets the sizes, and returns the numbers of
// its hidden states.
func (f *flux2) read(l *Configs, published []int, size, textLayers int, guided bool) []int {
	c := transformer.DefaultFlux2Config()
	var own struct {
		IsDistilled bool  `json:"is_distilled"`
		OutLayers   []int `json:"text_encoder_out_layers"`
	}
	l.Read("transformer", &c)
	l.Index(&own)
	layers := l.HiddenStates("text_encoder_out_layers", own.OutLayers, published, 1, textLayers)
	l.Fits("text_encoder", fmt.Sprintf("the size of %d hidden states of the text encoder", len(layers)), len(layers)*size,
		"joint_attention_dim", c.JointAttentionDim)
	if c.GuidanceEmbeds != guided {
		l.CheckTransformer(fmt.Errorf("guidance_embeds %v: expected %v, as FLUX.2-dev alone has guidance_embeds", c.GuidanceEmbeds, guided))
	}
	if l.Failed() {
		return nil
	}
	f.dtype, f.distilled, f.unpatched = l.Dtype, own.IsDistilled || f.cached, unpatched{c.InChannels}
	f.transformer = transformer.NewFlux2(c)
	return layers
}

func (f *flux2) Defaults() Defaults {
	if f.distilled {
		return defaults(4, 1)
	}
	return defaults(50, 4)
}

// PromptEncodings returns Qwen3, which sees the prompt padded to the full length. The transformer
// treats padding like other tokens.
func (f *flux2) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		// the chat template with enable_thinking=False and a generation prompt
		Tokenize:     chat("", "<think>\n\n</think>\n\n").padded,
		Padded:       true,
		EncodeMasked: func(ids []int32, _, end int) *mlx.Array { return f.textEncoder.ForwardPadded(ids, end).Squeeze(0) },
	}}
}

// Multiple is 1, since the autoencoder's latents are patches already.
func (f *flux2) Multiple() int { return 1 }

// MaskLatents interpolates bilinearly without antialiasing, as Flux2KleinInpaintPipeline does: from
// the four pixels in the middle of each position.
func (f *flux2) MaskLatents(mask *image.Gray, h, w int) []float32 {
	out := make([]float32, 0, h*w)
	size := mask.Rect.Size()
	for y := range h {
		for x := range w {
			left, top := (2*x+1)*size.X/w/2-1, (2*y+1)*size.Y/h/2-1
			sum := 0
			for _, at := range []image.Point{{left, top}, {left + 1, top}, {left, top + 1}, {left + 1, top + 1}} {
				sum += int(mask.GrayAt(at.X, at.Y).Y)
			}
			out = append(out, float32(sum)/(4*255))
		}
	}
	return out
}

func (f *flux2) Guidance(g Guidance) (bool, error) {
	if f.distilled {
		return false, withoutGuidance(g.Scale, 1, "the base models have")
	}
	return f.defaultMethods.Guidance(g)
}

// ConditionsOnce returns false: the reference images are computed for each image of a batch.
func (f *flux2) ConditionsOnce() bool { return false }

// CacheSize returns the size of the KV cache, which only Flux2KleinKVPipeline has.
func (f *flux2) CacheSize(references, _ int) int64 {
	if !f.cached {
		return 0
	}
	c := f.transformer.Config
	return int64(2*(c.NumLayers+c.NumSingleLayers)) * int64(references) * int64(c.NumAttentionHeads*c.AttentionHeadDim)
}

func (f *flux2) Mu(_ scheduler.DynamicShift, tokens, steps int) float64 {
	return scheduler.EmpiricalMu(tokens, steps)
}

// Limits of a reference image (Flux2ImageProcessor).
const (
	flux2MinSide   = 64
	flux2MaxAspect = 8
)

func (f *flux2) CheckReferences(int) error { return nil }

func (f *flux2) CheckReference(size image.Point) error {
	switch w, h := size.X, size.Y; {
	case w < flux2MinSide || h < flux2MinSide:
		return fmt.Errorf("has %dx%d pixels, expected at least %d on each side", w, h, flux2MinSide)
	case max(w, h) > flux2MaxAspect*min(w, h):
		return fmt.Errorf("has %dx%d pixels, and one side may be at most %d times as long as the other (crop it)", w, h, flux2MaxAspect)
	}
	return nil
}

func (f *flux2) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	embeds := c.Text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(f.pack)
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	in := transformer.Inputs{Text: embeds, References: references}
	if f.transformer.Config.GuidanceEmbeds {
		in.Guidance = f.transformer.Guidance(float32(c.Guidance))
	}
	return kvPredictor(c, compile, f.transformer, s, in, f.dtype, f.cached && references != nil), nil
}

// The system prompts of FLUX.2's makers for a language model that rewrites prompts, from
// src/flux2/system_messages.py of github.com/black-forest-labs/flux2, under the Apache License 2.0. Long
// lines are wrapped.
const (
	flux2Upsampling = `You are an expert prompt engineer for FLUX.2 by Black Forest Labs. Rewrite user
prompts to be more descriptive while strictly
preserving their core subject and intent.

Guidelines:
1. Structure: Keep structured inputs structured (enhance within fields). Convert natural language to detailed
paragraphs.
2. Details: Add concrete visual specifics - form, scale, textures, materials, lighting (quality, direction,
color), shadows,
spatial relationships, and environmental context.
3. Text in Images: Put ALL text in quotation marks, matching the prompt's language. Always provide explicit
quoted text for
objects that would contain text in reality (signs, labels, screens, etc.) - without it, the model generates gibberish.

Output only the revised prompt and nothing else.`
	flux2EditUpsampling = `You are FLUX.2 by Black Forest Labs, an image-editing expert. You convert
editing requests into one concise instruction (50-80
words, ~30 for brief requests).

Rules:
- Single instruction only, no commentary
- Use clear, analytical language (avoid "whimsical," "cascading," etc.)
- Specify what changes AND what stays the same (face, lighting, composition)
- Reference actual image elements
- Turn negatives into positives ("don't change X" → "keep X")
- Make abstractions concrete ("futuristic" → "glowing cyan neon, metallic panels")
- Keep content PG-13

Output only the final instruction in plain text and nothing else.`
)
