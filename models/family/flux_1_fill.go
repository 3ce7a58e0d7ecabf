package family

import (
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/transformer"
)

// flux1Fill is diffusers' FluxFillPipeline: FLUX.1-dev trained to fill the masked part of an image.
// Each token has the channels of the latents, of the masked image's latents, and of the mask.
type flux1Fill struct {
	flux1
	scale int // size of the image divided by the size of its latents
}

var fillDefaults = defaults(50, 30)

func configureFlux1Fill(l *Configs) (Pipeline, Networks) {
	f := &flux1Fill{}
	networks := f.declare(l)
	autoencoder := l.autoencoder()
	if l.Failed() {
		return nil, nil
	}
	latents := 4 * autoencoder.LatentChannels() // of a token, which is a patch of 2×2
	f.scale, f.patches = autoencoder.ScaleFactor(), patches{latents}
	mask := 4 * f.scale * f.scale
	if c := f.transformer.Config; !l.Absent[component.Transformers] &&
		(c.InChannels != 2*latents+mask || c.Predicted() != latents) {
		l.CheckTransformer(fmt.Errorf("in_channels %d and out_channels %d: expected %d (%d for the latents, %[4]d for the "+
			"masked image's and %d for the mask, by the vae's latent_channels and block_out_channels) and %[4]d",
			c.InChannels, c.Predicted(), 2*latents+mask, latents, mask))
	}
	return f, networks
}

func (f *flux1Fill) Defaults() Defaults { return fillDefaults }

// FillMask makes the pixels of each position of the latents its channels, row by row, and packs
// the result like latents: [1, H/2s·W/2s, 4s²] for the autoencoder's scale s.
func (f *flux1Fill) FillMask(mask *mlx.Array) *mlx.Array {
	s := f.scale
	h, w := mask.Dim(2)/s, mask.Dim(3)/s
	cells := mask.Reshape(1, h, s, w, s).Transpose(0, 2, 4, 1, 3)
	return transformer.Pack(cells.Reshape(1, s*s, h, w))
}

// fillChannels returns the channels [1, n, d] of tokens after those of the latents, nil
// without a mask to fill.
func fillChannels(f *Fill) *mlx.Array {
	if f == nil {
		return nil
	}
	return mlx.Concat(2, transformer.Pack(f.Latents.ExpandDims(0)), f.Mask)
}
