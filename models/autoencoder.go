package models

import (
	"errors"
	"image"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/tuning"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/vae"
)

// An Autoencoder is the vae of a model folder, which maps images to latents and back. Its methods
// run on the MLX thread.
type Autoencoder struct {
	vae    vae.Autoencoder
	device mlx.Device
	dtype  mlx.Dtype
	tuned  tuning.Settings
	points hooks.Points

	projection *Projection
	previewer  *Autoencoder // decodes previews; nil: they are projections
	component  component.Component
	loader     *component.Loader // of its files
	budget     int64             // bytes of temporaries, 0 for as many as the free memory allows

	running int // number of runs, of which one may be in a callback of another
	closed  bool
}

// ErrClosed is the error of using a model or an autoencoder after it was closed.
var ErrClosed = errors.New("the model is closed")

// Close frees the autoencoder, as [Pipeline.Close] does a whole pipeline.
func (a *Autoencoder) Close() { mlx.Finish(a.close) }

func (a *Autoencoder) close() {
	if a.running > 0 {
		mlx.Throw(errors.New("the model is in use (a callback of a run cannot close it)"))
	}
	a.closed = true
	mlx.Drain() // a GPU may still use arrays
	if a.loader != nil {
		a.loader.Unload(a.component)
	}
	if a.previewer != nil {
		a.previewer.close()
	}
}

// setVAE sets a declared vae.
func (a *Autoencoder) setVAE(v vae.Autoencoder, c component.Component, l *component.Loader) {
	a.vae, a.component, a.loader, a.projection = v, c, l, (*Projection)(c.Projection)
}

// Device returns the device that it runs on.
func (a *Autoencoder) Device() mlx.Device { return a.device }

// Dtype returns the dtype that it computes in.
func (a *Autoencoder) Dtype() mlx.Dtype { return a.dtype }

// Tuned returns the tuned settings, apart from the dtype, in words that [tuning.Parse] reads, "" for
// the defaults.
func (a *Autoencoder) Tuned() string {
	s := a.tuned
	s.Dtype = ""
	return s.String()
}

// ScaleFactor returns the size of an image divided by the size of its latents.
func (a *Autoencoder) ScaleFactor() int { return a.vae.ScaleFactor() }

// DecodeMemory estimates the memory of Decode for an image, in bytes, with the memory that is free
// now. Encode takes less.
func (a *Autoencoder) DecodeMemory(height, width int) int64 {
	return a.setBudget(height, width, mlx.FreeMemory(a.device), a.vae.DecodeMemory)
}

// A memoryFunc estimates the memory in which an autoencoder encodes or decodes an image, in bytes.
type memoryFunc func(height, width int, d mlx.Device, dtype mlx.Dtype) int64

// setBudget bounds the memory in which the autoencoder encodes or decodes an image to half of the
// free memory, or to as little as it can, and returns the estimate. If free is 0, it is unknown.
func (a *Autoencoder) setBudget(height, width int, free int64, memory memoryFunc) int64 {
	a.vae.SetBudget(a.budget)
	size := a.vae.Unscaled(height/a.ScaleFactor(), width/a.ScaleFactor())
	switch {
	case a.device != mlx.CPU && a.dtype == mlx.Float32:
		// without it MLX asks CUDA for more memory than there is to convolve 1024x1024 at once
		a.vae.SetBudget(1 << 30)
	case a.device.Backend() == mlx.BackendMetal && a.budget == 0 &&
		component.DecodeFLOPs(a.component.Model, size[1], size[2]) > 6*mlx.MetalKernelFLOPs:
		// in strips, since a convolution of the whole image would take too long for one kernel; those of the
		// published autoencoders have at most a sixth of all operations
		a.vae.SetBudget(1 << 40)
	}
	const least = 16 << 20
	need := memory(height, width, a.device, a.dtype)
	for budget := free / 2; budget > least && need > free/2; budget /= 2 {
		a.vae.SetBudget(budget)
		need = memory(height, width, a.device, a.dtype)
	}
	return need
}

// suspendHook removes the hook until resume is called. What a callback of a run asks for is not
// part of that run.
func (a *Autoencoder) suspendHook() (resume func()) {
	points := a.points
	a.points = hooks.Points{Step: -1}
	return func() { a.points = points }
}

// Encode returns the latents of an image, whose sides must be multiples of ScaleFactor: the mean of
// the encoder's prediction, scaled for the diffusion model.
func (a *Autoencoder) Encode(img image.Image) (Latents, error) {
	if a.closed {
		return Latents{}, ErrClosed
	}
	size, scale := img.Bounds().Size(), a.ScaleFactor()
	if size.X < 1 || size.Y < 1 || size.X%scale != 0 || size.Y%scale != 0 {
		return Latents{}, errs.Requestf("image of %dx%d: its sides must be multiples of %d", size.X, size.Y, scale)
	}
	if err := mlx.Use(a.device); err != nil {
		return Latents{}, err
	}
	defer a.suspendHook()()
	defer limitMemory(a.device, autoencoderLookahead).restore()
	latents := a.encodeImage(a.input(img), nil, "latents.image")
	if !latents.AllFinite() {
		return Latents{}, a.notFinite("latents")
	}
	return latentsOf(latents), nil
}

// encodeImage is Encode with an array [C, h, w], float32, as its result, which passes the hook
// under a name. The image, which may come from input, is grey where a mask of its size is white, if
// there is one.
func (a *Autoencoder) encodeImage(img image.Image, mask *image.Gray, name string) *mlx.Array {
	latents := a.encodeOnce(img, mask, name)
	if a.mayOverflow() && !latents.AllFinite() {
		a.inFloat32(func() { latents = a.encodeOnce(img, mask, name) })
	}
	return latents
}

func (a *Autoencoder) encodeOnce(img image.Image, mask *image.Gray, name string) *mlx.Array {
	return mlx.Scope(func() *mlx.Array {
		size := img.Bounds().Size()
		a.setBudget(size.Y, size.X, mlx.FreeMemory(a.device), a.vae.EncodeMemory)
		x := a.points.Value("image.in", a.pixels(img))
		x = x.AsType(mlx.Float32).Over(255).Times(2).Plus(-1)
		if mask != nil {
			kept := mlx.FromUint8(mask.Pix, size.Y, size.X, 1).AsType(mlx.Float32).Over(-255).Plus(1)
			x = x.Mul(kept)
		}
		x = a.points.Value("vae.encode.in", x.Transpose(2, 0, 1).ExpandDims(0).AsType(a.dtype))
		z := a.points.Value("vae.encode.out", a.vae.Encode(x))
		z = a.points.Value(name, a.vae.Scale(z))
		return z.AsType(mlx.Float32).Squeeze(0)
	})
}

// HasAlpha reports whether its images have an alpha channel.
func (a *Autoencoder) HasAlpha() bool { return a.vae.ImageChannels() == 4 }

// input returns an image as the autoencoder takes it: an *image.NRGBA if the autoencoder has an alpha
// channel and the image has transparent pixels, and otherwise an opaque *image.RGBA.
func (a *Autoencoder) input(img image.Image) image.Image {
	if a.HasAlpha() {
		if m := picture.Transparent(img); m != nil {
			return m
		}
	}
	return picture.Opaque(img)
}

// resized is input in another size.
func (a *Autoencoder) resized(img image.Image, width, height int) image.Image {
	switch m := a.input(img).(type) {
	case *image.NRGBA:
		return picture.ResizeTransparent(m, width, height)
	case *image.RGBA:
		return picture.Resize(m, width, height)
	}
	panic("models: input of another type")
}

// pixels returns the pixels of an image from input, [h, w, channels], uint8.
func (a *Autoencoder) pixels(img image.Image) *mlx.Array {
	size := img.Bounds().Size()
	if !a.HasAlpha() {
		return mlx.FromUint8(pixels.RGB(img.(*image.RGBA)), size.Y, size.X, 3)
	}
	m, ok := img.(*image.NRGBA)
	if !ok {
		m = (*image.NRGBA)(img.(*image.RGBA)) // the same bytes, since it is opaque
	}
	return mlx.FromUint8(pixels.RGBA(m), size.Y, size.X, 4)
}

// Decode returns the image of latents, with transparent pixels blended with white. Unscaled latents are in the
// decoder's own scale, as diffusers' vae.decode takes them.
func (a *Autoencoder) Decode(l Latents, unscaled bool) (*image.RGBA, error) {
	img, err := a.DecodeTransparent(l, unscaled)
	return a.opaque(img), err
}

// opaque returns a decoded image, or nil, with transparent pixels blended with white.
func (a *Autoencoder) opaque(img *image.NRGBA) *image.RGBA {
	if img == nil || !a.HasAlpha() || img.Opaque() {
		return (*image.RGBA)(img) // the same bytes
	}
	return picture.Opaque(img)
}

// DecodeTransparent is Decode with the image's transparency.
func (a *Autoencoder) DecodeTransparent(l Latents, unscaled bool) (*image.NRGBA, error) {
	if a.closed {
		return nil, ErrClosed
	}
	shape := l.imageShape()
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
	defer a.suspendHook()()
	defer limitMemory(a.device, autoencoderLookahead).restore()
	unscale := a.vae.Unscale
	if unscaled {
		unscale = func(z *mlx.Array) *mlx.Array { return z }
	}
	return a.decodeWith(unscale, mlx.FromFloat32(l.Data, shape...))
}

// decodeWith decodes latents [C, h, w], which unscale maps to the input of the decoder.
func (a *Autoencoder) decodeWith(unscale func(*mlx.Array) *mlx.Array, latents *mlx.Array) (*image.NRGBA, error) {
	images, err := a.decode(func() *mlx.Array { return unscale(latents.AsType(a.dtype)).ExpandDims(0) })
	if err != nil {
		return nil, err
	}
	return images[0], nil
}

// mayOverflow reports whether values that are not finite may be finite in float32. A hook must see
// a run once only, so with a hook they are an error.
func (a *Autoencoder) mayOverflow() bool {
	return nn.WideDtype(a.dtype) != a.dtype && !a.points.Active()
}

// inFloat32 calls f while the autoencoder computes in float32.
func (a *Autoencoder) inFloat32(f func()) {
	dtype := a.dtype
	a.dtype = mlx.Float32
	defer func() { a.dtype = dtype }()
	f()
}

// decode returns the images for the decoder's input [B, C, h, w] in the autoencoder's dtype. Values
// that are not finite are an error, because they would become black or white pixels. If they are
// beyond the range of float16, the images are decoded again in float32.
func (a *Autoencoder) decode(in func() *mlx.Array) ([]*image.NRGBA, error) {
	images := a.decodeOnce(in)
	if images == nil && a.mayOverflow() {
		a.inFloat32(func() { images = a.decodeOnce(in) })
	}
	if images == nil {
		return nil, a.notFinite("pixels")
	}
	return images, nil
}

// decodeOnce returns nil for values that are not finite. A hook sees the images one below the other.
func (a *Autoencoder) decodeOnce(in func() *mlx.Array) (images []*image.NRGBA) {
	mlx.WithScope(func() {
		z := a.points.Value("vae.decode.in", in())
		unit := a.vae.Unscaled(1, 1) // of the decoder's input for one position of latents
		height, width := z.Dim(2)*a.ScaleFactor()/unit[1], z.Dim(3)*a.ScaleFactor()/unit[2]
		a.setBudget(height, width, mlx.FreeMemory(a.device), a.vae.DecodeMemory)
		x := a.points.Value("vae.decode.out", a.vae.Decode(z))
		levels := mlx.Scope(func() *mlx.Array { // which leaves no handles, so that each array replaces the one before
			y := x.AsType(mlx.Float32).Over(2).Plus(0.5).Clip(0, 1).Times(255).Round()
			return y.Transpose(0, 2, 3, 1).Reshape(-1, y.Dim(3), y.Dim(1)).AsType(mlx.Uint8)
		})
		mlx.AsyncEval(x, levels) // a GPU need not wait for the check
		if !x.AllFinite() {
			return
		}
		all := imageOf(a.points.Value("image", levels))
		for i := range z.Dim(0) {
			img := all.SubImage(image.Rect(0, i*height, width, (i+1)*height)).(*image.NRGBA)
			images = append(images, &image.NRGBA{
				Pix: img.Pix[:height*img.Stride], Stride: img.Stride, Rect: image.Rect(0, 0, width, height),
			})
		}
	})
	return images
}

// imageOf returns pixels [h, w, 4], uint8, or [h, w, 3] for an opaque image, as an image.
func imageOf(pixels *mlx.Array) *image.NRGBA {
	h, w := pixels.Dim(0), pixels.Dim(1)
	return &image.NRGBA{Pix: rgbaOf(pixels).Uint8s(), Stride: 4 * w, Rect: image.Rect(0, 0, w, h)}
}

// rgbaOf adds opaque alpha to pixels of 8 bits without it.
func rgbaOf(pixels *mlx.Array) *mlx.Array {
	return pixels.Pad([]int{0, 0, 0}, []int{0, 0, 4 - pixels.Dim(2)}, 255)
}

// notFinite returns the error for results of the autoencoder that are not finite.
func (a *Autoencoder) notFinite(what string) error {
	e := &NotFiniteError{What: what, Dtype: a.dtype}
	if err := e.findWeights(a.loader, a.component); err != nil {
		return err
	}
	return e
}
