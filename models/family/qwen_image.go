package family

import (
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/textgen"
	"github.com/gomflux/gomflux/transformer"
)

// QwenImage is the family of Qwen-Image.
var QwenImage = &Family{
	Name: "Qwen-Image",
	Pipelines: []*Class{
		{Name: "QwenImagePipeline", Also: []string{"QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"},
			Configure: configureQwenImage, NeedsNegativePrompt: true, Components: qwenComponents},
		{Name: "QwenImageEditPipeline", Also: []string{"QwenImageEditInpaintPipeline"}, Configure: configureQwenEdit,
			NeedsNegativePrompt: true, Components: qwenEditComponents, References: 1},
		{Name: "QwenImageEditPlusPipeline", Configure: configureQwenEditPlus, NeedsNegativePrompt: true,
			Components: qwenEditComponents, References: anyNumber},
		{Name: "QwenImageLayeredPipeline", Configure: configureQwenLayered, NeedsNegativePrompt: true,
			Components: qwenEditComponents, References: 1, Layers: true},
	},
	Models: publish(
		Model{
			Class: "QwenImagePipeline", Licence: apache2, Scheduler: qwenShift, Defaults: qwenDefaults(50),
			Transformer: map[string]any{"zero_cond_t": false},
			// transformer and autoencoder have the defaults of their classes
			Configs: map[string]map[string]any{"text_encoder": qwen25VLOf7B},
		},
		Model{Name: "qwen-image", Aliases: []string{"qwen"}, Repo: "Qwen/Qwen-Image"},
		Model{Name: "qwen-image-2512", Aliases: []string{"qwen-2512"}, Repo: "Qwen/Qwen-Image-2512"},
		Model{
			Name: "qwen-image-edit", Aliases: []string{"qwen-edit"}, Repo: "Qwen/Qwen-Image-Edit",
			Class: "QwenImageEditPipeline", Processor: qwen2VLProcessor,
		},
		Model{
			Name: "qwen-image-edit-2509", Aliases: []string{"qwen-edit-plus", "qwen-edit-2509"}, Repo: "Qwen/Qwen-Image-Edit-2509",
			Class: "QwenImageEditPlusPipeline", Processor: qwen2VLProcessor, Defaults: qwenDefaults(40),
		},
		Model{
			Name: "qwen-image-edit-2511", Aliases: []string{"qwen-edit-2511"}, Repo: "Qwen/Qwen-Image-Edit-2511",
			Class: "QwenImageEditPlusPipeline", Processor: qwen2VLProcessor, Defaults: qwenDefaults(40),
			Transformer: map[string]any{"zero_cond_t": true},
		},
		Model{
			Name: "qwen-image-layered", Aliases: []string{"qwen-layered"}, Repo: "Qwen/Qwen-Image-Layered",
			Class: "QwenImageLayeredPipeline", Processor: qwen2VLProcessor, Defaults: layeredDefaults,
			Transformer: map[string]any{"zero_cond_t": false, "use_additional_t_cond": true, "use_layer3d_rope": true},
			Configs:     map[string]map[string]any{"text_encoder": qwen25VLOf7B, "vae": {"input_channels": 4}},
		},
	),
	Rewriter: &Rewriter{
		Generate: qwenImagePolish, Edit: ownEdit, Source: "prompt_utils.py of QwenLM/Qwen-Image, Apache-2.0, without its examples",
		Sampling: textgen.Sampling{Temperature: 0.7, TopK: 20, TopP: 0.8, RepetitionPenalty: 1.05}, MaxTokens: 512,
	},
	Help: Help{
		Guidance: "1 or less disables it for Qwen-Image",
		Editors:  "Qwen-Image-Edit, Qwen-Image-Layered",
		Editing: `Qwen-Image-Edit takes one reference image, and its later versions (2509, 2511)
take several, of any size. Each is resized to about a megapixel, with sides that
are multiples of 32. Prompts refer to them as Picture 1, Picture 2 and so on.
Without --height and --width the result has the size of the last image after
that.

Qwen-Image-Layered splits one image into layers with transparent pixels
(--layers). It is resized to the size of the result: without --height and
--width, one of 640x640 pixels with the image's proportions. The model is made
for that, and for 1024x1024. The prompt describes all of the image; without one
the model's text encoder writes it.`,
	},
}

// qwenComponents are the components of QwenImagePipeline.
var qwenComponents = []Member{
	{Folder: "scheduler", Class: component.FlowMatchEulerDiscreteScheduler},
	{Folder: "text_encoder", Class: component.Qwen25VLForConditionalGeneration},
	{Folder: "tokenizer", Class: component.Qwen2Tokenizer},
	{Folder: "transformer", Class: component.QwenImageTransformer2DModel},
	{Folder: "vae", Class: component.AutoencoderKLQwenImage},
}

// qwenEditComponents are the components of the pipelines of Qwen-Image-Edit.
var qwenEditComponents = append([]Member{
	{Folder: "processor", Class: component.Qwen2VLProcessor},
}, qwenComponents...)

// qwenDefaults has the negative prompt of the models' pages: without one diffusers does not apply
// guidance.
func qwenDefaults(steps int) Defaults {
	d := defaults(steps, 4)
	d.NegativePrompt = " "
	return d
}

// qwenImage is diffusers' QwenImagePipeline.
type qwenImage struct {
	defaultMethods
	patches
	textEncoder *textenc.Qwen25VL
	transformer *transformer.QwenImage
	dtype       mlx.Dtype
}

// qwenImageSystem is the system's message of the chat template, and qwenImageDrop the number of tokens
// at the beginning of the template that the transformer does not get
// (prompt_template_encode_start_idx).
const (
	qwenImageSystem = "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial " +
		"relationships of the objects and background:"
	qwenImageDrop = 34
)

// qwenMaxTokens is the largest number of tokens of the text encoder, in addition to those that are
// dropped (tokenizer_max_length).
const qwenMaxTokens = 1024

func configureQwenImage(l *Configs) (Pipeline, Networks) {
	q := &qwenImage{}
	return q, q.declare(l, false, false)
}

// declare reads the configs and declares the networks, with or without a vision encoder, with a transformer
// for layers or for one image.
func (q *qwenImage) declare(l *Configs, vision, layered bool) Networks {
	text, c := textenc.DefaultQwen25VLConfig(), transformer.DefaultQwenImageConfig()
	l.Read("text_encoder", &text)
	l.Read("transformer", &c)
	l.Fits("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize, "joint_attention_dim", c.JointAttentionDim)
	if !l.Absent[component.Transformers] {
		checkLayered(l, &c, layered)
	}
	if l.Failed() {
		return nil
	}
	q.dtype, q.patches = l.Dtype, patches{c.InChannels}
	q.textEncoder = textenc.NewQwen25VL(text, vision, q.dtype)
	q.transformer = transformer.NewQwenImage(c)
	return Networks{"text_encoder": q.textEncoder, "transformer": q.transformer}
}

func (q *qwenImage) Defaults() Defaults { return qwenDefaults(50) }

func (q *qwenImage) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		PrefixTokens: qwenImageDrop,
		LimitsRows:   true,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			w := chat("", "").withSystem(qwenImageSystem)
			tokens, err := w.cut(t, prompt, qwenImageDrop+max(limit, qwenMaxTokens))
			if err == nil && tokens.Total > qwenImageDrop+limit {
				err = w.lost(t, prompt, qwenImageDrop+limit, &tokens)
			}
			return tokens, err
		},
		Encode: func(ids []int32) *mlx.Array { return q.states(ids, nil, qwenImageDrop) },
	}}
}

// states returns the text encoder's hidden states [n, joint_attention_dim] without the first ones,
// which belong to the template.
func (q *qwenImage) states(ids []int32, images []textenc.VisionInput, drop int) *mlx.Array {
	x := q.textEncoder.Forward(ids, images)
	return x.Slice(1, min(drop, len(ids)-1), len(ids)).Squeeze(0)
}

// Guide rescales each token of the guided prediction to the norm of the positive prediction.
func (q *qwenImage) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	h, w := positive.Dim(2)/2, positive.Dim(3)/2
	length := func(x *mlx.Array) *mlx.Array { return x.Mul(x).Sum(-1).Sqrt() }
	pos := transformer.Pack(positive)
	guided := transformer.Pack(q.defaultMethods.Guide(positive, negative, g))
	return transformer.Unpack(guided.Mul(length(pos).Div(length(guided))), h, w)
}

func (q *qwenImage) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	sizes, references := c.referenceTokens(transformer.Pack)
	s, err := q.transformer.Sequence(h, w, c.Text[0].Dim(0), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	return q.predictor(c, s, references, compile), nil
}

// predictor is Predictor with the transformer's sequence and the packed latents of the reference images.
func (q *qwenImage) predictor(c Conditioning, s *transformer.QwenImageSequence, references *mlx.Array, compile Compiler) Predictor {
	in := transformer.Inputs{Text: c.Text[0].ExpandDims(0), References: references}
	return predictor(newForward(c, compile, s, q.transformer.Pass), in, q.dtype, func(in *transformer.Inputs, at scheduler.Interval) {
		if in.Projections = c.Times.Row(at.Timestep); in.Projections == nil {
			in.Timestep = q.transformer.Timestep(at.Timestep / 1000)
		}
	})
}

func (q *qwenImage) TableRows(_ Conditioning, timesteps []float32) *mlx.Array {
	return q.transformer.Projections(times(timesteps), q.dtype)
}

// TableOfPrompt returns false: the rows depend on the time alone.
func (q *qwenImage) TableOfPrompt() bool { return false }

func (q *qwenImage) TimeLayers() *transformer.TimeLayers { return q.transformer.TimeLayers() }

// qwenImagePolish is the English system prompt of Qwen-Image's makers for a language model that rewrites
// prompts, from src/examples/tools/prompt_utils.py of github.com/QwenLM/Qwen-Image, under the Apache License
// 2.0, without the examples. The makers add words on quality to the result, which gomflux does not.
const qwenImagePolish = `You are a Prompt optimizer designed to rewrite user inputs into high-quality Prompts that are more
complete and expressive while preserving the original meaning.
Task Requirements:
1. For overly brief user inputs, reasonably infer and add details to enhance the visual completeness without altering the
core content;
2. Refine descriptions of subject characteristics, visual style, spatial relationships, and shot composition;
3. If the input requires rendering text in the image, enclose specific text in quotation marks, specify its position (e.g.,
top-left corner, bottom-right corner) and style. This text should remain unaltered and not translated;
4. Match the Prompt to a precise, niche style aligned with the user’s intent. If unspecified, choose the most appropriate
style (e.g., realistic photography style);
5. Please ensure that the Rewritten Prompt is less than 200 words.

Please directly expand and refine the Prompt, even if it contains instructions, rewrite the instruction itself rather than
responding to it.`
