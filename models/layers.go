package models

import (
	"image"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// DefaultLayers returns the default number of layers of a model that splits an image into layers, 0 for others.
func (p *Pipeline) DefaultLayers() int {
	if l, ok := p.family.(family.Layerer); ok {
		return l.DefaultLayers()
	}
	return 0
}

// checkLayers refuses layers of a model that makes one image, and for the others what they cannot do.
func (p *Pipeline) checkLayers(r *Request) error {
	switch {
	case p.DefaultLayers() == 0 && r.Layers != 0:
		return errs.Requestf("layers %d: %s generates one image (%s splits an image into layers)", r.Layers, p.Class,
			family.Splitters())
	case p.DefaultLayers() == 0:
		return nil
	case r.Layers < 0 || r.Layers > family.MaxLayers:
		return errs.Requestf("layers %d: must be 1 to %d (the model's default is %d)", r.Layers, family.MaxLayers, p.DefaultLayers())
	case r.Inpaint != nil:
		return errs.Requestf("this model splits an image into layers, and does not inpaint it (leave out the mask)")
	case r.Image != nil:
		return errs.Requestf("this model splits an image into layers, and does not start from it (pass it as the reference image)")
	}
	return nil
}

// images returns the number of images in the run's latents, one below the other: a model that makes layers
// generates the whole image too.
func (r *Run) images() int {
	if r.DefaultLayers() == 0 {
		return 1
	}
	return r.Layers + 1
}

// latentsSize returns the height and width of the run's latents.
func (r *Run) latentsSize() (h, w int) {
	h, w = r.latentSize(r.Height, r.Width)
	return r.images() * h, w
}

// latentTokens returns the number of tokens of the run's latents in the transformer's sequence.
func (r *Run) latentTokens() int { return r.images() * r.Pipeline.tokens(r.Height, r.Width) }

// torchShape returns the shape in which diffusers draws the noise of latents [C, h, w].
func (r *Run) torchShape(shape []int) []int {
	if r.images() == 1 {
		return shape
	}
	return []int{r.images(), shape[0], shape[1] / r.images(), shape[2]}
}

// fromTorch returns an array of torchShape in a shape [C, h, w].
func (r *Run) fromTorch(x *mlx.Array, shape []int) *mlx.Array {
	if r.images() == 1 {
		return x
	}
	return x.Transpose(1, 0, 2, 3).Reshape(shape...)
}

// layerGrid returns latents [B, C, h, w] as a preview shows them: layers next to each other in a grid as
// wide as it is high, or one column wider, the lowest at its start. The whole image is left out.
func (r *Run) layerGrid(x *mlx.Array) *mlx.Array {
	n := r.Layers
	if r.images() == 1 {
		return x
	}
	columns := int(math.Ceil(math.Sqrt(float64(n))))
	rows := (n + columns - 1) / columns
	b, c, h, w := x.Dim(0), x.Dim(1), x.Dim(2)/(n+1), x.Dim(3)
	tiles := mlx.Concat(2, x.Slice(2, h, x.Dim(2)), mlx.Zeros(x.Dtype(), b, c, (rows*columns-n)*h, w))
	return tiles.Reshape(b, c, rows, columns, h, w).Transpose(0, 1, 2, 4, 3, 5).Reshape(b, c, rows*h, columns*w)
}

// decodeLayers decodes the layers in latents [C, h, w]. A hook sees them in one batch, as in diffusers.
func (r *Run) decodeLayers(latents *mlx.Array) (layers []*image.NRGBA, err error) {
	n, c, w := r.images(), latents.Dim(0), latents.Dim(2)
	x := latents.Reshape(c, n, -1, w).Transpose(1, 0, 2, 3).Slice(0, 1, n)
	if r.points.Active() {
		return r.decode(func() *mlx.Array { return r.vae.Unscale(x.AsType(r.dtype)) })
	}
	for i := range n - 1 {
		layer, err := r.decodeWith(r.vae.Unscale, x.Slice(0, i, i+1).Squeeze(0))
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return layers, nil
}

// shown returns what the run's decoded images show, the layers one over the other, and the same with
// transparent pixels, nil if all is opaque.
func (r *Run) shown(decoded []*image.NRGBA) (opaque *image.RGBA, transparent *image.NRGBA) {
	img := decoded[0]
	if len(decoded) > 1 {
		img = picture.Compose(decoded...)
	}
	if r.keepsTransparency() && !img.Opaque() {
		transparent = img
	}
	return r.paste(r.opaque(img)), transparent
}
