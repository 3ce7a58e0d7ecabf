package family

import (
	"errors"
	"fmt"
	"image"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
)

// qwenEdit is diffusers' QwenImageEditPipeline, which takes one reference image. With plus set it
// is QwenImageEditPlusPipeline, which takes several. The text encoder sees a copy of each image,
// which is small for QwenImageEditPlusPipeline, and the transformer gets its latents.
type qwenEdit struct {
	qwenImage
	qwenReferences
	plus bool
}

// As qwenImageSystem and qwenImageDrop, with reference images.
const (
	qwenEditSystem = "Describe the key features of the input image (color, shape, size, texture, objects, background), " +
		"then explain how the user's text instruction should alter or modify the image. " +
		"Generate a new image that meets the user's requirements while maintaining consistency with the original input where appropriate."
	qwenEditDrop = 64
)

func configureQwenEdit(l *Configs) (Pipeline, Networks) { return (&qwenEdit{}).configure(l) }

func configureQwenEditPlus(l *Configs) (Pipeline, Networks) {
	return (&qwenEdit{plus: true}).configure(l)
}

// configure reads the configs and declares the networks.
func (q *qwenEdit) configure(l *Configs) (Pipeline, Networks) {
	networks := q.declare(l, true, false)
	own := struct {
		VAEImageSize       int `json:"vae_image_size"`
		ConditionImageSize int `json:"condition_image_size"`
	}{1024 * 1024, 384 * 384}
	l.Index(&own)
	if own.VAEImageSize < 1 || own.ConditionImageSize < 1 || max(own.VAEImageSize, own.ConditionImageSize) > picture.MaxPixels {
		l.CheckIndex(fmt.Errorf("vae_image_size %d and condition_image_size %d: expected numbers of pixels",
			own.VAEImageSize, own.ConditionImageSize))
	}
	if l.Failed() {
		return nil, nil
	}
	q.show(l, &q.textEncoder.Config, component.Qwen25VLVision(q.textEncoder), own.VAEImageSize)
	if q.plus {
		q.copied = func(size image.Point) image.Point { return qwenSize(size, own.ConditionImageSize) }
	}
	return q, networks
}

func (q *qwenEdit) CheckReferences(n int) error {
	switch {
	case n == 0:
		return errors.New("this model edits images and needs at least one (as in gomflux edit; Qwen-Image generates " +
			"images from a prompt alone)")
	case n > 1 && !q.plus:
		return fmt.Errorf("%d images: this model takes one (Qwen-Image-Edit-2509 and later versions take several)", n)
	}
	return nil
}

// ReferenceName returns the word of the template.
func (q *qwenEdit) ReferenceName() string { return "Picture" }

func (q *qwenEdit) PromptEncodings(references []image.Image) []PromptEncoding {
	const placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
	user := placeholder
	if q.plus {
		var b strings.Builder
		for i := range references {
			fmt.Fprintf(&b, "Picture %d: %s", i+1, placeholder)
		}
		user = b.String()
	}
	e := q.encoding(references, chat(user, "").withSystem(qwenEditSystem), qwenEditDrop,
		func(ids []int32, images []textenc.VisionInput) *mlx.Array { return q.states(ids, images, qwenEditDrop) })
	e.PrefixTokens = qwenEditDrop
	return []PromptEncoding{e}
}
