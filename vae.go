package gomflux

import (
	"context"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A VAE is a model's autoencoder: pictures to latents and back. Like a [Model] it
// may be used from several goroutines. The garbage collector frees it.
type VAE struct {
	autoencoder *models.Autoencoder
}

// OpenVAE loads the autoencoder of a model, which may have nothing else, or a folder
// that is an autoencoder's own. The model is named as for [Find].
func OpenVAE(ctx context.Context, model string, o *OpenOptions) (*VAE, error) {
	source, err := FindWith(model, o.baseModel())
	if err != nil {
		return nil, err
	}
	return source.OpenVAE(ctx, o)
}

// OpenVAE loads the autoencoder of a model that was found.
func (s *Source) OpenVAE(ctx context.Context, o *OpenOptions) (*VAE, error) {
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	v := &VAE{}
	err = mlx.Do(ctx, func() (err error) {
		v.autoencoder, err = models.LoadAutoencoder(s.found.FS, load)
		return err
	})
	if err != nil {
		return nil, public(err)
	}
	return v, nil
}

// Device is where the model runs: the CPU, Metal or CUDA.
func (v *VAE) Device() Device { return Device(v.autoencoder.Device().String()) }

// Dtype is what the model computes in.
func (v *VAE) Dtype() Dtype { return Dtype(v.autoencoder.Dtype().String()) }

// ScaleFactor is the size of a picture over the size of its latents.
func (v *VAE) ScaleFactor() int { return v.autoencoder.ScaleFactor() }

// DecodeMemory estimates what Decode takes for a picture, in bytes, with as much
// memory as is free now: large pictures are decoded in strips where it is short.
// Encode takes less.
func (v *VAE) DecodeMemory(height, width int) (n int64) {
	mlx.Do(context.Background(), func() error { // which does not fail
		n = v.autoencoder.DecodeMemory(height, width)
		return nil
	})
	return n
}

// Encode takes a picture to latents: the mean of what the encoder predicts. Its
// sides must be multiples of ScaleFactor.
func (v *VAE) Encode(ctx context.Context, img image.Image) (l Latents, err error) {
	err = mlx.Do(ctx, func() error {
		encoded, err := v.autoencoder.Encode(img)
		l = Latents(encoded)
		return err
	})
	return l, public(err)
}

// Decode takes latents to a picture.
func (v *VAE) Decode(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	err = mlx.Do(ctx, func() (err error) {
		img, err = v.autoencoder.Decode(models.Latents(l))
		return err
	})
	return img, public(err)
}

// DecodeUnscaled takes latents to a picture as diffusers' vae.decode does: without
// the model's scaling_factor and shift_factor, which those of Generate and Encode
// have.
func (v *VAE) DecodeUnscaled(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	err = mlx.Do(ctx, func() (err error) {
		img, err = v.autoencoder.DecodeUnscaled(models.Latents(l))
		return err
	})
	return img, public(err)
}

// Preview shows latents as a picture of their own size, without the decoder: colours
// are a linear function of the latents, which is found at the first call by encoding
// a colour chart. Best for [Step].Denoised.
func (v *VAE) Preview(ctx context.Context, l Latents) (*image.RGBA, error) {
	var p *models.Projection
	err := mlx.Do(ctx, func() (err error) {
		p, err = v.autoencoder.Projection()
		return err
	})
	if err != nil {
		return nil, public(err)
	}
	return p.Picture(models.Latents(l))
}
