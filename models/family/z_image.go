package family

import (
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textgen"
	"github.com/gomflux/gomflux/transformer"
)

// ZImage is the family of Z-Image.
var ZImage = &Family{
	Name: "Z-Image",
	Pipelines: []*Class{
		{Name: "ZImagePipeline", Also: []string{"ZImageImg2ImgPipeline", "ZImageInpaintPipeline"}, Configure: configureZImage,
			Guidance: picture.CFGScaleMinusOne, BoundsCFG: true, Components: []Member{
				{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
				{Folder: "text_encoder", Class: component.Qwen3Model},
				{Folder: "tokenizer", Class: component.Qwen2Tokenizer},
				{Folder: "transformer", Class: component.ZImageTransformer2DModel},
				{Folder: "vae", Class: component.AutoencoderKL, MFlux: component.AutoencoderKLOfZImage},
			}},
	},
	Models: publish(
		Model{Class: "ZImagePipeline", Licence: apache2, Configs: zImageConfigs},
		Model{
			Name: "z-image-turbo", Aliases: []string{"zimage-turbo"}, Repo: "Tongyi-MAI/Z-Image-Turbo",
			Defaults: defaults(8, 0), Scheduler: constantShift(3),
		},
		Model{
			Name: "z-image", Aliases: []string{"zimage"}, Repo: "Tongyi-MAI/Z-Image",
			Defaults: defaults(50, 5), Scheduler: constantShift(6),
		},
	),
	Rewriter: &Rewriter{
		Generate: ownGenerate, Edit: ownEdit, Source: ownRewriter.Source,
		Sampling: textgen.Sampling{Temperature: 0.6, TopK: 20, TopP: 0.95}, MaxTokens: 512, // generation_config.json
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
	fromPositive
	unpatched
	textEncoder *textenc.Qwen3
	transformer *transformer.ZImage
	dtype       mlx.Dtype
}

func configureZImage(l *Configs) (Pipeline, Networks) {
	text, c := textenc.DefaultQwen3Config(), transformer.DefaultZImageConfig()
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Fits("text_encoder", "the text encoder's hidden_size", text.HiddenSize, "cap_feat_dim", c.CapFeatDim)
	if l.Failed() {
		return nil, nil
	}
	z := &zImage{dtype: l.Dtype, unpatched: unpatched{c.InChannels}}
	// hidden_states[-2]: the last layer and the norm after it are not needed
	z.textEncoder = textenc.NewQwen3(text, []int{text.NumHiddenLayers - 1}, z.dtype)
	z.transformer = transformer.NewZImage(c)
	return z, Networks{"text_encoder": z.textEncoder, "transformer": z.transformer}
}

func (z *zImage) Defaults() Defaults { return defaults(50, 5) }

func (z *zImage) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		// Qwen3's chat template with enable_thinking=True and a generation prompt
		Tokenize: chat("", "").cut,
		Encode:   func(ids []int32) *mlx.Array { return z.textEncoder.Forward(ids).Squeeze(0) },
	}}
}

func (z *zImage) Multiple() int { return z.transformer.Config.AllPatchSize[0] }

func (z *zImage) Fits(h, w, tokens int) error { return z.transformer.Fits(h, w, tokens) }

// Guide limits the norm of each image's guided prediction.
func (z *zImage) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	guided := z.fromPositive.Guide(positive, negative, g)
	if g.Normalization == 0 {
		return guided
	}
	norm := func(x *mlx.Array) *mlx.Array { return x.Mul(x).Sum(1).Sum(2).Sum(3).Sqrt() }
	limit := norm(positive).Times(g.Normalization)
	return guided.Mul(limit.Div(norm(guided).Maximum(limit)))
}

func (z *zImage) Sigmas(steps int) []float32 { return scheduler.LinearSigmas(steps) }

// Predictor inverts the timestep, since the model's time is 0 for pure noise, and negates the
// output.
func (z *zImage) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	caption := c.Text[0]
	s, err := z.transformer.Sequence(h, w, caption.Dim(0))
	if err != nil {
		return nil, errs.Request(err)
	}
	if !z.transformer.Observed() {
		caption = c.once(func() *mlx.Array { return z.transformer.RefineCaption(caption, s, z.dtype) })
	}
	pass := func(in transformer.Inputs, s *transformer.ZImageSequence) transformer.Pass {
		return negated{z.transformer.Pass(in, s)}
	}
	in := transformer.Inputs{Text: caption}
	return predictor(newForward(c, compile, s, pass), in, z.dtype, func(in *transformer.Inputs, at scheduler.Interval) {
		in.Timestep = z.transformer.Timestep((1000 - at.Timestep) / 1000)
	}), nil
}

// negated is a pass whose output is negated.
type negated struct{ transformer.Pass }

func (n negated) Output(image *mlx.Array) *mlx.Array { return n.Pass.Output(image).Neg() }
