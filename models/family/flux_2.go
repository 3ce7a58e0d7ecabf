package family

import (
	"fmt"
	"image"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// Flux2 is the family of FLUX.2-klein.
var Flux2 = &Family{
	Name: "FLUX.2-klein",
	Pipelines: []*Class{
		{Name: "Flux2KleinPipeline", New: func() Pipeline { return &flux2{} }, Components: flux2Components},
		{Name: "Flux2KleinKVPipeline", New: func() Pipeline { return &flux2{cached: true} }, Components: flux2Components},
	},
	Models: []Model{
		{
			Name: "flux2-klein-4b", Aliases: []string{"flux2-klein", "klein-4b", "flux.2-klein-4b"},
			Repo:    "black-forest-labs/FLUX.2-klein-4B",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 4, Guidance: 1, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "Flux2KleinPipeline", Scheduler: shiftBySize, Index: map[string]any{"is_distilled": true},
			Transformer: map[string]any{"joint_attention_dim": 7680}, Configs: klein4B,
		},
		{
			Name: "flux2-klein-9b", Aliases: []string{"klein-9b", "flux.2-klein-9b"},
			Repo:       "black-forest-labs/FLUX.2-klein-9B",
			Licence:    "FLUX Non-Commercial License",
			LicenceURL: "https://huggingface.co/black-forest-labs/FLUX.2-klein-9B/blob/main/LICENSE.md", Gated: true,
			Defaults: Defaults{Steps: 4, Guidance: 1, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "Flux2KleinPipeline", Scheduler: shiftBySize, Index: map[string]any{"is_distilled": true},
			Transformer: map[string]any{"joint_attention_dim": 12288}, Configs: klein9B,
		},
		{
			Name: "flux2-klein-9b-kv", Aliases: []string{"klein-9b-kv", "flux.2-klein-9b-kv"},
			Repo:       "black-forest-labs/FLUX.2-klein-9b-kv",
			Licence:    "FLUX Non-Commercial License",
			LicenceURL: "https://huggingface.co/black-forest-labs/FLUX.2-klein-9b-kv/blob/main/LICENSE.md", Gated: true,
			Defaults: Defaults{Steps: 4, Guidance: 1, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "Flux2KleinKVPipeline", Scheduler: shiftBySize, Transformer: map[string]any{"joint_attention_dim": 12288},
			Configs: klein9B,
		},
		{
			Name: "flux2-klein-base-4b", Aliases: []string{"flux2-base-4b", "klein-base-4b", "flux.2-klein-base-4b"},
			Repo:    "black-forest-labs/FLUX.2-klein-base-4B",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 50, Guidance: 4, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "Flux2KleinPipeline", Scheduler: shiftBySize, Index: map[string]any{"is_distilled": false},
			Transformer: map[string]any{"joint_attention_dim": 7680}, Configs: klein4B,
		},
		{
			Name: "flux2-klein-base-9b", Aliases: []string{"flux2-base-9b", "klein-base-9b", "flux.2-klein-base-9b"},
			Repo:       "black-forest-labs/FLUX.2-klein-base-9B",
			Licence:    "FLUX Non-Commercial License",
			LicenceURL: "https://huggingface.co/black-forest-labs/FLUX.2-klein-base-9B/blob/main/LICENSE.md", Gated: true,
			Defaults: Defaults{Steps: 50, Guidance: 4, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "Flux2KleinPipeline", Scheduler: shiftBySize, Index: map[string]any{"is_distilled": false},
			Transformer: map[string]any{"joint_attention_dim": 12288}, Configs: klein9B,
		},
	},
	Help: Help{
		Guidance: "1 or less disables it for FLUX.2-klein-base, and FLUX.2-klein has no guidance",
		Editors:  "FLUX.2-klein",
		Editing: `FLUX.2-klein takes any number of reference images. Each side must have at least
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

// The configs of FLUX.2-klein. The autoencoder has the defaults of its class.
var (
	klein4B = map[string]map[string]any{
		"text_encoder": qwen3Of4B,
		"transformer":  {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "guidance_embeds": false},
	}
	klein9B = map[string]map[string]any{
		"text_encoder": qwen3Of8B,
		"transformer":  {"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "guidance_embeds": false},
	}
)

// flux2 is diffusers' Flux2KleinPipeline: FLUX.2-klein, distilled and base. With cached set it is
// Flux2KleinKVPipeline, which computes the keys and values of reference images once.
type flux2 struct {
	defaultMethods
	cached      bool
	distilled   bool
	textEncoder *textenc.Qwen3
	transformer *transformer.Flux2
	dtype       mlx.Dtype
}

// flux2OutLayers are the hidden states that the published models use
// (text_encoder_out_layers).
var flux2OutLayers = []int{9, 18, 27}

func (f *flux2) Configure(l *component.Folder) ([]component.Component, error) {
	f.dtype = l.Dtype
	text, c := textenc.DefaultQwen3Config(), transformer.DefaultFlux2Config()
	if err := l.Config("text_encoder", &text); err != nil {
		return nil, err
	}
	if err := l.Config("transformer", &c); err != nil {
		return nil, err
	}
	// in diffusers the layers are an argument of a call; other models than the published ones
	// can name theirs in the index
	var own struct {
		IsDistilled bool  `json:"is_distilled"`
		OutLayers   []int `json:"text_encoder_out_layers"`
	}
	if err := checkpoint.ReadJSON(l.FS, index.File, &own); err != nil {
		return nil, err
	}
	f.distilled = own.IsDistilled || f.cached
	layers := flux2OutLayers
	if len(own.OutLayers) > 0 && !l.Absent["text_encoder"] {
		layers = own.OutLayers
	}
	if !l.Absent["text_encoder"] {
		if slices.Min(layers) < 1 || slices.Max(layers) > text.NumHiddenLayers || len(layers) > text.NumHiddenLayers {
			return nil, fmt.Errorf("%w: %s: text_encoder_out_layers %v: "+
				"expected numbers from 1 to the text encoder's num_hidden_layers, %d",
				errs.ErrUnsupported, checkpoint.FullName(l.FS, index.File), layers, text.NumHiddenLayers)
		}
	}
	if err := l.FitsTransformer("text_encoder", fmt.Sprintf("the size of %d hidden states of the text encoder", len(layers)),
		len(layers)*text.HiddenSize,
		"joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	f.textEncoder = textenc.NewQwen3(text, layers, f.dtype)
	f.transformer = transformer.NewFlux2(c)
	return []component.Component{
		{
			Name: "text_encoder.model", Dir: "text_encoder", Class: component.Qwen3Model, Model: f.textEncoder,
			Prefixes: []string{"model."},
			Ignore:   f.textEncoder.Unused(),
		},
		{Name: "transformer", Dir: "transformer", Class: component.Flux2Transformer2DModel, Model: f.transformer},
	}, nil
}

func (f *flux2) Defaults() Defaults {
	if f.distilled {
		return Defaults{Steps: 4, Guidance: 1, Height: 1024, Width: 1024, MaxSequenceLength: 512}
	}
	return Defaults{Steps: 50, Guidance: 4, Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

// PromptEncodings returns Qwen3, which sees the prompt padded to the full length. The transformer
// treats padding like other tokens.
func (f *flux2) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		// the chat template with enable_thinking=False and a generation prompt
		Tokenize:     chat("", "<think>\n\n</think>\n\n").padded,
		Padded:       true,
		EncodeMasked: func(ids []int32, valid int) *mlx.Array { return f.textEncoder.ForwardPadded(ids, valid).Squeeze(0) },
	}}
}

// LatentShape returns the shape of the autoencoder's patches.
func (f *flux2) LatentShape(h, w int) []int {
	return []int{f.transformer.Config.InChannels, h, w}
}

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

// Guidance needs a scale above 1 to have an effect.
func (f *flux2) Guidance(scale float64) (bool, error) {
	if scale > 1 && f.distilled {
		return false, fmt.Errorf("guidance %g: this model is distilled and has no guidance "+
			"(leave it out, or set it to 1; the base models have guidance)", scale)
	}
	return scale > 1, nil
}

// CacheSize returns the size of the KV cache, which only Flux2KleinKVPipeline has.
func (f *flux2) CacheSize(tokens int) int64 {
	if !f.cached {
		return 0
	}
	c := f.transformer.Config
	return int64(2*(c.NumLayers+c.NumSingleLayers)) * int64(tokens) * int64(c.NumAttentionHeads*c.AttentionHeadDim)
}

func (f *flux2) Mu(_ scheduler.DynamicShift, tokens, steps int) float64 {
	return scheduler.EmpiricalMu(tokens, steps)
}

// Limits of a reference image (Flux2ImageProcessor).
const (
	flux2MinSide   = 64
	flux2MaxAspect = 8
	flux2MaxArea   = 1024 * 1024
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

func (f *flux2) ReferenceSize(size image.Point, multiple int) image.Point {
	size = flux2Reduced(size)
	return image.Pt(size.X/multiple*multiple, size.Y/multiple*multiple)
}

func (f *flux2) ReferenceName() string { return "image" }

// EditSize returns the size of the first image.
func (f *flux2) EditSize(sizes []image.Point, multiple int) image.Point {
	return f.ReferenceSize(sizes[0], multiple)
}

// flux2Reduced returns the size of an image after it is reduced to a megapixel, if it is larger.
func flux2Reduced(size image.Point) image.Point {
	area := size.X * size.Y
	if area <= flux2MaxArea {
		return size
	}
	scale := math.Sqrt(flux2MaxArea / float64(area))
	return image.Pt(int(float64(size.X)*scale), int(float64(size.Y)*scale))
}

// Reference reduces an image to a megapixel, if it is larger, and crops it at the center to sides
// of the multiple.
func (f *flux2) Reference(img *image.RGBA, multiple int) *image.RGBA {
	reduced := flux2Reduced(img.Bounds().Size())
	img = picture.Resize(img, reduced.X, reduced.Y)
	size := f.ReferenceSize(reduced, multiple)
	at := img.Bounds().Min.Add(image.Pt((reduced.X-size.X)/2, (reduced.Y-size.Y)/2))
	return img.SubImage(image.Rectangle{at, at.Add(size)}).(*image.RGBA)
}

func (f *flux2) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	embeds := c.Text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(func(x *mlx.Array) *mlx.Array {
		return x.Reshape(1, x.Dim(1), -1).Transpose(0, 2, 1)
	})
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	if f.cached && references != nil {
		return f.cachedPredictor(c, embeds, references, s, compile), nil
	}
	type inputs struct{ Latents, Timestep, Text, References *mlx.Array }
	forward := stepcache.Forward(c.StepCache, compile, func(in inputs) transformer.Pass {
		return f.transformer.Pass(in.Latents, in.Timestep, in.Text, in.References, s)
	})
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		time := f.transformer.Timestep(at.Timestep / 1000)
		in := inputs{Latents: latents.AsType(f.dtype), Timestep: time, Text: embeds, References: references}
		return forward(in).AsType(mlx.Float32)
	}, nil
}

// cachedPredictor returns a predictor that sees the references only at its first step, and keeps
// their keys and values for the next ones, of which a step cache may leave out some.
func (f *flux2) cachedPredictor(
	c Conditioning, embeds, references *mlx.Array, s *transformer.Flux2Sequence, compile Compiler,
) Predictor {
	type inputs struct {
		Latents, Timestep, Text, References *mlx.Array
		Cache                               transformer.Flux2Cache
	}
	type outputs struct {
		Velocity *mlx.Array
		Cache    transformer.Flux2Cache
	}
	extract := mlx.Named(compile, func(in inputs) outputs {
		velocity, cache := f.transformer.Extract(in.Latents, in.Timestep, in.Text, in.References, s)
		return outputs{velocity, cache}
	})
	forward := stepcache.Forward(c.StepCache, compile, func(in inputs) transformer.Pass {
		return f.transformer.CachedPass(in.Latents, in.Timestep, in.Text, in.Cache, s)
	})
	var cache *transformer.Flux2Cache
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		in := inputs{Latents: latents.AsType(f.dtype), Timestep: f.transformer.Timestep(at.Timestep / 1000), Text: embeds}
		if cache != nil {
			in.Cache = *cache
			return forward(in).AsType(mlx.Float32)
		}
		in.References = references
		out := extract(in)
		cache = &out.Cache
		c.Keep(cache.Keys...)
		c.Keep(cache.Values...)
		return out.Velocity.AsType(mlx.Float32)
	}
}
