package family

import (
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
)

// ZImage is the family of Z-Image.
var ZImage = &Family{
	Name: "Z-Image",
	Pipelines: []*Class{
		{Name: "ZImagePipeline", New: func() Pipeline { return &zImage{} }, Components: []Member{
			{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
			{Folder: "text_encoder", Class: component.Qwen3Model},
			{Folder: "tokenizer", Class: component.Qwen2Tokenizer},
			{Folder: "transformer", Class: component.ZImageTransformer2DModel},
			{Folder: "vae", Class: component.AutoencoderKL, MFlux: component.AutoencoderKLOfZImage},
		}},
	},
	Models: []Model{
		{
			Name: "z-image-turbo", Aliases: []string{"zimage-turbo"},
			Repo:    "Tongyi-MAI/Z-Image-Turbo",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 8, Guidance: 0, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "ZImagePipeline", Scheduler: constantShift(3), Configs: zImageConfigs,
		},
		{
			Name: "z-image", Aliases: []string{"zimage"},
			Repo:    "Tongyi-MAI/Z-Image",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 50, Guidance: 5, Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "ZImagePipeline", Scheduler: constantShift(6), Configs: zImageConfigs,
		},
	},
	Help: Help{
		Guidance: "0 disables it for Z-Image",
	},
}

// zImageConfigs has the configs of Z-Image. The transformer has the defaults of its class, except
// that captions can be longer.
var zImageConfigs = map[string]map[string]any{
	"text_encoder": qwen3Of4B,
	"transformer":  {"axes_lens": []int{1536, 512, 512}},
	"vae":          kl16,
}

// zImage is diffusers' ZImagePipeline.
type zImage struct {
	defaultMethods
	textEncoder *textenc.Qwen3
	transformer *transformer.ZImage
	dtype       mlx.Dtype
}

func (z *zImage) Configure(l *component.Folder) ([]component.Component, error) {
	z.dtype = l.Dtype
	text := textenc.DefaultQwen3Config()
	if err := l.Config("text_encoder", &text); err != nil {
		return nil, err
	}
	c := transformer.DefaultZImageConfig()
	if err := l.Config("transformer", &c); err != nil {
		return nil, err
	}
	if err := l.FitsTransformer("text_encoder", "the text encoder's hidden_size", text.HiddenSize, "cap_feat_dim",
		c.CapFeatDim); err != nil {
		return nil, err
	}
	// hidden_states[-2]: the last layer and the norm after it are not needed
	z.textEncoder = textenc.NewQwen3(text, []int{text.NumHiddenLayers - 1}, z.dtype)
	z.transformer = transformer.NewZImage(c)
	return []component.Component{
		{
			Name: "text_encoder", Dir: "text_encoder", Class: component.Qwen3Model, Model: z.textEncoder,
			Prefixes: []string{"model."}, // as a Qwen3ForCausalLM saves it
			Ignore:   z.textEncoder.Unused(),
		},
		{Name: "transformer", Dir: "transformer", Class: component.ZImageTransformer2DModel, Model: z.transformer},
	}, nil
}

func (z *zImage) Defaults() Defaults {
	return Defaults{Steps: 50, Guidance: 5, Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

func (z *zImage) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		// Qwen3's chat template with enable_thinking=True and a generation prompt
		Tokenize: chat("", "").cut,
		Encode:   func(ids []int32) *mlx.Array { return z.textEncoder.Forward(ids).Squeeze(0) },
	}}
}

func (z *zImage) LatentShape(h, w int) []int {
	return []int{z.transformer.Config.InChannels, h, w}
}

func (z *zImage) Multiple() int { return z.transformer.Config.AllPatchSize[0] }

func (z *zImage) Fits(h, w, tokens int) error { return z.transformer.Fits(h, w, tokens) }

func (z *zImage) Guidance(scale float64) (bool, error) { return scale > 0, nil }

func (z *zImage) Sigmas(steps int) []float32 { return scheduler.LinearSigmas(steps) }

// Guide returns positive + scale·(positive - negative): the guidance of Z-Image starts from the
// positive prediction.
func (z *zImage) Guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	return positive.Add(positive.Sub(negative).Times(scale))
}

// Predictor inverts the timestep, since the model's time is 0 for pure noise, and negates the
// output.
func (z *zImage) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	caption := c.Text[0]
	s, err := z.transformer.Sequence(h, w, caption.Dim(0))
	if err != nil {
		return nil, errs.Request(err)
	}
	type inputs struct{ Latents, Timestep, Caption *mlx.Array }
	forward := stepcache.Forward(c.StepCache, compile, func(in inputs) transformer.Pass {
		return negated{z.transformer.Pass(in.Latents, in.Timestep, in.Caption, s)}
	})
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		time := z.transformer.Timestep((1000 - at.Timestep) / 1000)
		in := inputs{Latents: latents.AsType(z.dtype), Timestep: time, Caption: caption}
		return forward(in).AsType(mlx.Float32)
	}, nil
}

// negated is a pass whose output is negated.
type negated struct{ transformer.Pass }

func (n negated) Output(image *mlx.Array) *mlx.Array { return n.Pass.Output(image).Neg() }
