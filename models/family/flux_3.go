package family

import (
	_ "embed" // of flux3Upsampling
	"fmt"
	"image"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// The system prompts of FLUX.3's makers for a language model that rewrites prompts, as diffusers has them in
// modular_pipelines/flux3/prompt_upsampler.py, under the Apache License 2.0.
var (
	//go:embed flux_3_generate.txt
	flux3Upsampling string
	//go:embed flux_3_edit.txt
	flux3EditUpsampling string
	//go:embed flux_3_layout.txt
	flux3Layout string
	//go:embed flux_3_edit_layout.txt
	flux3EditLayout string
)

// flux3Licence is the licence of FLUX.3's models.
var flux3Licence = Licence{
	Name: "FLUX Kommunity License v1.0", ID: "flux-kommunity-license-v1-0", URL: "LICENSE.md", Commercial: CommercialConditional,
	Terms: "commercial use of images only, by those with revenue below 5 million US dollars a year",
}

// flux3Rewriter has the prompts for its makers' own model for this, a fine-tuned Qwen3.5, which can be named. They
// choose the most likely words, as diffusers.
var flux3Rewriter = func() *Rewriter {
	r := Rewriter{
		Generate: flux3Upsampling, Edit: flux3EditUpsampling, English: true, MaxTokens: 3584,
		EditRequest: "Reference images follow in order (the first image, the second image, ...).\nUser request: %s\nOutput the caption.",
		Source:      "flux-3-image-klein-pup of Black Forest Labs, by diffusers' modular_pipelines/flux3/prompt_upsampler.py, Apache-2.0",
	}
	layout := r
	layout.Generate, layout.Edit = flux3Layout, flux3EditLayout
	layout.EditRequest = "Reference images follow in attachment order: ref_image_0, ref_image_1, ...\nUser editing instruction: %s\n" +
		"Decide the edit, imagine the target image, and output the annotation record."
	r.Layout = &layout
	return &r
}()

// Flux3 is the family of FLUX.3.
var Flux3 = &Family{
	Name: "FLUX.3",
	Pipelines: []*Class{
		{Name: "Flux3DistilledModularPipeline", Configure: configureFlux3, Components: flux3Components, References: flux3References},
		{Name: "Flux3ModularPipeline", Configure: configureFlux3, Components: flux3Components, References: flux3References},
	},
	Models: publish(Model{
		Licence: flux3Licence, Gated: true, Scheduler: constantShift(6.93),
		Processor: qwen3VLProcessor, Configs: map[string]map[string]any{"text_encoder": qwen3VLOf4B},
	}, Model{
		Name: "flux3-klein", Aliases: []string{"flux3", "flux3-image-klein", "flux-3-image-klein", "flux.3-klein"},
		Repo: "black-forest-labs/flux-3-image-klein", Class: "Flux3DistilledModularPipeline", Defaults: flux3Defaults(16, 1),
		Transformer: map[string]any{"flow_map": true},
	}, Model{
		Name: "flux3-klein-base", Aliases: []string{"flux3-base", "flux3-image-klein-base", "flux-3-image-klein-base", "flux.3-klein-base"},
		Repo: "black-forest-labs/flux-3-image-klein-base", Class: "Flux3ModularPipeline", Defaults: flux3Defaults(50, 3.5),
	}),
	Rewriter: flux3Rewriter,
	Help: Help{
		Guidance: "1 or less disables it for FLUX.3-klein-base, and FLUX.3-klein has no guidance",
		Editors:  "FLUX.3",
		Editing: `FLUX.3 takes up to ten reference images. A single one is kept whole: it is
reduced to four megapixels, if it is larger, and its border is reflected until
its sides are multiples of 16. Several are reduced to a megapixel each, and
cropped at the center. Without --height and --width the result has the size of
the first image after that.`,
	},
}

// flux3Defaults returns default settings with diffusers' default prompt length. Rewritten prompts are long.
func flux3Defaults(steps int, guidance float64) Defaults {
	d := defaults(steps, guidance)
	d.MaxSequenceLength = 8192
	return d
}

// flux3Components are the components of FLUX.3's pipelines.
var flux3Components = []Member{
	{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
	{Folder: "text_encoder", Class: component.Qwen3VLForConditionalGeneration, MFlux: component.Qwen3VLOfFlux3},
	{Folder: "tokenizer", Class: component.Qwen3VLProcessor, MFluxFolder: "text_encoder"},
	{Folder: "transformer", Class: component.Flux3Transformer2DModel},
	{Folder: "vae", Class: component.AutoencoderKLFlux2},
}

// flux3 is diffusers' Flux3ModularPipeline or, with a transformer that is a flow map, Flux3DistilledModularPipeline.
type flux3 struct {
	defaultMethods
	latentTokens
	megapixelReferences
	textEncoder *textenc.Qwen3VL
	transformer *transformer.Flux3
	dtype       mlx.Dtype
}

// flux3OutLayers are the hidden states that the published models use (text_encoder_out_layers).
var flux3OutLayers = []int{4, 8, 12, 16, 20, 24, 28, 32}

func configureFlux3(l *Configs) (Pipeline, Networks) {
	text, c := textenc.DefaultQwen3VLConfig(), transformer.DefaultFlux3Config()
	var own struct {
		Class     string `json:"_class_name"`
		OutLayers []int  `json:"text_encoder_out_layers"`
	}
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Index(&own)
	layers := l.HiddenStates("text_encoder_out_layers", own.OutLayers, flux3OutLayers, 1, text.Text.NumHiddenLayers)
	l.Fits("text_encoder", fmt.Sprintf("the size of %d hidden states of the text encoder", len(layers)),
		len(layers)*text.Text.HiddenSize, "joint_attention_dim", c.JointAttentionDim)
	if distilled := own.Class == "Flux3DistilledModularPipeline"; own.Class != "" && c.FlowMap != distilled {
		l.CheckTransformer(fmt.Errorf("flow_map %v: expected %v for %s", c.FlowMap, distilled, own.Class))
	}
	if l.Failed() {
		return nil, nil
	}
	f := &flux3{dtype: l.Dtype, latentTokens: latentTokens{unpatched{c.InChannels}}}
	f.textEncoder = textenc.NewQwen3VL(text, layers, f.dtype)
	f.transformer = transformer.NewFlux3(c)
	return f, Networks{"text_encoder": f.textEncoder, "transformer": f.transformer}
}

func (f *flux3) Defaults() Defaults {
	if f.transformer.Config.FlowMap {
		return flux3Defaults(16, 1)
	}
	return flux3Defaults(50, 3.5)
}

// flux3Window is the number of tokens to a multiple of which a prompt is padded.
const flux3Window = 80

// PromptEncodings returns Qwen3-VL, which sees the prompt padded to whole windows, with all padding at position 1. The
// transformer treats padding like other tokens.
func (f *flux3) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			own := chat("", "")
			tokens, err := own.whole(t, prompt)
			if err != nil {
				return tokens, err
			}
			windows := (len(tokens.IDs) + flux3Window - 1) / flux3Window
			return own.padded(t, prompt, min(windows*flux3Window, limit))
		},
		EncodeMasked: func(ids []int32, _, end int) *mlx.Array { return f.textEncoder.ForwardPadded(ids, end, 1).Squeeze(0) },
	}}
}

// Multiple is 1, since the autoencoder's latents are patches already.
func (f *flux3) Multiple() int { return 1 }

func (f *flux3) Guidance(g Guidance) (bool, error) {
	if f.transformer.Config.FlowMap {
		return false, withoutGuidance(g.Scale, 1, "FLUX.3-klein-base has")
	}
	return f.defaultMethods.Guidance(g)
}

// Limits of reference images.
const (
	flux3References = 10
	flux3Patch      = 16 // pixels on a side of a token, whatever the autoencoder
	flux3MinSide    = 64 // of the canvas of a single one
	flux3MaxSide    = 4096
	flux3MaxArea    = 4 * 1024 * 1024
)

func (f *flux3) CheckReferences(n int) error {
	if n > flux3References {
		return fmt.Errorf("%d images: FLUX.3 takes at most %d", n, flux3References)
	}
	return nil
}

func (f *flux3) CheckReference(image.Point) error { return nil }

// ReferenceSize returns the size of one of several images.
func (f *flux3) ReferenceSize(size image.Point, _ int) image.Point {
	return f.megapixelReferences.ReferenceSize(size, flux3Patch)
}

// EditSize returns the size of the first image.
func (f *flux3) EditSize(sizes []image.Point, multiple int) image.Point {
	return f.ForReferences(len(sizes)).ReferenceSize(sizes[0], multiple)
}

// ForReferences returns how n reference images are prepared: several are cropped, and a single one is padded.
func (f *flux3) ForReferences(n int) Editor {
	if n == 1 {
		return flux3Alone{f}
	}
	return f
}

// flux3Alone prepares a single reference image.
type flux3Alone struct{ *flux3 }

// ReferenceSize returns the size of the canvas.
func (f flux3Alone) ReferenceSize(size image.Point, multiple int) image.Point {
	_, canvas := flux3Canvas(size)
	return canvas
}

// Uncropped returns the size of the image in the canvas, which is never larger.
func (f flux3Alone) Uncropped(size image.Point) image.Point {
	fit, _ := flux3Canvas(size)
	return fit
}

// flux3Canvas returns the size that an image is reduced to, and that of the canvas around it: Flux3ImageProcessor's
// _resize_if_canvas_exceeds_area and _get_canvas_height_width.
func flux3Canvas(size image.Point) (fit, canvas image.Point) {
	scale := min(1, math.Sqrt(flux3MaxArea/float64(size.X*size.Y)), flux3MaxSide/float64(max(size.X, size.Y)))
	for {
		reduce := func(side int) int { return max(1, int(math.RoundToEven(float64(side)*scale))) }
		around := func(side int) int {
			return min(flux3MaxSide, max(flux3MinSide, (side+flux3Patch-1)/flux3Patch*flux3Patch))
		}
		fit = image.Pt(reduce(size.X), reduce(size.Y))
		canvas = image.Pt(around(fit.X), around(fit.Y))
		if canvas.X*canvas.Y <= flux3MaxArea {
			return fit, canvas
		}
		scale *= 0.995
	}
}

func (f *flux3) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	text := c.Text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(f.pack)
	s, err := f.transformer.Sequence(h, w, text.Dim(1), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	in := transformer.Inputs{Text: text, References: references}
	return predictor(newForward(c, compile, s, f.transformer.Pass), in, f.dtype, func(in *transformer.Inputs, at scheduler.Interval) {
		in.Timestep = f.transformer.Timestep(at.Timestep / 1000)
		if f.transformer.Config.FlowMap {
			in.Target = f.transformer.Timestep(at.Next / 1000)
		}
	}), nil
}
