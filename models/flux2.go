package models

import (
	"fmt"
	"image"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// flux2 is diffusers' Flux2KleinPipeline: FLUX.2-klein, distilled and base. With
// cached set it is Flux2KleinKVPipeline, which computes the keys and values of
// reference pictures once.
type flux2 struct {
	usual
	cached      bool
	distilled   bool
	textEncoder *textenc.Qwen3
	transformer *transformer.Flux2
	dtype       mlx.Dtype
}

// flux2OutLayers are the hidden states that the published models are told by
// (text_encoder_out_layers).
var flux2OutLayers = []int{9, 18, 27}

func (f *flux2) configure(l *loader) ([]component, error) {
	f.dtype = l.dtype
	text, c := textenc.DefaultQwen3Config(), transformer.DefaultFlux2Config()
	if err := l.config("text_encoder/config.json", &text); err != nil {
		return nil, err
	}
	if err := l.config("transformer/config.json", &c); err != nil {
		return nil, err
	}
	// diffusers takes the layers as an argument of a call; what is here besides
	// the published models can name its own
	var index struct {
		IsDistilled bool  `json:"is_distilled"`
		OutLayers   []int `json:"text_encoder_out_layers"`
	}
	if err := checkpoint.ReadJSON(l.fsys, indexFile, &index); err != nil {
		return nil, err
	}
	f.distilled = index.IsDistilled || f.cached
	layers := flux2OutLayers
	if len(index.OutLayers) > 0 && !l.absent["text_encoder"] {
		layers = index.OutLayers
	}
	if !l.absent["text_encoder"] {
		if slices.Min(layers) < 1 || slices.Max(layers) > text.NumHiddenLayers || len(layers) > text.NumHiddenLayers {
			return nil, fmt.Errorf("%w: %s: text_encoder_out_layers %v: expected numbers from 1 to the text encoder's num_hidden_layers, %d",
				ErrUnsupported, checkpoint.FullName(l.fsys, indexFile), layers, text.NumHiddenLayers)
		}
	}
	if err := l.belongs("text_encoder", fmt.Sprintf("the size of %d hidden states of the text encoder", len(layers)), len(layers)*text.HiddenSize,
		"joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	f.textEncoder = textenc.NewQwen3(text, layers, f.dtype)
	f.transformer = transformer.NewFlux2(c)
	return []component{
		{
			name: "text_encoder.model", dir: "text_encoder", class: "Qwen3ForCausalLM", model: f.textEncoder,
			prefixes: []string{"model."},
			ignore:   f.textEncoder.Unused(),
		},
		{name: "transformer", dir: "transformer", class: "Flux2Transformer2DModel", model: f.transformer},
	}, nil
}

func (f *flux2) defaults() Defaults {
	if f.distilled {
		return Defaults{Steps: 4, Guidance: 1, Height: 1024, Width: 1024, MaxSequenceLength: 512}
	}
	return Defaults{Steps: 50, Guidance: 4, Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

// texts is Qwen3's, which sees the prompt with padding to the full length. Pads
// are tokens to the transformer like others.
func (f *flux2) texts([]image.Image) []text {
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "embeds", shape: []int{-1, -1},
		tokens: func(t *tokenizer.Tokenizer, prompt string, limit int) ([]int32, int, error) {
			// the chat template with enable_thinking=False and a generation prompt
			return paddedTokens(t, chatTurn(prompt)+"<think>\n\n</think>\n\n", limit)
		},
		masked: func(ids []int32, valid int) *mlx.Array { return f.textEncoder.ForwardPadded(ids, valid).Squeeze(0) },
	}}
}

// latentShape is that of the autoencoder's patches.
func (f *flux2) latentShape(h, w int) []int {
	return []int{f.transformer.Config.InChannels, h, w}
}

func (f *flux2) multiple() int { return 1 }

// guidance counts from 1, which is none.
func (f *flux2) guidance(scale float64) (bool, error) {
	if scale > 1 && f.distilled {
		return false, fmt.Errorf("guidance %g: this model is distilled and takes none (leave it out, or give 1; the base models take it)", scale)
	}
	return scale > 1, nil
}

func (f *flux2) denoiser() stack {
	c := f.transformer.Config
	w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	return stack{blocks: c.NumLayers + c.NumSingleLayers, heads: c.NumAttentionHeads, made: 24.5 * w, read: 27 * w, alive: 35.5 * w, scores: 0.85, cast: 1.3}
}

// cacheSize is that of the kv variant; others keep nothing.
func (f *flux2) cacheSize(tokens int) int64 {
	if !f.cached {
		return 0
	}
	c := f.transformer.Config
	return int64(2*(c.NumLayers+c.NumSingleLayers)) * int64(tokens) * int64(c.NumAttentionHeads*c.AttentionHeadDim)
}

func (f *flux2) encoder(string) stack { return qwen3Stack(f.textEncoder) }

func (f *flux2) mu(_ *scheduler.FlowMatchEulerConfig, tokens, steps int) float64 {
	return scheduler.EmpiricalMu(tokens, steps)
}

// Bounds of a reference picture (Flux2ImageProcessor).
const (
	flux2MinSide   = 64
	flux2MaxAspect = 8
	flux2MaxArea   = 1024 * 1024
)

func (f *flux2) checkReferences(int) error { return nil }

func (f *flux2) checkReference(size image.Point) error {
	switch w, h := size.X, size.Y; {
	case w < flux2MinSide || h < flux2MinSide:
		return fmt.Errorf("has %dx%d pixels, and the model needs %d on each side", w, h, flux2MinSide)
	case max(w, h) > flux2MaxAspect*min(w, h):
		return fmt.Errorf("has %dx%d pixels, and one side may be at most %d times as long as the other (crop it)", w, h, flux2MaxAspect)
	}
	return nil
}

func (f *flux2) referenceSize(size image.Point, multiple int) image.Point {
	size = flux2Shrunk(size)
	return image.Pt(size.X/multiple*multiple, size.Y/multiple*multiple)
}

func (f *flux2) referenceName() string { return "image" }

// editSize is that of the first picture.
func (f *flux2) editSize(sizes []image.Point, multiple int) image.Point {
	return f.referenceSize(sizes[0], multiple)
}

// flux2Shrunk is the size of a picture that is made smaller if it is too large.
func flux2Shrunk(size image.Point) image.Point {
	area := size.X * size.Y
	if area <= flux2MaxArea {
		return size
	}
	scale := math.Sqrt(flux2MaxArea / float64(area))
	return image.Pt(int(float64(size.X)*scale), int(float64(size.Y)*scale))
}

// reference is a picture made smaller if it is too large, and cut evenly at its
// edges to what the model can take.
func (f *flux2) reference(img *image.RGBA, multiple int) *image.RGBA {
	shrunk := flux2Shrunk(img.Bounds().Size())
	img = picture.Resize(img, shrunk.X, shrunk.Y)
	size := f.referenceSize(shrunk, multiple)
	at := img.Bounds().Min.Add(image.Pt((shrunk.X-size.X)/2, (shrunk.Y-size.Y)/2))
	return img.SubImage(image.Rectangle{at, at.Add(size)}).(*image.RGBA)
}

func (f *flux2) predictor(c conditions, h, w int, compile compiler) (predictor, error) {
	embeds := c.text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(func(x *mlx.Array) *mlx.Array {
		return x.Reshape(1, x.Dim(1), -1).Transpose(0, 2, 1)
	})
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, requestError{err}
	}
	time := fraction(f.transformer.Timestep)
	if f.cached && references != nil {
		return predictWith(f.cachedForward(references[0], s, compile, c.keep), f.dtype, time, embeds), nil
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{f.transformer.Forward(in[0], in[1], in[2], optional(in, 3), s)}
	})
	return predictWith(forward, f.dtype, time, append([]*mlx.Array{embeds}, references...)...), nil
}

// cachedForward sees the references at its first step only, and keeps what
// others see of them.
func (f *flux2) cachedForward(references *mlx.Array, s *transformer.Flux2Sequence, compile compiler, keep func(...*mlx.Array)) func([]*mlx.Array) []*mlx.Array {
	extract := compile(func(in []*mlx.Array) []*mlx.Array {
		velocity, cache := f.transformer.Extract(in[0], in[1], in[2], in[3], s)
		return append([]*mlx.Array{velocity}, cache...)
	})
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{f.transformer.Cached(in[0], in[1], in[2], in[3:], s)}
	})
	var cache []*mlx.Array
	return func(in []*mlx.Array) []*mlx.Array {
		if cache != nil {
			return forward(append(in, cache...))
		}
		out := extract(append(in, references))
		cache = out[1:]
		keep(cache...)
		return out
	}
}
