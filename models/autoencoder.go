package models

import (
	"image"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/vae"
)

// An Autoencoder is the vae of a model folder: pictures to latents and back.
// Its methods run on the MLX thread.
type Autoencoder struct {
	vae    vae.Autoencoder
	device mlx.Device
	dtype  mlx.Dtype
	points hooks.Points

	projection *Projection
	declared   component.Component
	loader     *component.Loader // of its files
}

// use makes an autoencoder of what was declared.
func (a *Autoencoder) use(v vae.Autoencoder, c component.Component, l *component.Loader) {
	a.vae, a.declared, a.loader, a.projection = v, c, l, (*Projection)(c.Projection)
}

// Device is where it runs.
func (a *Autoencoder) Device() mlx.Device { return a.device }

// Dtype is what it computes in.
func (a *Autoencoder) Dtype() mlx.Dtype { return a.dtype }

// ScaleFactor is the size of a picture over the size of its latents.
func (a *Autoencoder) ScaleFactor() int { return a.vae.ScaleFactor() }

// DecodeMemory estimates what Decode takes for a picture, in bytes, with as much
// memory as is free now. (Encode takes less.)
func (a *Autoencoder) DecodeMemory(height, width int) int64 {
	return a.budget(height, width, mlx.FreeMemory(a.device), a.vae.DecodeMemory)
}

// bound makes the autoencoder do with half of the memory that is free for a
// picture, or with as little as it can.
func (a *Autoencoder) bound(height, width int, memory func(height, width int, d mlx.Device, dtype mlx.Dtype) int64) {
	a.budget(height, width, mlx.FreeMemory(a.device), memory)
}

// budget makes the autoencoder do with half of so much memory for a picture, or
// with as little as it can, and says what it takes then. 0 is memory that is not
// known.
func (a *Autoencoder) budget(height, width int, free int64, memory func(height, width int, d mlx.Device, dtype mlx.Dtype) int64) int64 {
	a.vae.SetBudget(0)
	if a.device != mlx.CPU && a.dtype == mlx.Float32 {
		// MLX asks CUDA for more than there is to convolve 1024x1024 at once
		a.vae.SetBudget(1 << 30)
	}
	const least = 16 << 20
	need := memory(height, width, a.device, a.dtype)
	for budget := free / 2; budget > least && need > free/2; budget /= 2 {
		a.vae.SetBudget(budget)
		need = memory(height, width, a.device, a.dtype)
	}
	return need
}

// apart suspends the hook of the run that a callback belongs to, until the
// function it returns is called: what a callback asks for is no part of the run.
func (a *Autoencoder) apart() (resume func()) {
	points := a.points
	a.points = hooks.Points{Step: -1}
	return func() { a.points = points }
}

// Encode takes a picture, whose sides must be multiples of ScaleFactor, to its
// latents: the mean of what the encoder predicts, scaled as diffusion models
// want it.
func (a *Autoencoder) Encode(img image.Image) (Latents, error) {
	size, scale := img.Bounds().Size(), a.ScaleFactor()
	if size.X < 1 || size.Y < 1 || size.X%scale != 0 || size.Y%scale != 0 {
		return Latents{}, errs.Requestf("picture of %dx%d: its sides must be multiples of %d", size.X, size.Y, scale)
	}
	if err := mlx.Use(a.device); err != nil {
		return Latents{}, err
	}
	defer a.apart()()
	latents := a.encodePicture(picture.Opaque(img), "latents.image")
	if !latents.AllFinite() {
		return Latents{}, a.notFinite("latents")
	}
	return latentsOf(latents), nil
}

// encodePicture is Encode with an array [C, h, w] in float32 as its result, which
// passes the hook under a name.
func (a *Autoencoder) encodePicture(img *image.RGBA, name string) *mlx.Array {
	return mlx.Scope(func() *mlx.Array {
		size := img.Bounds().Size()
		a.bound(size.Y, size.X, a.vae.EncodeMemory)
		x := a.points.Value("image.in", mlx.FromUint8(pixels.RGB(img), size.Y, size.X, 3))
		x = x.AsType(mlx.Float32).Over(255).Times(2).Plus(-1)
		x = a.points.Value("vae.encode.in", x.Transpose(2, 0, 1).ExpandDims(0).AsType(a.dtype))
		z := a.points.Value("vae.encode.out", a.vae.Encode(x))
		z = a.points.Value(name, a.vae.Scale(z))
		return z.AsType(mlx.Float32).Squeeze(0)
	})
}

// Decode takes latents to a picture.
func (a *Autoencoder) Decode(l Latents) (*image.RGBA, error) {
	return a.decodeLatents(l, a.vae.Unscale)
}

// DecodeUnscaled takes latents as the decoder itself does, diffusers'
// vae.decode, to a picture.
func (a *Autoencoder) DecodeUnscaled(l Latents) (*image.RGBA, error) {
	return a.decodeLatents(l, func(z *mlx.Array) *mlx.Array { return z })
}

// decodeLatents checks latents before it decodes them.
func (a *Autoencoder) decodeLatents(l Latents, unscale func(*mlx.Array) *mlx.Array) (*image.RGBA, error) {
	shape := l.onePicture()
	c := a.vae.LatentChannels()
	if len(shape) != 3 || shape[0] != c || shape[1] < 1 || shape[2] < 1 {
		return nil, errs.Requestf("latents of shape %v: expected [%d, height/%d, width/%[3]d]", l.Shape, c, a.ScaleFactor())
	}
	if len(l.Data) != l.size() {
		return nil, errs.Requestf("%d latents for shape %v, expected %d", len(l.Data), l.Shape, l.size())
	}
	if err := mlx.Use(a.device); err != nil {
		return nil, err
	}
	defer a.apart()()
	return a.decodeWith(unscale, mlx.FromFloat32(l.Data, shape...))
}

// decodeWith takes latents [C, h, w], of which unscale makes what the decoder
// takes, to a picture.
func (a *Autoencoder) decodeWith(unscale func(*mlx.Array) *mlx.Array, latents *mlx.Array) (*image.RGBA, error) {
	return a.decode(func() *mlx.Array { return unscale(latents.AsType(a.dtype)).ExpandDims(0) })
}

// decode takes what the decoder takes, [1, C, h, w], to a picture. Values that
// are not finite make none, because they would become black or white.
func (a *Autoencoder) decode(in func() *mlx.Array) (*image.RGBA, error) {
	var rgb []uint8
	var h, w int
	mlx.Scope(func() *mlx.Array {
		z := a.points.Value("vae.decode.in", in())
		own := a.vae.Unscaled(1, 1)
		a.bound(z.Dim(2)*a.ScaleFactor()/own[1], z.Dim(3)*a.ScaleFactor()/own[2], a.vae.DecodeMemory)
		x := a.points.Value("vae.decode.out", a.vae.Decode(z))
		if !x.AllFinite() {
			return nil
		}
		x = x.AsType(mlx.Float32).Over(2).Plus(0.5).Clip(0, 1).Times(255).Round()
		x = a.points.Value("image", x.Squeeze(0).Transpose(1, 2, 0).AsType(mlx.Uint8))
		h, w = x.Dim(0), x.Dim(1)
		rgb = x.Uint8s()
		return nil
	})
	if rgb == nil {
		return nil, a.notFinite("pixels")
	}
	return pixels.FromRGB(rgb, h, w), nil
}

// notFinite is the error about what the autoencoder made of finite values.
func (a *Autoencoder) notFinite(what string) error {
	e := &NotFiniteError{What: what, Dtype: a.dtype}
	if err := e.look(a.loader, a.declared); err != nil {
		return err
	}
	return e
}
