package models

import (
	"crypto/sha256"
	"image"
	"slices"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
)

// withInpaint returns a request with the image and the mask that the model sees of
// Request.Inpaint. A model that edits images gets the whole image as its first reference image too.
func (p *Pipeline) withInpaint(r Request) Request {
	if r.Inpaint == nil || r.mask != nil || p.checkSize(r) != nil {
		return r
	}
	r.Image, r.mask = r.Inpaint.At(r.Width, r.Height)
	_, edits := p.family.(family.Editor)
	_, replaces := p.family.(family.ReferenceReplacer)
	if edits && !(replaces && len(r.References) > 0) {
		r.References, r.showsInpainted = append([]image.Image{r.Inpaint.Image}, r.References...), true
	}
	return r
}

// InpaintSize completes the size of a request with a mask, by the size of the image with its border: for
// models that edit images the size of an edit, otherwise the image's own size as for SizeFor, and for a
// crop, which is scaled anyway, the model's default size.
func (p *Pipeline) InpaintSize(size image.Point, crop bool, height, width int) (int, int) {
	_, edits := p.family.(family.Editor)
	switch {
	case crop && height == 0 && width == 0:
		return p.Defaults.Height, p.Defaults.Width
	case edits:
		size = p.EditSize([]image.Image{&image.Alpha{Rect: image.Rectangle{Max: size}}}) // it has no pixels
	}
	return p.SizeFor(size, height, width)
}

// Fills reports whether the model generates nothing but the masked part of an image.
func (p *Pipeline) Fills() bool {
	_, ok := p.family.(family.Filler)
	return ok
}

// checkInpaint checks the mask against what the model needs.
func (p *Pipeline) checkInpaint(r *Request) error {
	if p.Fills() && r.Inpaint == nil {
		return errs.Requestf("this model fills the masked part of an image and needs both an image and a mask (as in gomflux inpaint)")
	}
	if r.Inpaint != nil {
		if err := r.Inpaint.Check(r.Width, r.Height); err != nil {
			return errs.Request(err)
		}
		h, w := p.latentSize(r.Height, r.Width)
		if !p.Fills() && !slices.ContainsFunc(p.family.MaskLatents(r.mask, h, w), func(v float32) bool { return v > 0 }) {
			return errs.Requestf("the masked part is too thin at %dx%d pixels, since the model changes blocks of %d "+
				"(widen it, or crop to it)", r.Width, r.Height, p.ScaleFactor())
		}
	}
	return nil
}

// blends reports whether the latents outside the mask are replaced by those of the image after each
// step.
func (r *Run) blends() bool { return r.mask != nil && !r.Fills() }

// An inpainting is what a run needs to keep the latents outside the mask.
type inpainting struct {
	mask  *mlx.Array // [1, 1, h, w], from 0, where the image is kept, to 1
	image *mlx.Array // latents [1, C, h, w] of the image
	noise *mlx.Array // initial noise [B, C, h, w]
}

// newInpainting returns what a run in latents of a shape [C, h, w] needs to keep those outside the
// mask, or nil if it does not blend.
func (r *Run) newInpainting(seeds []uint64, shape []int) (*inpainting, error) {
	if !r.blends() || !r.plan.evaluates {
		return nil, nil
	}
	noise, err := r.initialLatents(seeds, shape)
	if err != nil {
		return nil, err
	}
	h, w := shape[1], shape[2]
	mask := mlx.FromFloat32(r.family.MaskLatents(r.mask, h, w), 1, 1, h, w)
	if r.isOverridden("latents.mask", -1) {
		if mask, err = override(r.Overrides, "latents.mask", mlx.Float32, 1, 1, h, w); err != nil {
			return nil, err
		}
	}
	in := &inpainting{
		image: r.imageLatents(shape),
		noise: owned(r.points.Value("latents.init", noise)),
		mask:  owned(r.points.Value("latents.mask", mask)),
	}
	r.keep(in.mask, in.noise)
	return in, nil
}

// blend returns latents before evaluation i with those outside the mask replaced by the image's with
// as much noise, as the inpainting pipelines of diffusers do after each step.
func (in *inpainting) blend(r *Run, i int, latents *mlx.Array) *mlx.Array {
	if i == len(r.schedule.Timesteps) {
		return in.over(latents, in.image)
	}
	return in.over(latents, r.sampler.ScaleNoise(i, in.image, in.noise))
}

// over returns x inside the mask and known outside.
func (in *inpainting) over(x, known *mlx.Array) *mlx.Array {
	return in.mask.Times(-1).Plus(1).Mul(known).Add(in.mask.Mul(x))
}

// paste returns a generated image pasted into the image that it was inpainted in.
func (r *Run) paste(img *image.RGBA) *image.RGBA {
	if r.Inpaint == nil {
		return img
	}
	img = r.Inpaint.Paste(img)
	if r.points.Active() && !r.Inpaint.NoPasteBack {
		size := img.Rect.Size()
		mlx.WithScope(func() {
			img = (*image.RGBA)(imageOf(r.points.Value("image.pasted", mlx.FromUint8(pixels.RGB(img), size.Y, size.X, 3))))
		})
	}
	return img
}

// firstInpaintStep returns the first step of inpainting that runs, as diffusers counts: a strength
// of 0 keeps nothing and leaves out no step.
func firstInpaintStep(steps int, imageStrength float64) int {
	n := float64(steps)
	return int(max(0, n-min(n*(1-imageStrength), n)))
}

// fill returns what a pipeline that fills masks sees, or nil for another one.
func (r *Run) fill() (*family.Fill, error) {
	filler, ok := r.family.(family.Filler)
	if !ok {
		return nil, nil
	}
	if r.plan.start && !r.isOverridden("latents.start", -1) { // diffusers encodes the image itself first
		r.imageLatents(r.latentShape(r.latentSize(r.Height, r.Width)))
	}
	size := r.mask.Rect.Size()
	mask := filler.FillMask(mlx.FromUint8(r.mask.Pix, 1, 1, size.Y, size.X).AsType(mlx.Float32).Over(255))
	if r.isOverridden("fill.mask", -1) {
		var err error
		if mask, err = override(r.Overrides, "fill.mask", mlx.Float32, mask.Shape()...); err != nil {
			return nil, err
		}
	}
	latents, err := r.maskedLatents()
	if err != nil {
		return nil, err
	}
	fill := &family.Fill{
		Latents: owned(latents.AsType(r.dtype)), Mask: owned(r.points.Value("fill.mask", mask).AsType(r.dtype)),
	}
	mlx.Eval(fill.Latents, fill.Mask)
	r.keep(fill.Latents, fill.Mask)
	return fill, nil
}

// maskedLatents returns the latents [C, h, w] of the image, which is grey inside the mask, or their
// override.
func (r *Run) maskedLatents() (*mlx.Array, error) {
	const name = "latents.masked"
	if !r.isOverridden(name, -1) {
		img := r.Conversions.convert(r.Autoencoder, r.Image)
		key := inputKey{image: img.hash, size: r.mask.Rect.Size(), mask: sha256.Sum256(r.mask.Pix)}
		return r.encodeInput(key, func() *mlx.Array { return r.encodeImage(img.Image, r.mask, name) }), nil
	}
	x, err := r.latentsOverride(name, -1, r.dtype, r.latentShape(r.latentSize(r.Height, r.Width)))
	if err != nil {
		return nil, err
	}
	return r.points.Value(name, x).Squeeze(0), nil
}
