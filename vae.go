package gomflux

import (
	"cmp"
	"context"
	"image"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// A VAE is a model's autoencoder, which converts images to latents and back. Like a
// [Model] it may be used from several goroutines.
type VAE struct {
	autoencoder *models.Autoencoder
}

// Close frees the memory of the autoencoder. It waits for calls of its other methods.
// Afterwards they return [ErrClosed], as those of the [Model] do if it is the autoencoder of
// one. Closing it again has no effect.
func (v *VAE) Close() error { return closeModel(v.autoencoder) }

// OpenVAE loads the autoencoder of a model, found by its name like [Find]. The other
// components of the model may be missing, and the folder may be the autoencoder's own. The
// caller must close it.
func OpenVAE(ctx context.Context, model string, o *OpenOptions) (*VAE, error) {
	source, err := FindWith(model, cmp.Or(o, &OpenOptions{}).BaseModel)
	if err != nil {
		return nil, err
	}
	return source.OpenVAE(ctx, o)
}

// OpenVAE loads the autoencoder of the model, which the caller must close.
func (s *Source) OpenVAE(ctx context.Context, o *OpenOptions) (*VAE, error) {
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	a, err := onMLX(ctx, func() (*models.Autoencoder, error) { return models.LoadAutoencoder(s.found.FS, load) })
	if err != nil {
		return nil, err
	}
	return &VAE{a}, nil
}

// Device returns the device that the model runs on: CPU, Metal or CUDA.
func (v *VAE) Device() Device { return Device(v.autoencoder.Device().String()) }

// Dtype returns the dtype of the model's computations.
func (v *VAE) Dtype() Dtype { return Dtype(v.autoencoder.Dtype().String()) }

// ScaleFactor returns the size of an image divided by the size of its latents.
func (v *VAE) ScaleFactor() int { return v.autoencoder.ScaleFactor() }

// DecodeMemory estimates the memory in bytes that Decode needs for an image of a size.
// The estimate depends on the memory that is free now, because large images are decoded
// in strips if memory is short. Encode needs less.
func (v *VAE) DecodeMemory(height, width int) int64 {
	n, _ := onMLX(context.Background(), func() (int64, error) { return v.autoencoder.DecodeMemory(height, width), nil }) // never fails
	return n
}

// onMLX calls f on the MLX thread. Errors are those of this package.
func onMLX[T any](ctx context.Context, f func() (T, error)) (result T, err error) {
	err = mlx.Do(ctx, func() (err error) {
		result, err = f()
		return err
	})
	return result, public(err)
}

// Encode encodes an image to latents, the mean of the distribution that the encoder
// predicts. The image's height and width must be multiples of ScaleFactor. Transparent
// pixels are blended with white, unless HasAlpha.
func (v *VAE) Encode(ctx context.Context, img image.Image) (l Latents, err error) {
	encoded, err := onMLX(ctx, func() (models.Latents, error) { return v.autoencoder.Encode(img) })
	return Latents(encoded), err
}

// Decode decodes latents to an opaque image: transparent pixels are blended with white.
func (v *VAE) Decode(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	return onMLX(ctx, func() (*image.RGBA, error) { return v.autoencoder.Decode(models.Latents(l), false) })
}

// HasAlpha reports whether the model's images have an alpha channel.
func (v *VAE) HasAlpha() bool { return v.autoencoder.HasAlpha() }

// DecodeTransparent is Decode, or DecodeUnscaled, with the image's transparency.
func (v *VAE) DecodeTransparent(ctx context.Context, l Latents, unscaled bool) (img *image.NRGBA, err error) {
	return onMLX(ctx, func() (*image.NRGBA, error) { return v.autoencoder.DecodeTransparent(models.Latents(l), unscaled) })
}

// DecodeUnscaled decodes latents like diffusers' vae.decode, without applying the
// model's scaling_factor and shift_factor. The latents of Generate and Encode need
// Decode, which applies them.
func (v *VAE) DecodeUnscaled(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	return onMLX(ctx, func() (*image.RGBA, error) { return v.autoencoder.Decode(models.Latents(l), true) })
}

// Preview converts latents to an image quickly. With [OpenOptions].PreviewDecoder, a tiny
// autoencoder decodes them to an image of the full size. Otherwise the image has the size
// of the latents, and colours are a linear function of them: if it is not published for
// the model, the first call determines it by encoding a colour chart. Previews are best
// of [Step].Denoised.
func (v *VAE) Preview(ctx context.Context, l Latents) (img *image.RGBA, err error) {
	return onMLX(ctx, func() (*image.RGBA, error) { return v.autoencoder.Preview(models.Latents(l)) })
}
