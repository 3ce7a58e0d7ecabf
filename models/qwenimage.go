package models

import (
	"fmt"
	"image"
	"math"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
	"github.com/gomflux/gomflux/transformer"
)

// qwenImage is diffusers' QwenImagePipeline.
type qwenImage struct {
	usual
	patches
	textEncoder *textenc.Qwen25VL
	transformer *transformer.QwenImage
	dtype       mlx.Dtype
}

// The chat template of Qwen2.5-VL around a prompt, with what the text encoder is
// asked to do; and how many tokens of its beginning the transformer is not given
// (prompt_template_encode_start_idx).
const (
	qwenImageSystem = "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the objects and background:"
	qwenImageDrop   = 34

	qwenEditSystem = "Describe the key features of the input image (color, shape, size, texture, objects, background), then explain how the user's text instruction should alter or modify the image. " +
		"Generate a new image that meets the user's requirements while maintaining consistency with the original input where appropriate."
	qwenEditDrop = 64
)

func qwenTemplate(system, user string) string {
	return "<|im_start|>system\n" + system + "<|im_end|>\n" + chatTurn(user)
}

func (q *qwenImage) configure(l *loader) ([]component, error) { return q.configureWith(l, false) }

func (q *qwenImage) configureWith(l *loader, vision bool) ([]component, error) {
	q.dtype = l.dtype
	text, c := textenc.DefaultQwen25VLConfig(), transformer.DefaultQwenImageConfig()
	if err := l.config("text_encoder/config.json", &text); err != nil {
		return nil, err
	}
	if err := l.config("transformer/config.json", &c); err != nil {
		return nil, err
	}
	if err := l.belongs("text_encoder", "the text encoder's hidden_size", text.Text.HiddenSize, "joint_attention_dim", c.JointAttentionDim); err != nil {
		return nil, err
	}
	q.patches = patches{c.InChannels}
	q.textEncoder = textenc.NewQwen25VL(text, vision, q.dtype)
	q.transformer = transformer.NewQwenImage(c)
	return []component{
		{
			name: "text_encoder.model", dir: "text_encoder", class: "Qwen2_5_VLForConditionalGeneration", model: q.textEncoder,
			prefixes: []string{"model."},
			ignore:   q.textEncoder.Unused(),
		},
		{name: "transformer", dir: "transformer", class: "QwenImageTransformer2DModel", model: q.transformer},
	}, nil
}

// defaults has the negative prompt of the model's page: without one diffusers
// does not guide.
func (q *qwenImage) defaults() Defaults {
	return Defaults{Steps: 50, Guidance: 4, NegativePrompt: " ", Height: 1024, Width: 1024, MaxSequenceLength: 512}
}

func (q *qwenImage) texts([]image.Image) []text {
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "embeds", shape: []int{-1, -1}, uncounted: qwenImageDrop,
		tokens: func(t *tokenizer.Tokenizer, prompt string, _ int) ([]int32, int, error) {
			ids, err := t.Encode(qwenTemplate(qwenImageSystem, prompt))
			return ids, len(ids) - qwenImageDrop, err
		},
		encode: func(ids []int32) *mlx.Array { return q.states(ids, nil, qwenImageDrop) },
	}}
}

// states are the text encoder's hidden states [n, joint_attention_dim] without
// the first ones, which are the template's.
func (q *qwenImage) states(ids []int32, pictures []textenc.VisionInput, drop int) *mlx.Array {
	x := q.textEncoder.Forward(ids, pictures)
	return x.Slice(1, min(drop, len(ids)-1), len(ids)).Squeeze(0)
}

// guidance counts from 1, which is none (true_cfg_scale).
func (q *qwenImage) guidance(scale float64) (bool, error) { return scale > 1, nil }

// guide brings each token of the guided prediction back to the length that it
// has for the prompt.
func (q *qwenImage) guide(positive, negative *mlx.Array, scale float64) *mlx.Array {
	h, w := positive.Dim(2)/2, positive.Dim(3)/2
	length := func(x *mlx.Array) *mlx.Array { return x.Mul(x).Sum(-1).Sqrt() }
	pos := transformer.Pack(positive)
	guided := transformer.Pack(q.usual.guide(positive, negative, scale))
	return transformer.Unpack(guided.Mul(length(pos).Div(length(guided))), h, w)
}

func (q *qwenImage) denoiser() stack {
	c := q.transformer.Config
	w := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	return stack{blocks: c.NumLayers, heads: c.NumAttentionHeads, made: 17 * w, read: 23 * w, alive: 20 * w, scores: 1, cast: 0.12, castAlone: 0.5}
}

func (q *qwenImage) encoder(string) stack {
	c := q.textEncoder.Config.Text
	return textStack(c.NumHiddenLayers, c.NumAttentionHeads, c.HiddenSize, c.IntermediateSize, 1)
}

func (q *qwenImage) predictor(c conditions, h, w int, compile compiler) (predictor, error) {
	embeds := c.text[0].ExpandDims(0)
	sizes, references := c.referenceTokens(transformer.Pack)
	s, err := q.transformer.Sequence(h, w, embeds.Dim(1), sizes...)
	if err != nil {
		return nil, requestError{err}
	}
	forward := compile(func(in []*mlx.Array) []*mlx.Array {
		return []*mlx.Array{q.transformer.Forward(in[0], in[1], in[2], optional(in, 3), s)}
	})
	return predictWith(forward, q.dtype, fraction(q.transformer.Timestep), append([]*mlx.Array{embeds}, references...)...), nil
}

// qwenEdit is diffusers' QwenImageEditPipeline, which is shown one picture. With
// plus set it is QwenImageEditPlusPipeline, which is shown several: each as its
// own picture to the text encoder, which gets a small copy, and as latents.
type qwenEdit struct {
	qwenImage
	plus      bool
	processor *textenc.Qwen2VLImageProcessor
	points    *hooks.Points
	// areas of the copies of a picture, in pixels
	vaeArea, conditionArea int
}

func (q *qwenEdit) configure(l *loader) ([]component, error) {
	q.points = l.points
	components, err := q.configureWith(l, true)
	if err != nil {
		return nil, err
	}
	// diffusers has these areas in its code; what is here besides the published
	// models can name its own
	index := struct {
		VAEImageSize       int `json:"vae_image_size"`
		ConditionImageSize int `json:"condition_image_size"`
	}{1024 * 1024, 384 * 384}
	if err := checkpoint.ReadJSON(l.fsys, indexFile, &index); err != nil {
		return nil, err
	}
	if index.VAEImageSize < 1 || index.ConditionImageSize < 1 || max(index.VAEImageSize, index.ConditionImageSize) > picture.MaxPixels {
		return nil, fmt.Errorf("%w: %s: vae_image_size %d and condition_image_size %d: expected numbers of pixels",
			ErrUnsupported, checkpoint.FullName(l.fsys, indexFile), index.VAEImageSize, index.ConditionImageSize)
	}
	q.vaeArea, q.conditionArea = index.VAEImageSize, index.ConditionImageSize
	if l.absent["processor"] || l.absent["text_encoder"] {
		return components, nil
	}
	if q.processor, err = textenc.LoadQwen2VLImageProcessor(l.fsys, "processor"); err != nil {
		return nil, err
	}
	return components, q.processor.Fits(&q.textEncoder.Config.Vision)
}

// qwenSize is the size of a copy of so many pixels, in multiples of 32
// (calculate_dimensions).
func qwenSize(size image.Point, area int) image.Point {
	ratio := float64(size.X) / float64(size.Y)
	width := math.Sqrt(float64(area) * ratio)
	height := width / ratio
	round := func(v float64) int { return int(math.RoundToEven(v/32)) * 32 }
	return image.Pt(round(width), round(height))
}

// conditionSize is that of the copy which the text encoder is shown.
func (q *qwenEdit) conditionSize(size image.Point) image.Point {
	if q.plus {
		return qwenSize(size, q.conditionArea)
	}
	return qwenSize(size, q.vaeArea)
}

func (q *qwenEdit) checkReference(size image.Point) error {
	long, short := max(size.X, size.Y), min(size.X, size.Y)
	vae, condition := qwenSize(size, q.vaeArea), q.conditionSize(size)
	if min(vae.X, vae.Y, condition.X, condition.Y) < 32 {
		return fmt.Errorf("has %dx%d pixels: the long side is %d times the short one, too much for this model (crop it)", size.X, size.Y, long/short)
	}
	if q.processor == nil {
		return nil
	}
	if _, err := q.processor.Resized(condition); err != nil {
		return fmt.Errorf("has %dx%d pixels: its copy for the text encoder %w", size.X, size.Y, err)
	}
	return nil
}

// checkReferences says what is wrong with a number of pictures.
func (q *qwenEdit) checkReferences(n int) error {
	switch {
	case n == 0:
		return fmt.Errorf("this model edits pictures, and none is given (gomflux edit --image; Qwen-Image makes pictures from a prompt alone)")
	case n > 1 && !q.plus:
		return fmt.Errorf("%d pictures: this model edits one (Qwen-Image-Edit-2509 and later ones several)", n)
	}
	return nil
}

func (q *qwenEdit) referenceSize(size image.Point, _ int) image.Point {
	return qwenSize(size, q.vaeArea)
}

func (q *qwenEdit) reference(img *image.RGBA, multiple int) *image.RGBA {
	size := q.referenceSize(img.Rect.Size(), multiple)
	return picture.Resize(img, size.X, size.Y)
}

// referenceName is that of the template.
func (q *qwenEdit) referenceName() string { return "Picture" }

// editSize is that of the last picture.
func (q *qwenEdit) editSize(sizes []image.Point, multiple int) image.Point {
	return q.referenceSize(sizes[len(sizes)-1], multiple)
}

// visionSize is the size in which the vision tower sees a picture.
func (q *qwenEdit) visionSize(size image.Point) (image.Point, error) {
	return q.processor.Resized(q.conditionSize(size))
}

// vision are pictures as the text encoder sees them.
func (q *qwenEdit) vision(references []image.Image) []textenc.VisionInput {
	var all []textenc.VisionInput
	for _, img := range references {
		size := q.conditionSize(img.Bounds().Size())
		condition := picture.Resize(picture.Opaque(img), size.X, size.Y)
		if q.points.Active() {
			x := q.points.Value("image.condition", mlx.FromUint8(rgb(condition), size.Y, size.X, 3))
			condition = rgba(x.Uint8s(), size.Y, size.X)
		}
		fit, err := q.processor.Resized(size)
		if err != nil {
			mlx.Throw(requestError{err})
		}
		in, err := q.processor.Process(picture.ResizeBicubic(condition, fit.X, fit.Y))
		if err != nil {
			mlx.Throw(err)
		}
		all = append(all, in)
	}
	if q.points.Active() && !q.points.Negative { // whose pictures are the same
		q.pass(all)
	}
	return all
}

// pass passes what the vision tower gets by the hook.
func (q *qwenEdit) pass(all []textenc.VisionInput) {
	var pixels []float32
	var grids []int32
	for _, in := range all {
		pixels = append(pixels, in.Pixels...)
		grids = append(grids, 1, int32(in.Height), int32(in.Width))
	}
	row := len(all[0].Pixels) / (all[0].Height * all[0].Width)
	pixels = q.points.Value("vision.pixel_values", mlx.FromFloat32(pixels, len(pixels)/row, row)).Floats()
	q.points.Value("vision.grid_thw", mlx.FromInt32(grids, len(all), 3))
	for i := range all {
		n := len(all[i].Pixels)
		all[i].Pixels, pixels = pixels[:n], pixels[n:]
	}
}

// tower counts attention as if the pictures were one, the size of all of them.
func (q *qwenEdit) tower(references []image.Image) stack {
	c := q.textEncoder.Config.Vision
	s := textStack(c.Depth, c.NumHeads, c.HiddenSize, c.IntermediateSize, 1)
	s.rows = 1
	for _, img := range references {
		if size, err := q.visionSize(img.Bounds().Size()); err == nil {
			s.tokens += size.Y / q.processor.PatchSize * (size.X / q.processor.PatchSize)
		}
	}
	return s
}

func (q *qwenEdit) texts(references []image.Image) []text {
	// the pictures' sizes are all that their tokens need
	sizes := func() ([]textenc.VisionInput, error) {
		var all []textenc.VisionInput
		for _, img := range references {
			size, err := q.visionSize(img.Bounds().Size())
			if err != nil {
				return nil, err
			}
			all = append(all, textenc.VisionInput{Height: size.Y / q.processor.PatchSize, Width: size.X / q.processor.PatchSize})
		}
		return all, nil
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
	return []text{{
		tokenizer: "tokenizer", encoder: "text_encoder", ids: "input_ids", embeds: "embeds", shape: []int{-1, -1}, looks: true,
		uncounted: qwenEditDrop,
		tokens: func(t *tokenizer.Tokenizer, prompt string, _ int) ([]int32, int, error) {
			ids, err := t.Encode(qwenTemplate(qwenEditSystem, user+prompt))
			if err != nil {
				return nil, 0, err
			}
			n := len(ids) - qwenEditDrop
			vision, err := sizes()
			if err != nil {
				return nil, 0, err
			}
			ids, err = q.textEncoder.Config.ExpandImages(ids, vision)
			return ids, n, err
		},
		encode: func(ids []int32) *mlx.Array { return q.states(ids, q.vision(references), qwenEditDrop) },
	}}
}
