package family

import (
	"fmt"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// flux1DevLicence is the licence of the dev models.
var flux1DevLicence = Licence{
	Name: "FLUX.1 [dev] Non-Commercial License", ID: "flux-1-dev-non-commercial-license", URL: "LICENSE.md",
	Commercial: CommercialForbidden, Terms: noCommercialUse,
}

// Flux1 is the family of FLUX.1.
var Flux1 = &Family{
	Name: "FLUX.1",
	Pipelines: []*Class{
		{Name: "FluxPipeline", Also: []string{"FluxImg2ImgPipeline", "FluxInpaintPipeline"}, Configure: configureFlux1,
			Guidance: picture.DistilledCFGScale, TrueCFG: true, Components: flux1Components},
		{Name: "FluxKontextPipeline", Also: []string{"FluxKontextInpaintPipeline"}, Configure: configureFlux1Kontext,
			Guidance: picture.DistilledCFGScale, TrueCFG: true, Components: flux1Components, References: 1},
		{Name: "FluxFillPipeline", Configure: configureFlux1Fill, Guidance: picture.DistilledCFGScale, Components: flux1Components},
	},
	Models: publish(
		Model{
			Class: "FluxPipeline", Gated: true, Scheduler: flowShift, Transformer: fluxTransformer(true), Licence: flux1DevLicence,
			Configs: map[string]map[string]any{"text_encoder": clipL, "text_encoder_2": t5XXL, "vae": kl16},
		},
		Model{
			Name: "flux1-schnell", Aliases: []string{"schnell", "flux-schnell", "flux.1-schnell"},
			Repo: "black-forest-labs/FLUX.1-schnell", Licence: apache2,
			Defaults: schnellDefaults, Scheduler: constantShift(1), Transformer: fluxTransformer(false),
		},
		Model{
			Name: "flux1-dev", Aliases: []string{"dev", "flux-dev", "flux.1-dev"},
			Repo: "black-forest-labs/FLUX.1-dev", Defaults: defaults(28, 3.5),
		},
		Model{
			Name: "flux1-krea-dev", Aliases: []string{"krea-dev", "dev-krea", "flux-krea-dev", "flux.1-krea-dev"},
			Repo: "black-forest-labs/FLUX.1-Krea-dev", Defaults: defaults(28, 3.5),
		},
		Model{
			Name: "flux1-kontext-dev", Aliases: []string{"kontext", "dev-kontext", "kontext-dev", "flux-kontext-dev", "flux.1-kontext-dev"},
			Repo: "black-forest-labs/FLUX.1-Kontext-dev", Defaults: kontextDefaults,
			Class: "FluxKontextPipeline", FileNames: []string{"kontext"},
		},
		Model{
			Name: "flux1-fill-dev", Aliases: []string{"fill", "dev-fill", "fill-dev", "flux-fill-dev", "flux.1-fill-dev"},
			Repo: "black-forest-labs/FLUX.1-Fill-dev", Defaults: fillDefaults, Class: "FluxFillPipeline",
			Transformer: map[string]any{"guidance_embeds": true, "in_channels": 384, "out_channels": 64},
		},
	),
	Help: Help{
		Guidance: "FLUX.1-dev takes any value, and FLUX.1-schnell has no guidance",
		Editors:  "FLUX.1-Kontext",
		Editing: `FLUX.1-Kontext takes one image with sides of at least 16 pixels. Of 17 sizes of
about a megapixel, from 672x1568 to 1568x672, it is resized to the one nearest
in shape. Without --height and --width the new image has that size too.`,
	},
}

// fluxTransformer returns the keys of config.json that tell apart the published transformers, which
// predict as many channels as they see.
func fluxTransformer(guided bool) map[string]any {
	return map[string]any{"guidance_embeds": guided, "out_channels": nil}
}

// flux1Components are the components of FLUX.1's pipelines.
var flux1Components = []Member{
	{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
	{Folder: "text_encoder", Class: component.CLIPTextModel},
	{Folder: "text_encoder_2", Class: component.T5EncoderModel},
	{Folder: "tokenizer", Class: component.CLIPTokenizer},
	{Folder: "tokenizer_2", Class: component.T5TokenizerFast},
	{Folder: "transformer", Class: component.FluxTransformer2DModel},
	{Folder: "vae", Class: component.AutoencoderKL},
}

// schnellDefaults has shorter prompts than those of other models.
var schnellDefaults = Defaults{Steps: 4, Height: 1024, Width: 1024, MaxSequenceLength: 256}

// flux1 is diffusers' FluxPipeline: FLUX.1 schnell and dev.
type flux1 struct {
	defaultMethods
	patches
	textEncoder  *textenc.CLIPText
	textEncoder2 *textenc.T5Encoder
	transformer  *transformer.Flux
	dtype        mlx.Dtype
}

func configureFlux1(l *Configs) (Pipeline, Networks) {
	f := &flux1{}
	return f, f.declareEqual(l)
}

// declareEqual is declare for a transformer that predicts as many channels as it sees.
func (f *flux1) declareEqual(l *Configs) Networks {
	networks := f.declare(l)
	if l.Failed() {
		return nil
	}
	if c := f.transformer.Config; c.Predicted() != c.InChannels {
		l.CheckTransformer(fmt.Errorf("in_channels %d and out_channels %d: must be equal (a transformer that fills masks "+
			"needs the class FluxFillPipeline in %s; variants for control are not supported)", c.InChannels, c.Predicted(), index.File))
	}
	return networks
}

// declare reads the configs and declares the networks, with a transformer of any channels.
func (f *flux1) declare(l *Configs) Networks {
	clip, t5, c := textenc.DefaultCLIPTextConfig(), textenc.DefaultT5Config(), transformer.DefaultFluxConfig()
	l.Read("text_encoder", &clip)
	l.Read("text_encoder_2", &t5)
	l.Read("transformer", &c)
	l.Fits("text_encoder", "the text encoder's hidden_size", clip.HiddenSize, "pooled_projection_dim", c.PooledProjectionDim)
	l.Fits("text_encoder_2", "the second text encoder's d_model", t5.DModel, "joint_attention_dim", c.JointAttentionDim)
	if l.Failed() {
		return nil
	}
	f.dtype, f.patches = l.Dtype, patches{c.InChannels}
	f.textEncoder = textenc.NewCLIPText(clip, f.dtype)
	f.textEncoder2 = textenc.NewT5Encoder(t5, f.dtype)
	f.transformer = transformer.NewFlux(c)
	return Networks{"text_encoder": f.textEncoder, "text_encoder_2": f.textEncoder2, "transformer": f.transformer}
}

// guided reports whether the guidance scale is an input of the transformer, as for FLUX.1-dev.
func (f *flux1) guided() bool { return f.transformer.Config.GuidanceEmbeds }

func (f *flux1) Defaults() Defaults {
	if f.guided() {
		return defaults(28, 3.5)
	}
	return schnellDefaults
}

// PromptEncodings returns CLIP, of which the pooled output is used, and T5. Both see padding: it
// has no effect on CLIP, where it comes after the end of the prompt, and T5 treats it like other
// tokens.
func (f *flux1) PromptEncodings([]image.Image) []PromptEncoding {
	limit := f.textEncoder.Config.MaxPositionEmbeddings
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "pooled_embeds", Shape: []int{-1}, Limit: limit,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			if most := t.MaxLength(); most > 0 {
				limit = min(limit, most)
			}
			return template{}.padded(t, prompt, limit)
		},
		Padded: true,
		Encode: func(ids []int32) *mlx.Array { return f.textEncoder.Forward(ids).Squeeze(0) },
	}, {
		Tokenizer: "tokenizer_2", Encoder: "text_encoder_2", IDs: "input_ids_2", Embeds: "embeds", Shape: []int{-1, -1},
		Tokenize: template{}.padded,
		Padded:   true,
		Encode:   func(ids []int32) *mlx.Array { return f.textEncoder2.Forward(ids).Squeeze(0) },
	}}
}

func (f *flux1) Guidance(g Guidance) (bool, error) {
	if g.Scale > 0 && !f.guided() {
		return false, fmt.Errorf("guidance %g: this model has no guidance (leave it out, or set it to 0)", g.Scale)
	}
	return g.TrueCFG > 1, nil
}

// Guide applies true_cfg_scale. Both predictions have the guidance scale as an input.
func (f *flux1) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	return f.defaultMethods.Guide(positive, negative, Guidance{Scale: g.TrueCFG})
}

func (f *flux1) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	embeds := c.Text[1].ExpandDims(0)
	sizes, references := c.referenceTokens(transformer.Pack)
	s, err := f.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	in := transformer.Inputs{Text: embeds, References: references, Channels: fillChannels(c.Fill)}
	return predictor(newForward(c, compile, s, f.transformer.Pass), in, f.dtype, func(in *transformer.Inputs, at scheduler.Interval) {
		if in.Projections = c.Times.Row(at.Timestep); in.Projections == nil {
			f.condition(c, in)
			in.Timestep = f.transformer.Timestep(at.Timestep / 1000)
		}
	}), nil
}

// condition sets what modulates all blocks besides the time.
func (f *flux1) condition(c Conditioning, in *transformer.Inputs) {
	in.Pooled = c.Text[0].ExpandDims(0)
	if f.guided() {
		in.Guidance = f.transformer.Guidance(float32(c.Guidance))
	}
}

func (f *flux1) TableRows(c Conditioning, timesteps []float32) *mlx.Array {
	var in transformer.Inputs
	f.condition(c, &in)
	return f.transformer.Projections(in, times(timesteps), f.dtype)
}

// TableOfPrompt returns true: the rows depend on the pooled embeddings.
func (f *flux1) TableOfPrompt() bool { return true }

func (f *flux1) TimeLayers() *transformer.TimeLayers { return f.transformer.TimeLayers() }
