package family

import (
	"fmt"
	"image"
	"slices"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// visionInputs makes the inputs of a text encoder's vision encoder from reference images.
type visionInputs struct {
	config    textenc.ImageConfig            // of the text encoder
	encoder   component.Component            // the vision encoder
	blind     error                          // for edits, if the text encoder has no vision encoder
	processor *textenc.Qwen2VLImageProcessor // nil if nothing needs it
	points    *hooks.Points
	copied    func(image.Point) image.Point // size of the copy of an image that the text encoder sees
	passed    []textenc.VisionInput         // inputs for the prompt, after the hook
}

// open reads the image processor, unless the folder has no processor or no text encoder, or that has no
// vision encoder.
func (v *visionInputs) open(l *Configs) {
	if l.Failed() || v.blind != nil || l.Absent["processor"] || l.Absent["text_encoder"] {
		return
	}
	if v.processor, l.err = textenc.LoadQwen2VLImageProcessor(l.FS, "processor"); l.err == nil {
		l.err = v.processor.Fits(v.config)
	}
}

// encoding returns the way of a prompt through a text encoder that sees the reference images. The
// template w has an image token for each of them, from some token on.
func (v *visionInputs) encoding(references []image.Image, w template, from int,
	encode func(ids []int32, images []textenc.VisionInput) *mlx.Array,
) PromptEncoding {
	return PromptEncoding{
		Tokenizer: "tokenizer", Encoder: "text_encoder", IDs: "input_ids", Embeds: "embeds", Shape: []int{-1, -1},
		SeesReferences: true, NeverCut: true,
		Tokenize: func(t *tokenizer.Tokenizer, prompt string, _ int) (Tokens, error) {
			tokens, err := w.whole(t, prompt)
			if err == nil {
				tokens.IDs, err = v.expand(tokens.IDs, references)
			}
			return tokens, err
		},
		Images: func(ids []int32) ([]int32, error) {
			images := slices.Repeat([]int32{textenc.ImageToken(v.config)}, len(references))
			return v.expand(slices.Insert(slices.Clone(ids), from, images...), references)
		},
		Encode: func(ids []int32) *mlx.Array { return encode(ids, v.of(references)) },
	}
}

// size returns the size in which the vision encoder sees an image.
func (v *visionInputs) size(size image.Point) (image.Point, error) {
	return v.processor.Resized(v.copied(size))
}

// grids returns inputs that have only the sizes.
func (v *visionInputs) grids(references []image.Image) (all []textenc.VisionInput, err error) {
	for _, img := range references {
		size, err := v.size(img.Bounds().Size())
		if err != nil {
			return nil, err
		}
		all = append(all, textenc.VisionInput{Height: size.Y / v.processor.PatchSize, Width: size.X / v.processor.PatchSize})
	}
	return all, nil
}

// expand repeats the image tokens in ids as often as the text encoder needs for the images.
func (v *visionInputs) expand(ids []int32, references []image.Image) ([]int32, error) {
	all, err := v.grids(references)
	if err != nil {
		return nil, err
	}
	return v.config.ExpandImages(ids, all)
}

// Vision counts the tokens of all images that the vision encoder can see together, as if they were one
// image.
func (v *visionInputs) Vision(references []image.Image) (encoder component.Component, tokens int) {
	for _, img := range references {
		if all, err := v.grids([]image.Image{img}); err == nil {
			tokens += all[0].Height * all[0].Width
		}
	}
	return v.encoder, tokens
}

// of returns the inputs of the vision encoder. For the negative prompt they are those of the
// prompt, which a hook may have replaced.
func (v *visionInputs) of(references []image.Image) []textenc.VisionInput {
	switch {
	case len(references) == 0:
		return nil
	case v.points.Active() && v.points.Negative && v.passed != nil:
		return v.passed
	}
	var all []textenc.VisionInput
	for _, img := range references {
		size := v.copied(img.Bounds().Size())
		condition := OpaqueCopy(img, size)
		if v.points.Active() {
			x := v.points.Value("image.condition", mlx.FromUint8(pixels.RGB(condition), size.Y, size.X, 3))
			condition = pixels.FromRGB(x.Uint8s(), size.Y, size.X)
		}
		fit, err := v.processor.Resized(size)
		if err != nil {
			mlx.Throw(errs.Request(err))
		}
		in, err := v.processor.Process(picture.ResizeBicubic(condition, fit.X, fit.Y))
		if err != nil {
			mlx.Throw(err)
		}
		all = append(all, in)
	}
	if v.points.Active() {
		if err := v.pass(all); err != nil {
			mlx.Throw(errs.Request(err))
		}
		v.passed = all
	}
	return all
}

// OpaqueCopy returns an image in another size, with transparent pixels blended with white after
// that.
func OpaqueCopy(img image.Image, size image.Point) *image.RGBA {
	if m, ok := img.(*image.NRGBA); ok {
		return picture.Opaque(picture.ResizeTransparent(m, size.X, size.Y))
	}
	return picture.Resize(picture.Opaque(img), size.X, size.Y)
}

// pass passes the inputs of the vision encoder through the hook.
func (v *visionInputs) pass(all []textenc.VisionInput) error {
	var values []float32
	var grids []int32
	for _, in := range all {
		values = append(values, in.Pixels...)
		grids = append(grids, 1, int32(in.Height), int32(in.Width))
	}
	row := len(all[0].Pixels) / (all[0].Height * all[0].Width)
	values = v.points.Value("vision.pixel_values", mlx.FromFloat32(values, len(values)/row, row)).Floats()
	grids = v.points.Value("vision.grid_thw", mlx.FromInt32(grids, len(all), 3)).Int32s()
	for i := range all {
		grid, merge := grids[3*i:3*i+3], int32(v.processor.MergeSize)
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
