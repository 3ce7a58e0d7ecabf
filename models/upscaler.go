package models

import (
	"image"
	"io/fs"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/upscaler"
)

// An Upscaler enlarges images by a network. Its methods run on the MLX thread.
type Upscaler struct {
	network   upscaler.Network // nil for SeedVR2
	seedvr2   *restorer        // nil for others
	scale     int
	device    mlx.Device
	dtype     mlx.Dtype
	component component.Component
	loader    *component.Loader
	closed    bool
}

// LoadUpscaler reads the network in a folder of [catalog.FindUpscaler]. Of the options it uses Device, Dtype and
// Progress. On a GPU the default dtype is float16, whose rounding is a part of that of 8 bits: bfloat16 has as many
// bits as a pixel. For SeedVR2 it is that of models. It must run on the MLX thread. Callers must close the upscaler.
func LoadUpscaler(fsys fs.FS, o LoadOptions) (*Upscaler, error) {
	var a Autoencoder
	if err := a.chooseDevice(o); err != nil {
		return nil, err
	}
	u := &Upscaler{device: a.device, dtype: a.dtype, loader: &component.Loader{
		Folder: component.Folder{FS: fsys, Points: &a.points, Dtype: mlx.Float32}, ReadAhead: readAhead, Report: reporter(o.Progress),
	}}
	declared, c, err := component.DeclareUpscaler(&u.loader.Folder, component.Upscalers)
	if err != nil {
		return nil, err
	}
	u.component, u.scale = c, declared.Scale()
	ck, err := u.component.Open(fsys)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	complete := false
	defer func() { // also after a panic, by which a job is interrupted
		if !complete {
			u.close()
		}
	}()
	switch n := declared.(type) {
	case upscaler.Network:
		u.network = n
		if o.Dtype == nil && a.device != mlx.CPU {
			u.dtype = mlx.Float16
		}
	case *upscaler.SeedVR2:
		u.loader.Dtype = a.dtype // weights that are stored in float32 would take twice as much
		if u.seedvr2, err = loadSeedVR2(fsys, n, a, u.loader); err != nil {
			return nil, err
		}
	}
	if err := u.loader.Load(u.component, ck); err != nil {
		return nil, err
	}
	complete = true
	return u, nil
}

// Close frees the network.
func (u *Upscaler) Close() { mlx.Finish(u.close) }

func (u *Upscaler) close() {
	u.closed = true
	mlx.Drain()
	u.loader.Unload(u.component)
	if u.seedvr2 != nil {
		u.loader.Unload(u.seedvr2.vae.component)
		if u.seedvr2.Text != nil {
			u.seedvr2.Text.Free()
		}
	}
}

// Class is the network's class.
func (u *Upscaler) Class() string { return u.component.Class.Name }

// Scale is how many times the network enlarges images, SeedVR2 at most.
func (u *Upscaler) Scale() int { return u.scale }

// Device returns the device that it runs on.
func (u *Upscaler) Device() mlx.Device { return u.device }

// Dtype returns the dtype that it computes in.
func (u *Upscaler) Dtype() mlx.Dtype { return u.dtype }

// run returns how to compute an image: within half of the free memory.
func (u *Upscaler) run() upscaler.Run { return upscaler.Run{Budget: mlx.FreeMemory(u.device) / 2} }

// Memory estimates the bytes in which Enlarge enlarges an image, with the memory that is free now.
func (u *Upscaler) Memory(height, width int) int64 {
	n := upscaler.Memory(u.network, height, width, u.run(), u.device, u.dtype)
	if u.network.Channels() == 1 {
		n *= 3 // red, green and blue
	}
	scale := int64(u.Scale())
	return n + weightsSize(u.network) + 4*int64(height)*int64(width)*scale*scale
}

// maxPixels limits the images that Enlarge returns.
const maxPixels = 4 * picture.MaxPixels

// Enlarge enlarges an image by Scale. The transparency is enlarged by the network too, as a gray image if the network
// has no channel for it. opaque reports whether the image, and so the result, is opaque. progress, which may be nil, is
// called with the share that is done.
func (u *Upscaler) Enlarge(img image.Image, progress func(share float64)) (out *image.NRGBA, opaque bool, err error) {
	if u.closed {
		return nil, false, ErrClosed
	}
	size, scale := img.Bounds().Size(), u.Scale()
	if size.X < 1 || size.Y < 1 || int64(size.X)*int64(size.Y)*int64(scale*scale) > maxPixels {
		return nil, false, errs.Requestf("image of %dx%d: enlarged %d times it would have %d million pixels, expected at most %d",
			size.X, size.Y, scale, int64(size.X)*int64(size.Y)*int64(scale*scale)/1e6, maxPixels/1_000_000)
	}
	if err := mlx.Use(u.device); err != nil {
		return nil, false, err
	}
	defer limitMemory(u.device, autoencoderLookahead).restore()
	out = image.NewNRGBA(image.Rect(0, 0, size.X*scale, size.Y*scale))
	levels := picture.Transparent(img)
	if opaque = levels == nil; opaque {
		levels = (*image.NRGBA)(picture.Opaque(img)) // the same bytes
	}
	// the channels of the image that are enlarged together
	passes := [][]int32{{0, 1, 2}}
	switch {
	case u.network.Channels() == 4:
		passes = [][]int32{{0, 1, 2, 3}}
	case !opaque:
		passes = append(passes, []int32{3, 3, 3})
	}
	data := mlx.FromUint8(pixels.RGBA(levels), size.Y, size.X, 4)
	for i, channels := range passes {
		report := func(share float64) {
			if progress != nil {
				progress((float64(i) + share) / float64(len(passes)))
			}
		}
		if err := u.pass(out, data.Take(2, channels), i > 0, opaque, report); err != nil {
			return nil, false, err
		}
	}
	return out, opaque, nil
}

// pass enlarges channels, pixels [H, W, C] of 8 bits, and sets out: its transparency, the mean of the channels, if
// alpha is set, and otherwise its colours, and its transparency if there are four channels or it is opaque. Values
// beyond the range of float16 are computed again in float32.
func (u *Upscaler) pass(out *image.NRGBA, x *mlx.Array, alpha, opaque bool, report func(float64)) error {
	dtype := u.dtype
	for {
		if u.enlarge(out, x, alpha, opaque, dtype, report) {
			return nil
		}
		wide := nn.WideDtype(dtype)
		if wide == dtype {
			e := &NotFiniteError{What: "pixels", Dtype: dtype}
			if err := e.findWeights(u.loader, u.component); err != nil {
				return err
			}
			return e
		}
		dtype = wide
	}
}

// enlarge reports whether all values were finite.
func (u *Upscaler) enlarge(
	out *image.NRGBA, x *mlx.Array, alpha, opaque bool, dtype mlx.Dtype, report func(float64),
) (finite bool) {
	finite = true
	run := u.run()
	run.Progress = report
	to := out.Pix
	mlx.WithScope(func() {
		x := x.AsType(mlx.Float32).Over(255).AsType(dtype).ExpandDims(0)
		alone := u.network.Channels() == 1
		if alone {
			x = x.Transpose(3, 1, 2, 0) // each channel is an image
		}
		upscaler.Enlarge(u.network, x, run, func(y *mlx.Array) {
			if alone {
				y = y.Transpose(3, 1, 2, 0)
			}
			if finite = finite && y.AllFinite(); !finite {
				return
			}
			levels := y.AsType(mlx.Float32).Clip(0, 1).Times(255)
			if alpha {
				for _, v := range levels.Mean(3).Round().AsType(mlx.Uint8).Contiguous().Uint8s() {
					to[3] = v
					to = to[4:]
				}
				return
			}
			if opaque || levels.Dim(3) == 3 {
				levels = mlx.Concat(3, levels.Slice(3, 0, 3), mlx.Full(255, mlx.Float32, append(y.Shape()[:3], 1)...))
			}
			to = to[copy(to, levels.Round().AsType(mlx.Uint8).Contiguous().Uint8s()):]
		})
	})
	return finite
}
