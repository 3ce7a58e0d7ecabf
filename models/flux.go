package models

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// flux is diffusers' FluxPipeline: FLUX.1 schnell and dev.
type flux struct {
	textEncoder  *textenc.CLIPText
	textEncoder2 *textenc.T5Encoder
	transformer  *transformer.Flux
	dtype        mlx.Dtype
}

func (f *flux) configure(l *loader) ([]component, error) {
	f.dtype = l.dtype
	clip, t5, c := textenc.DefaultCLIPTextConfig(), textenc.DefaultT5Config(), transformer.DefaultFluxConfig()
	if err := l.config("text_encoder/config.json", &clip); err != nil {
		return nil, err
	}
	if err := l.config("text_encoder_2/config.json", &t5); err != nil {
		return nil, err
	}
	if err := l.config("transformer/config.json", &c); err != nil {
		return nil, err
	}
	if !l.absent["text_encoder"] && !l.absent["transformer"] {
		if err := belong("the text encoder's hidden_size", clip.HiddenSize, "the transformer's pooled_projection_dim", c.PooledProjectionDim); err != nil {
			return nil, err
		}
	}
	if !l.absent["text_encoder_2"] && !l.absent["transformer"] {
		if err := belong("the second text encoder's d_model", t5.DModel, "the transformer's joint_attention_dim", c.JointAttentionDim); err != nil {
			return nil, err
		}
	}
	f.textEncoder = textenc.NewCLIPText(clip, f.dtype)
	f.textEncoder2 = textenc.NewT5Encoder(t5, f.dtype)
	f.transformer = transformer.NewFlux(c)
	return []component{
		{
			name: "text_encoder", dir: "text_encoder", model: f.textEncoder,
			prefixes: []string{"text_model."}, // of all files but transformers 5's
			ignore:   f.textEncoder.Unused(),
		},
		{name: "text_encoder_2", dir: "text_encoder_2", model: f.textEncoder2, ignore: f.textEncoder2.Unused()},
		{name: "transformer", dir: "transformer", model: f.transformer},
	}, nil
}

// guided says whether the guidance is an input of the transformer, as of dev.
func (f *flux) guided() bool { return f.transformer.Config.GuidanceEmbeds }

func (f *flux) defaults() Defaults {
	if f.guided() {
		return Defaults{Steps: 28, Guidance: 3.5, Height: 1024, Width: 1024, MaxSequenceLength: 512}
	}
	return Defaults{Steps: 4, Guidance: 0, Height: 1024, Width: 1024, MaxSequenceLength: 256}
}

// texts are CLIP's, of which the pooled output is used, and T5's. Both see
// padding: CLIP behind the end of the prompt, where it has no effect, T5 as
// tokens like others.
func (f *flux) texts([]*image.RGBA) []text {
	limit := f.textEncoder.Config.MaxPositionEmbeddings
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "pooled_embeds", shape: []int{-1}, limit: limit, cuts: true,
		tokens: func(t *textenc.Tokenizer, prompt string, limit int) ([]int32, int, error) {
			if most := t.MaxLength(); most > 0 {
				limit = min(limit, most)
			}
			return paddedTokens(t, prompt, limit)
		},
		encode: func(ids []int32) *mlx.Array { return f.textEncoder.Forward(ids).Squeeze(0) },
	}, {
		tokenizer: "tokenizer_2", encoder: "text_encoder_2", ids: "input_ids_2", embeds: "embeds", shape: []int{-1, -1},
		tokens: paddedTokens,
		encode: func(ids []int32) *mlx.Array { return f.textEncoder2.Forward(ids).Squeeze(0) },
	}}
}

// latentShape is that of the autoencoder's latents, which the transformer packs
// by 2×2.
func (f *flux) latentShape(h, w int) []int {
	return []int{f.transformer.Config.InChannels / 4, h, w}
}

func (f *flux) multiple() int { return 2 }

func (f *flux) packed(h, w int) []int {
	return []int{1, h / 2 * (w / 2), f.transformer.Config.InChannels}
}

func (f *flux) unpack(x *mlx.Array, h, w int) *mlx.Array {
	return transformer.Unpack(x, h/2, w/2).Squeeze(0)
}

func (f *flux) fits(h, w, tokens int) error { return nil }

func (f *flux) guidance(scale float64) (bool, error) {
	if scale > 0 && !f.guided() {
		return false, fmt.Errorf("guidance %g: this model was made to do without (leave it out, or give 0)", scale)
	}
	return false, nil
}

func (f *flux) sigmas(steps int) []float32 { return scheduler.LinearSigmas64(steps) }

func (f *flux) mu(c *scheduler.FlowMatchEulerConfig, tokens, _ int) float64 { return c.Mu(tokens) }

// guide is not used: guidance is an input of the transformer.
func (f *flux) guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return guideFromNegative(positive, negative, scale)
}

// guideFromNegative is negative + scale·(positive - negative), classifier-free
// guidance as most pipelines count it.
func guideFromNegative(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return negative.Add(positive.Sub(negative).Times(scale))
}

func (f *flux) predictor(c conditions, h, w int, compile compiler) (predictor, error) {
	pooled, embeds := c.text[0].ExpandDims(0), c.text[1].ExpandDims(0)
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1))
	if err != nil {
		return nil, requestError{err}
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		var guidance *mlx.Array
		if len(in) > 4 {
			guidance = in[4]
		}
		return []*mlx.Array{f.transformer.Forward(in[0], in[1], guidance, in[2], in[3], s)}
	})
	return func(latents *mlx.Array, timestep float32) *mlx.Array {
		in := []*mlx.Array{latents.AsType(f.dtype), f.transformer.Timestep(timestep / 1000), embeds, pooled}
		if f.guided() {
			in = append(in, f.transformer.Guidance(float32(c.guidance)))
		}
		return forward(in)[0].AsType(mlx.Float32)
	}, nil
}
