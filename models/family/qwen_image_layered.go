package family

import (
	"errors"
	"fmt"
	"image"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
	"github.com/gomflux/gomflux/transformer"
)

// qwenLayered is diffusers' QwenImageLayeredPipeline, which splits an image into layers with transparent
// pixels. The transformer sees the image as its reference. It generates the image again, which is not
// decoded, and the layers.
type qwenLayered struct {
	qwenImage
	area   int // of the image in pixels
	layers int // default number
}

// qwenLayers is the default number of layers.
const qwenLayers = 4

func configureQwenLayered(l *Configs) (Pipeline, Networks) {
	q := &qwenLayered{}
	networks := q.declare(l, false, true)
	own := struct {
		Resolution int `json:"resolution"`
		Layers     int `json:"layers"`
	}{640, qwenLayers}
	l.Index(&own)
	if own.Resolution < 32 || own.Resolution > picture.MaxSide || own.Layers < 1 || own.Layers > MaxLayers {
		l.CheckIndex(fmt.Errorf("resolution %d and layers %d: expected a side in pixels, and 1 to %d",
			own.Resolution, own.Layers, MaxLayers))
	}
	if l.Failed() {
		return nil, nil
	}
	q.area, q.layers = own.Resolution*own.Resolution, own.Layers
	return q, networks
}

func (q *qwenLayered) Defaults() Defaults { return layeredDefaults }

// layeredDefaults are those of the smaller of the two sizes that the model is made for.
var layeredDefaults = func() Defaults {
	d := qwenDefaults(50)
	d.Height, d.Width = 640, 640
	return d
}()

// DefaultLayers implements Layerer.
func (q *qwenLayered) DefaultLayers() int { return q.layers }

func (q *qwenLayered) CheckReferences(n int) error {
	switch {
	case n == 0:
		return errors.New("this model splits an image into layers, and needs one (as in gomflux edit --image FILE)")
	case n > 1:
		return fmt.Errorf("%d images: this model splits one into layers", n)
	}
	return nil
}

func (q *qwenLayered) CheckReference(size image.Point) error {
	if fit := qwenSize(size, q.area); min(fit.X, fit.Y) < 32 {
		return fmt.Errorf("has %dx%d pixels: the long side is %d times the short side, which is too much for this model "+
			"(crop it)", size.X, size.Y, max(size.X, size.Y)/min(size.X, size.Y))
	}
	return nil
}

// ReferenceSize returns the size of a run without a size: see Layerer.
func (q *qwenLayered) ReferenceSize(size image.Point, _ int) image.Point {
	return qwenSize(size, q.area)
}

func (q *qwenLayered) EditSize(sizes []image.Point, _ int) image.Point {
	return qwenSize(sizes[0], q.area)
}

// Sigmas returns the same numbers as most pipelines, rounded as diffusers' pipeline does.
func (q *qwenLayered) Sigmas(steps int) []float32 {
	sigmas := make([]float32, steps)
	for i := range sigmas {
		sigmas[i] = float32(1 + float64(i)*(-1/float64(steps)))
	}
	return sigmas
}

// Mu grows with the side of the image.
func (q *qwenLayered) Mu(_ scheduler.DynamicShift, tokens, _ int) float64 {
	return math.Sqrt(float64(tokens) / 256)
}

// Guide does not rescale the prediction, as cfg_normalize=False in diffusers.
func (q *qwenLayered) Guide(positive, negative *mlx.Array, g Guidance) *mlx.Array {
	return q.defaultMethods.Guide(positive, negative, g)
}

func (q *qwenLayered) Predictor(c Conditioning, h, w int, compile Compiler) (Predictor, error) {
	if len(c.References) != 1 {
		return nil, errs.Requestf("%d reference images: expected 1", len(c.References))
	}
	s, err := q.transformer.Layers(h/c.Images, w, c.Text[0].Dim(0), c.Images)
	if err != nil {
		return nil, errs.Request(err)
	}
	return q.predictor(c, s, transformer.Pack(c.References[0].ExpandDims(0)), compile), nil
}

// checkLayered refuses a transformer of another pipeline class.
func checkLayered(l *Configs, c *transformer.QwenImageConfig, layered bool) {
	switch {
	case l.Failed() || c.UseLayer3DRope == layered && c.UseAdditionalTCond == layered:
	case layered:
		l.CheckTransformer(errors.New("use_layer3d_rope and use_additional_t_cond: expected true for QwenImageLayeredPipeline"))
	default:
		l.CheckTransformer(errors.New("use_layer3d_rope or use_additional_t_cond true: this is a transformer of " +
			"QwenImageLayeredPipeline (model_index.json names another class)"))
	}
}

// Caption is the English prompt of Qwen-Image-Layered's makers for a language model that describes the image
// after it, from QwenImageLayeredPipeline (image_caption_prompt_en) of diffusers, under the Apache License 2.0.
const Caption = `# Image Annotator
You are a professional
image annotator. Please write an image caption based on the input image:
1. Write the caption using natural,
descriptive language without structured formats or rich text.
2. Enrich caption details by including: 
 - Object
attributes, such as quantity, color, shape, size, material, state, position, actions, and so on
 - Vision Relations
between objects, such as spatial relations, functional relations, possessive relations, attachment relations, action
relations, comparative relations, causal relations, and so on
 - Environmental details, such as weather, lighting,
colors, textures, atmosphere, and so on
 - Identify the text clearly visible in the image, without translation or
explanation, and highlight it in the caption with quotation marks
3. Maintain authenticity and accuracy:
 - Avoid
generalizations
 - Describe all visible information in the image, while do not add information not explicitly shown in
the image
`
