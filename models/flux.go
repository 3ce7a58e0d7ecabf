package models

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// flux is diffusers' FluxPipeline: FLUX.1 schnell and dev.
type flux struct {
	usual
	patches
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
	if err := l.belongs("text_encoder", "the text encoder's hidden_size", clip.HiddenSize, "pooled_projection_dim", c.PooledProjectionDim); err != nil {
		return nil, err
	}
	if err := l.belongs("text_encoder_2", "the second text encoder's d_model", t5.DModel, "joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	f.patches = patches{c.InChannels}
	f.textEncoder = textenc.NewCLIPText(clip, f.dtype)
	f.textEncoder2 = textenc.NewT5Encoder(t5, f.dtype)
	f.transformer = transformer.NewFlux(c)
	return []component{
		{
			name: "text_encoder", dir: "text_encoder", class: "CLIPTextModel", model: f.textEncoder,
			prefixes: []string{"text_model."}, // of all files but transformers 5's
			ignore:   f.textEncoder.Unused(),
		},
		{name: "text_encoder_2", dir: "text_encoder_2", class: "T5EncoderModel", model: f.textEncoder2, ignore: f.textEncoder2.Unused()},
		{name: "transformer", dir: "transformer", class: "FluxTransformer2DModel", model: f.transformer},
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
func (f *flux) texts([]image.Image) []text {
	limit := f.textEncoder.Config.MaxPositionEmbeddings
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "pooled_embeds", shape: []int{-1}, limit: limit, cuts: true,
		tokens: func(t *tokenizer.Tokenizer, prompt string, limit int) ([]int32, int, error) {
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

func (f *flux) guidance(scale float64) (bool, error) {
	if scale > 0 && !f.guided() {
		return false, fmt.Errorf("guidance %g: this model was made to do without (leave it out, or give 0)", scale)
	}
	return false, nil
}

func (f *flux) denoiser() stack {
	c := f.transformer.Config
	w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	return stack{blocks: c.NumLayers + c.NumSingleLayers, heads: c.NumAttentionHeads, made: 28 * w, read: 38 * w, alive: 36 * w, scores: 1, cast: 0.65}
}

func (f *flux) encoder(dir string) stack {
	if dir == "text_encoder" {
		c := f.textEncoder.Config
		return textStack(c.NumHiddenLayers, c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize, 1)
	}
	c := f.textEncoder2.Config
	const scores = 3 // with the bias of relative positions
	return textStack(c.NumLayers, c.NumHeads, c.DModel, c.DFF, scores)
}

func (f *flux) predictor(c conditions, h, w int, compile compiler) (predictor, error) {
	pooled, embeds := c.text[0].ExpandDims(0), c.text[1].ExpandDims(0)
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1))
	if err != nil {
		return nil, requestError{err}
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{f.transformer.Forward(in[0], in[1], optional(in, 4), in[2], in[3], s)}
	})
	same := []*mlx.Array{embeds, pooled}
	if f.guided() {
		same = append(same, f.transformer.Guidance(float32(c.guidance)))
	}
	return predictWith(forward, f.dtype, fraction(f.transformer.Timestep), same...), nil
}
