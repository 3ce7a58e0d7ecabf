package family

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// Flux1 is the family of FLUX.1.
var Flux1 = &Family{
	Name: "FLUX.1",
	Pipelines: []*Class{
		{Name: "FluxPipeline", New: func() Pipeline { return &flux1{} }, Components: []Member{
			{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
			{Folder: "text_encoder", Class: component.CLIPTextModel},
			{Folder: "text_encoder_2", Class: component.T5EncoderModel},
			{Folder: "tokenizer", Class: component.CLIPTokenizer},
			{Folder: "tokenizer_2", Class: component.T5TokenizerFast},
			{Folder: "transformer", Class: component.FluxTransformer2DModel},
			{Folder: "vae", Class: component.AutoencoderKL},
		}},
	},
	Models: []Model{
		{
			Name: "flux1-schnell", Aliases: []string{"schnell", "flux-schnell", "flux.1-schnell"},
			Repo:    "black-forest-labs/FLUX.1-schnell",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0", Gated: true,
			Defaults: Defaults{Steps: 4, Guidance: 0, Height: 1024, Width: 1024, MaxSequenceLength: 256},
			Class:    "FluxPipeline", Scheduler: constantShift(1), Transformer: map[string]any{"guidance_embeds": false},
		},
		{
			Name: "flux1-dev", Aliases: []string{"dev", "flux-dev", "flux.1-dev"},
			Repo:    "black-forest-labs/FLUX.1-dev",
			Licence: "FLUX.1 [dev] Non-Commercial License", LicenceURL: "https://huggingface.co/black-forest-labs/FLUX.1-dev/blob/main/LICENSE.md", Gated: true,
			Defaults: Defaults{Steps: 28, Guidance: 3.5, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "FluxPipeline", Scheduler: shiftBySize, Transformer: map[string]any{"guidance_embeds": true},
		},
		{
			Name: "flux1-krea-dev", Aliases: []string{"krea-dev", "dev-krea", "flux-krea-dev", "flux.1-krea-dev"},
			Repo:    "black-forest-labs/FLUX.1-Krea-dev",
			Licence: "FLUX.1 [dev] Non-Commercial License", LicenceURL: "https://huggingface.co/black-forest-labs/FLUX.1-Krea-dev/blob/main/LICENSE.md", Gated: true,
			Defaults: Defaults{Steps: 28, Guidance: 3.5, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "FluxPipeline", Scheduler: shiftBySize, Transformer: map[string]any{"guidance_embeds": true},
		},
	},
	Help: Help{
		Guidance: "FLUX.1-dev takes any value as an input, and FLUX.1-schnell has no guidance",
	},
}

// flux1 is diffusers' FluxPipeline: FLUX.1 schnell and dev.
type flux1 struct {
	usual
	patches
	textEncoder  *textenc.CLIPText
	textEncoder2 *textenc.T5Encoder
	transformer  *transformer.Flux
	dtype        mlx.Dtype
}

func (f *flux1) Configure(l *component.Folder) ([]component.Component, error) {
	f.dtype = l.Dtype
	clip, t5, c := textenc.DefaultCLIPTextConfig(), textenc.DefaultT5Config(), transformer.DefaultFluxConfig()
	if err := l.Config("text_encoder", &clip); err != nil {
		return nil, err
	}
	if err := l.Config("text_encoder_2", &t5); err != nil {
		return nil, err
	}
	if err := l.Config("transformer", &c); err != nil {
		return nil, err
	}
	if err := l.FitsTransformer("text_encoder", "the text encoder's hidden_size", clip.HiddenSize, "pooled_projection_dim", c.PooledProjectionDim); err != nil {
		return nil, err
	}
	if err := l.FitsTransformer("text_encoder_2", "the second text encoder's d_model", t5.DModel, "joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	f.patches = patches{c.InChannels}
	f.textEncoder = textenc.NewCLIPText(clip, f.dtype)
	f.textEncoder2 = textenc.NewT5Encoder(t5, f.dtype)
	f.transformer = transformer.NewFlux(c)
	return []component.Component{
		{
			Name: "text_encoder", Dir: "text_encoder", Class: component.CLIPTextModel, Model: f.textEncoder,
			Prefixes: []string{"text_model."}, // of all files but transformers 5's
			Ignore:   f.textEncoder.Unused(),
		},
		{Name: "text_encoder_2", Dir: "text_encoder_2", Class: component.T5EncoderModel, Model: f.textEncoder2, Ignore: f.textEncoder2.Unused()},
		{Name: "transformer", Dir: "transformer", Class: component.FluxTransformer2DModel, Model: f.transformer},
	}, nil
}

// guided says whether the guidance is an input of the transformer, as of dev.
func (f *flux1) guided() bool { return f.transformer.Config.GuidanceEmbeds }

func (f *flux1) Defaults() Defaults {
	if f.guided() {
		return Defaults{Steps: 28, Guidance: 3.5, Height: 1024, Width: 1024, MaxSequenceLength: 512}
	}
	return Defaults{Steps: 4, Guidance: 0, Height: 1024, Width: 1024, MaxSequenceLength: 256}
}

// Texts are CLIP's, of which the pooled output is used, and T5's. Both see
// padding: CLIP behind the end of the prompt, where it has no effect, T5 as
// tokens like others.
func (f *flux1) Texts([]image.Image) []Text {
	limit := f.textEncoder.Config.MaxPositionEmbeddings
	return []Text{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "pooled_embeds", Shape: []int{-1}, Limit: limit,
		Tokens: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			if most := t.MaxLength(); most > 0 {
				limit = min(limit, most)
			}
			return template{}.padded(t, prompt, limit)
		},
		Encode: func(ids []int32) *mlx.Array { return f.textEncoder.Forward(ids).Squeeze(0) },
	}, {
		Tokenizer: "tokenizer_2", Encoder: "text_encoder_2", IDs: "input_ids_2", Embeds: "embeds", Shape: []int{-1, -1},
		Tokens: template{}.padded,
		Encode: func(ids []int32) *mlx.Array { return f.textEncoder2.Forward(ids).Squeeze(0) },
	}}
}

func (f *flux1) Guidance(scale float64) (bool, error) {
	if scale > 0 && !f.guided() {
		return false, fmt.Errorf("guidance %g: this model was made to do without (leave it out, or give 0)", scale)
	}
	return false, nil
}

func (f *flux1) Predictor(c Conditions, h, w int, compile Compiler) (Predictor, error) {
	pooled, embeds := c.Text[0].ExpandDims(0), c.Text[1].ExpandDims(0)
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1))
	if err != nil {
		return nil, errs.Request(err)
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{f.transformer.Forward(in[0], in[1], optional(in, 4), in[2], in[3], s)}
	})
	same := []*mlx.Array{embeds, pooled}
	if f.guided() {
		same = append(same, f.transformer.Guidance(float32(c.Guidance)))
	}
	return predictWith(forward, f.dtype, fraction(f.transformer.Timestep), same...), nil
}
