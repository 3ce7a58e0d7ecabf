package models

import (
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// zimage is diffusers' ZImagePipeline.
type zimage struct {
	usual
	textEncoder *textenc.Qwen3
	transformer *transformer.ZImage
	dtype       mlx.Dtype
}

func (z *zimage) configure(l *loader) ([]component, error) {
	z.dtype = l.dtype
	text := textenc.DefaultQwen3Config()
	if err := l.config("text_encoder/config.json", &text); err != nil {
		return nil, err
	}
	c := transformer.DefaultZImageConfig()
	if err := l.config("transformer/config.json", &c); err != nil {
		return nil, err
	}
	if err := l.belongs("text_encoder", "the text encoder's hidden_size", text.HiddenSize, "cap_feat_dim", c.CapFeatDim); err != nil {
		return nil, err
	}
	// hidden_states[-2]: the last layer and the norm behind it are not needed
	z.textEncoder = textenc.NewQwen3(text, []int{text.NumHiddenLayers - 1}, z.dtype)
	z.transformer = transformer.NewZImage(c)
	return []component{
		{
			name: "text_encoder", dir: "text_encoder", class: "Qwen3Model", model: z.textEncoder,
			prefixes: []string{"model."}, // as a Qwen3ForCausalLM saves it
			ignore:   z.textEncoder.Unused(),
		},
		{name: "transformer", dir: "transformer", class: "ZImageTransformer2DModel", model: z.transformer},
	}, nil
}

func (z *zimage) defaults() Defaults {
	return Defaults{Steps: 50, Guidance: 5, Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

func (z *zimage) texts([]image.Image) []text {
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "embeds", shape: []int{-1, -1},
		tokens: func(t *tokenizer.Tokenizer, prompt string, _ int) ([]int32, int, error) {
			// Qwen3's chat template with enable_thinking=True and a generation prompt
			ids, err := t.Encode(chatTurn(prompt))
			return ids, len(ids), err
		},
		encode: func(ids []int32) *mlx.Array { return z.textEncoder.Forward(ids).Squeeze(0) },
	}}
}

func (z *zimage) latentShape(h, w int) []int {
	return []int{z.transformer.Config.InChannels, h, w}
}

func (z *zimage) multiple() int { return z.transformer.Config.AllPatchSize[0] }

func (z *zimage) fits(h, w, tokens int) error { return z.transformer.Fits(h, w, tokens) }

func (z *zimage) guidance(scale float64) (bool, error) { return scale > 0, nil }

func (z *zimage) sigmas(steps int) []float32 { return scheduler.LinearSigmas(steps) }

func (z *zimage) denoiser() stack {
	c := z.transformer.Config
	w := float64(c.Dim)
	return stack{blocks: c.NLayers + 2*c.NRefinerLayers, heads: c.NHeads, made: 16 * w, read: 13 * w, alive: 30 * w, scores: 1, cast: 0.75, castAlone: 0.95}
}

func (z *zimage) encoder(string) stack { return qwen3Stack(z.textEncoder) }

// guide is positive + scale·(positive - negative): Z-Image counts its guidance
// from the positive prediction.
func (z *zimage) guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return positive.Add(positive.Sub(negative).Times(scale))
}

// predictor turns the model's time, which runs from 0 at pure noise, and the
// sign of its output around.
func (z *zimage) predictor(c conditions, h, w int, compile compiler) (predictor, error) {
	caption := c.text[0]
	s, err := z.transformer.Sequence(h, w, caption.Dim(0))
	if err != nil {
		return nil, requestError{err}
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{z.transformer.Forward(in[0], in[1], in[2], s).Neg()}
	})
	time := func(timestep float32) *mlx.Array { return z.transformer.Timestep((1000 - timestep) / 1000) }
	return predictWith(forward, z.dtype, time, caption), nil
}
