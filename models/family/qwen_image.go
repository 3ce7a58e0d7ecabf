package family

import (
	"fmt"
	"image"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/models/stepcache"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// QwenImage is the family of Qwen-Image.
var QwenImage = &Family{
	Name: "Qwen-Image",
	Pipelines: []*Class{
		{Name: "QwenImagePipeline", New: func() Pipeline { return &qwenImage{} }, NeedsNegativePrompt: true, Components: qwenComponents},
		{Name: "QwenImageEditPipeline", New: func() Pipeline { return &qwenEdit{} }, NeedsNegativePrompt: true,
			Components: qwenEditComponents},
		{Name: "QwenImageEditPlusPipeline", New: func() Pipeline { return &qwenEdit{plus: true} }, NeedsNegativePrompt: true,
			Components: qwenEditComponents},
	},
	Models: []Model{
		{
			Name: "qwen-image", Aliases: []string{"qwen"},
			Repo:    "Qwen/Qwen-Image",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "QwenImagePipeline", Scheduler: qwenShift, Transformer: map[string]any{"zero_cond_t": false}, Configs: qwenConfigs,
		},
		{
			Name: "qwen-image-2512", Aliases: []string{"qwen-2512"},
			Repo:    "Qwen/Qwen-Image-2512",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "QwenImagePipeline", Scheduler: qwenShift, Transformer: map[string]any{"zero_cond_t": false}, Configs: qwenConfigs,
		},
		{
			Name: "qwen-image-edit", Aliases: []string{"qwen-edit"},
			Repo:    "Qwen/Qwen-Image-Edit",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "QwenImageEditPipeline", Scheduler: qwenShift, Processor: qwen2VLProcessor,
			Transformer: map[string]any{"zero_cond_t": false}, Configs: qwenConfigs,
		},
		{
			Name: "qwen-image-edit-2509", Aliases: []string{"qwen-edit-plus", "qwen-edit-2509"},
			Repo:    "Qwen/Qwen-Image-Edit-2509",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 40, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "QwenImageEditPlusPipeline", Scheduler: qwenShift, Processor: qwen2VLProcessor,
			Transformer: map[string]any{"zero_cond_t": false}, Configs: qwenConfigs,
		},
		{
			Name: "qwen-image-edit-2511", Aliases: []string{"qwen-edit-2511"},
			Repo:    "Qwen/Qwen-Image-Edit-2511",
			Licence: "Apache-2.0", LicenceURL: "https://www.apache.org/licenses/LICENSE-2.0",
			Defaults: Defaults{Steps: 40, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512},
			Class:    "QwenImageEditPlusPipeline", Scheduler: qwenShift, Processor: qwen2VLProcessor,
			Transformer: map[string]any{"zero_cond_t": true}, Configs: qwenConfigs,
		},
	},
	Help: Help{
		Guidance: "1 or less disables it for Qwen-Image",
		Editors:  "Qwen-Image-Edit",
		Editing: `Qwen-Image-Edit takes one reference image, and its later versions (2509, 2511)
take several, of any size. Each is resized to about a megapixel, with sides that
are multiples of 32. Prompts refer to them as Picture 1, Picture 2 and so on.
Without --height and --width the result has the size of the last image after
that.`,
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

// qwenConfigs has the configs of Qwen-Image: Qwen2.5-VL with 7 billion weights. Transformer and
// autoencoder have the defaults of their classes.
var qwenConfigs = map[string]map[string]any{"text_encoder": {
	"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
	"num_key_value_heads": 4, "rms_norm_eps": 1e-6,
	"vision_config": map[string]any{"hidden_size": 1280, "out_hidden_size": 3584},
}}

// qwenShift is the scheduler's config of Qwen-Image: it shifts sigmas by the image's size, and
// stretches them so that the last one is 0.02.
var qwenShift = map[string]any{
	"shift": 1.0, "use_dynamic_shifting": true, "shift_terminal": 0.02,
	"base_shift": 0.5, "max_shift": 0.9, "base_image_seq_len": 256, "max_image_seq_len": 8192,
}

// qwen2VLProcessor is the image processor's config of Qwen-Image-Edit.
var qwen2VLProcessor = map[string]any{
	"image_processor_type": "Qwen2VLImageProcessor",
	"min_pixels":           3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
	"image_mean": []float64{0.48145466, 0.4578275, 0.40821073}, "image_std": []float64{0.26862954, 0.26130258, 0.27577711},
}

// qwenImage is diffusers' QwenImagePipeline.
type qwenImage struct {
	defaultMethods
	patches
	textEncoder *textenc.Qwen25VL
	transformer *transformer.QwenImage
	dtype       mlx.Dtype
}

// System prompts of the chat template of Qwen2.5-VL, and the number of tokens at the beginning of
// the template that the transformer does not get (prompt_template_encode_start_idx).
const (
	qwenImageSystem = "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial " +
		"relationships of the objects and background:"
	qwenImageDrop = 34

	qwenEditSystem = "Describe the key features of the input image (color, shape, size, texture, objects, background), " +
		"then explain how the user's text instruction should alter or modify the image. " +
		"Generate a new image that meets the user's requirements while maintaining consistency with the original input where appropriate."
	qwenEditDrop = 64
)

func qwenTemplate(system, images string) template {
	t := chat(images, "")
	t.before = "<|im_start|>system\n" + system + "<|im_end|>\n" + t.before
	return t
}

// qwenMaxTokens is the largest number of tokens of the text encoder, in addition to those that are
// dropped (tokenizer_max_length).
const qwenMaxTokens = 1024

func (q *qwenImage) Configure(l *component.Folder) ([]component.Component, error) {
	return q.configureWith(l, false)
}

func (q *qwenImage) configureWith(l *component.Folder, vision bool) ([]component.Component, error) {
	q.dtype = l.Dtype
	text, c := textenc.DefaultQwen25VLConfig(), transformer.DefaultQwenImageConfig()
	if err := l.Config("text_encoder", &text); err != nil {
		return nil, err
	}
	if err := l.Config("transformer", &c); err != nil {
		return nil, err
	}
	if err := l.FitsTransformer("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize,
		"joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	q.patches = patches{c.InChannels}
	q.textEncoder = textenc.NewQwen25VL(text, vision, q.dtype)
	q.transformer = transformer.NewQwenImage(c)
	return []component.Component{
		{
			Name: "text_encoder.model", Dir: "text_encoder", Class: component.Qwen25VLForConditionalGeneration, Model: q.textEncoder,
			Prefixes: []string{"model."},
			Ignore:   q.textEncoder.Unused(),
		},
		{Name: "transformer", Dir: "transformer", Class: component.QwenImageTransformer2DModel, Model: q.transformer},
	}, nil
}

// Defaults has the negative prompt of the model's page: without one diffusers does not apply
// guidance.
func (q *qwenImage) Defaults() Defaults {
	return Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

func (q *qwenImage) PromptEncodings([]image.Image) []PromptEncoding {
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		PrefixTokens: qwenImageDrop,
		LimitsRows:   true,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, limit int) (Tokens, error) {
			w := qwenTemplate(qwenImageSystem, "")
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

// Guidance needs a scale above 1 to have an effect (true_cfg_scale).
func (q *qwenImage) Guidance(scale float64) (bool, error) { return scale > 1, nil }

// Guide rescales each token of the guided prediction to the norm of the positive prediction.
func (q *qwenImage) Guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	h, w := positive.Dim(2)/2, positive.Dim(3)/2
	length := func(x *mlx.Array) *mlx.Array { return x.Mul(x).Sum(-1).Sqrt() }
	pos := transformer.Pack(positive)
	guided := transformer.Pack(q.defaultMethods.Guide(positive, negative, scale))
	return transformer.Unpack(guided.Mul(length(pos).Div(length(guided))), h, w)
}

func (q *qwenImage) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	embeds := c.Text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(transformer.Pack)
	s, err := q.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, errs.Request(err)
	}
	type inputs struct{ Latents, Timestep, Text, References *mlx.Array }
	forward := stepcache.Forward(c.StepCache, compile, func(in inputs) transformer.Pass {
		return q.transformer.Pass(in.Latents, in.Timestep, in.Text, in.References, s)
	})
	return func(latents *mlx.Array, at scheduler.Interval) *mlx.Array {
		time := q.transformer.Timestep(at.Timestep / 1000)
		in := inputs{Latents: latents.AsType(q.dtype), Timestep: time, Text: embeds, References: references}
		return forward(in).AsType(mlx.Float32)
	}, nil
}

// qwenEdit is diffusers' QwenImageEditPipeline, which takes one reference image. With plus set it
// is QwenImageEditPlusPipeline, which takes several. The text encoder sees a copy of each image,
// which is small for QwenImageEditPlusPipeline, and the transformer gets its latents.
type qwenEdit struct {
	qwenImage
	plus      bool
	processor *textenc.Qwen2VLImageProcessor
	points    *hooks.Points
	passed    []textenc.VisionInput // inputs of the vision encoder for the prompt, after the hook

	vaeArea       int // area of the images that the autoencoder encodes, in pixels
	conditionArea int // area of the images that the text encoder sees, in pixels
}

func (q *qwenEdit) Configure(l *component.Folder) ([]component.Component, error) {
	q.points = l.Points
	components, err := q.configureWith(l, true)
	if err != nil {
		return nil, err
	}
	// diffusers has these areas in its code; other models than the published ones can name
	// theirs in the index
	own := struct {
		VAEImageSize       int `json:"vae_image_size"`
		ConditionImageSize int `json:"condition_image_size"`
	}{1024 * 1024, 384 * 384}
	if err := checkpoint.ReadJSON(l.FS, index.File, &own); err != nil {
		return nil, err
	}
	if own.VAEImageSize < 1 || own.ConditionImageSize < 1 || max(own.VAEImageSize, own.ConditionImageSize) > picture.MaxPixels {
		return nil, fmt.Errorf("%w: %s: vae_image_size %d and condition_image_size %d: expected numbers of pixels",
			errs.ErrUnsupported, checkpoint.FullName(l.FS, index.File), own.VAEImageSize, own.ConditionImageSize)
	}
	q.vaeArea, q.conditionArea = own.VAEImageSize, own.ConditionImageSize
	if l.Absent["processor"] || l.Absent["text_encoder"] {
		return components, nil
	}
	if q.processor, err = textenc.LoadQwen2VLImageProcessor(l.FS, "processor"); err != nil {
		return nil, err
	}
	return components, q.processor.Fits(&q.textEncoder.Config.Vision)
}

// qwenSize returns the size of an image that is resized to an area in pixels, in multiples of 32
// (calculate_dimensions).
func qwenSize(size image.Point, area int) image.Point {
	ratio := float64(size.X) / float64(size.Y)
	width := math.Sqrt(float64(area) * ratio)
	height := width / ratio
	round := func(v float64) int { return int(math.RoundToEven(v/32)) * 32 }
	return image.Pt(round(width), round(height))
}

// conditionSize returns the size of the copy of an image that the text encoder sees.
func (q *qwenEdit) conditionSize(size image.Point) image.Point {
	if q.plus {
		return qwenSize(size, q.conditionArea)
	}
	return qwenSize(size, q.vaeArea)
}

func (q *qwenEdit) CheckReference(size image.Point) error {
	long, short := max(size.X, size.Y), min(size.X, size.Y)
	vae, condition := qwenSize(size, q.vaeArea), q.conditionSize(size)
	if min(vae.X, vae.Y, condition.X, condition.Y) < 32 {
		return fmt.Errorf("has %dx%d pixels: the long side is %d times the short side, which is too much for this model "+
			"(crop it)", size.X, size.Y, long/short)
	}
	if q.processor == nil {
		return nil
	}
	if _, err := q.processor.Resized(condition); err != nil {
		return fmt.Errorf("has %dx%d pixels: its copy for the text encoder %w", size.X, size.Y, err)
	}
	return nil
}

func (q *qwenEdit) CheckReferences(n int) error {
	switch {
	case n == 0:
		return fmt.Errorf("this model edits images and needs at least one (gomflux edit --image; Qwen-Image generates " +
			"images from a prompt alone)")
	case n > 1 && !q.plus:
		return fmt.Errorf("%d images: this model takes one (Qwen-Image-Edit-2509 and later versions take several)", n)
	}
	return nil
}

func (q *qwenEdit) ReferenceSize(size image.Point, _ int) image.Point {
	return qwenSize(size, q.vaeArea)
}

func (q *qwenEdit) Reference(img *image.RGBA, multiple int) *image.RGBA {
	size := q.ReferenceSize(img.Rect.Size(), multiple)
	return picture.Resize(img, size.X, size.Y)
}

// ReferenceName returns the word of the template.
func (q *qwenEdit) ReferenceName() string { return "Picture" }

// EditSize returns the size of the last image.
func (q *qwenEdit) EditSize(sizes []image.Point, multiple int) image.Point {
	return q.ReferenceSize(sizes[len(sizes)-1], multiple)
}

// visionSize returns the size in which the vision encoder sees an image.
func (q *qwenEdit) visionSize(size image.Point) (image.Point, error) {
	return q.processor.Resized(q.conditionSize(size))
}

// vision returns the inputs of the vision encoder. For the negative prompt they are those of the
// prompt, which a hook may have replaced.
func (q *qwenEdit) vision(references []image.Image) []textenc.VisionInput {
	if q.points.Active() && q.points.Negative && q.passed != nil {
		return q.passed
	}
	var all []textenc.VisionInput
	for _, img := range references {
		size := q.conditionSize(img.Bounds().Size())
		condition := picture.Resize(picture.Opaque(img), size.X, size.Y)
		if q.points.Active() {
			x := q.points.Value("image.condition", mlx.FromUint8(pixels.RGB(condition), size.Y, size.X, 3))
			condition = pixels.FromRGB(x.Uint8s(), size.Y, size.X)
		}
		fit, err := q.processor.Resized(size)
		if err != nil {
			mlx.Throw(errs.Request(err))
		}
		in, err := q.processor.Process(picture.ResizeBicubic(condition, fit.X, fit.Y))
		if err != nil {
			mlx.Throw(err)
		}
		all = append(all, in)
	}
	if q.points.Active() {
		if err := q.pass(all); err != nil {
			mlx.Throw(errs.Request(err))
		}
		q.passed = all
	}
	return all
}

// pass passes the inputs of the vision encoder through the hook.
func (q *qwenEdit) pass(all []textenc.VisionInput) error {
	var values []float32
	var grids []int32
	for _, in := range all {
		values = append(values, in.Pixels...)
		grids = append(grids, 1, int32(in.Height), int32(in.Width))
	}
	row := len(all[0].Pixels) / (all[0].Height * all[0].Width)
	values = q.points.Value("vision.pixel_values", mlx.FromFloat32(values, len(values)/row, row)).Floats()
	grids = q.points.Value("vision.grid_thw", mlx.FromInt32(grids, len(all), 3)).Int32s()
	for i := range all {
		grid, merge := grids[3*i:3*i+3], int32(q.processor.MergeSize)
		if patches := all[i].Height * all[i].Width; grid[0] != 1 || grid[1] < 1 || grid[2] < 1 || grid[1]%merge != 0 ||
			grid[2]%merge != 0 || int(grid[1])*int(grid[2]) != patches {
			return fmt.Errorf("vision.grid_thw of image %d is %v: expected 1 and sides that are multiples of %d, of %d "+
				"patches in all", i+1, grid, merge, patches)
		}
		all[i].Height, all[i].Width = int(grid[1]), int(grid[2])
		n := len(all[i].Pixels)
		all[i].Pixels, values = values[:n], values[n:]
	}
	return nil
}

// Vision counts the tokens of all images together, as if they were one image.
func (q *qwenEdit) Vision(references []image.Image) (vision component.Component, tokens int) {
	for _, img := range references {
		if size, err := q.visionSize(img.Bounds().Size()); err == nil {
			tokens += size.Y / q.processor.PatchSize * (size.X / q.processor.PatchSize)
		}
	}
	return component.Qwen25VLVision(q.textEncoder), tokens
}

func (q *qwenEdit) PromptEncodings(references []image.Image) []PromptEncoding {
	// the number of an image's tokens follows from its size
	expand := func(ids []int32) ([]int32, error) {
		var all []textenc.VisionInput
		for _, img := range references {
			size, err := q.visionSize(img.Bounds().Size())
			if err != nil {
				return nil, err
			}
			all = append(all, textenc.VisionInput{Height: size.Y / q.processor.PatchSize, Width: size.X / q.processor.PatchSize})
		}
		return q.textEncoder.Config.ExpandImages(ids, all)
	}
	const placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
	user := placeholder
	if q.plus {
		var b strings.Builder
		for i := range references {
			fmt.Fprintf(&b, "Picture %d: %s", i+1, placeholder)
		}
		user = b.String()
	}
	return []PromptEncoding{{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		SeesReferences: true, NeverCut: true,
		PrefixTokens: qwenEditDrop,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, _ int) (Tokens, error) {
			tokens, err := qwenTemplate(qwenEditSystem, user).whole(t, prompt)
			if err != nil {
				return Tokens{}, err
			}
			tokens.IDs, err = expand(tokens.IDs)
			return tokens, err
		},
		Images: func(ids []int32) ([]int32, error) {
			images := slices.Repeat([]int32{int32(q.textEncoder.Config.ImageTokenID)}, len(references))
			return expand(slices.Insert(slices.Clone(ids), qwenEditDrop, images...))
		},
		Encode: func(ids []int32) *mlx.Array { return q.states(ids, q.vision(references), qwenEditDrop) },
	}}
}
