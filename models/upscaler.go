package models

import (
	"cmp"
	"image"
	"io/fs"
	"os"
	"sync"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/upscaler"
)

// An Upscaler enlarges images by a network. Its methods run on the MLX thread.
type Upscaler struct {
	base      *Autoencoder      // of SeedVR2; of networks only what all models have
	network   upscaler.Network  // nil for SeedVR2
	seedvr2   *upscaler.SeedVR2 // nil for others
	scale     int
	component component.Component
	loader    *component.Loader
}

// LoadUpscaler reads the network in a folder of [catalog.FindUpscaler]. Of the options it uses Device, Dtype and
// Progress. On a GPU the default dtype is float16, whose rounding is a part of that of 8 bits: bfloat16 has as many
// bits as a pixel. For SeedVR2 it is that of models. It must run on the MLX thread. Callers must close the upscaler.
func LoadUpscaler(fsys fs.FS, o LoadOptions) (*Upscaler, error) {
	a := &Autoencoder{}
	if err := a.chooseDevice(o); err != nil {
		return nil, err
	}
	u := &Upscaler{base: a, loader: &component.Loader{
		Folder: component.Folder{FS: fsys, Points: &a.points, Dtype: mlx.Float32}, ReadAhead: readAhead, Report: LoadReport(o.Progress),
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
	defer closeUnless(&complete, u.close)
	switch n := declared.(type) {
	case upscaler.Network:
		u.network = n
		if o.Dtype == nil && a.device != mlx.CPU {
			a.dtype = mlx.Float16
		}
	case *upscaler.SeedVR2:
		u.loader.Dtype = a.dtype // weights that are stored in float32 would take twice as much
		if err := u.loadSeedVR2(fsys, n); err != nil {
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
	u.base.close()
	u.loader.Unload(u.component)
	if u.seedvr2 != nil && u.seedvr2.Text != nil {
		u.seedvr2.Text.Free()
	}
}

// Pipeline returns a pipeline that has the device and the dtype, and generates nothing.
func (u *Upscaler) Pipeline() *Pipeline { return &Pipeline{Autoencoder: u.base} }

// Observe has a hook see the outputs of modules, whose names begin with upscaler and vae, and the values of a run, and forked, which
// may be nil, the two forms of fused operations; a nil hook ends that.
func (u *Upscaler) Observe(hook hooks.Func, forked func(hooks.Fork)) {
	u.base.points = hooks.Points{Func: hook, Forked: forked, Step: -1}
}

// Class is the network's class.
func (u *Upscaler) Class() string { return u.component.Class.Name }

// Scale is how many times the network enlarges images, SeedVR2 at most.
func (u *Upscaler) Scale() int { return u.scale }

// Device returns the device that it runs on.
func (u *Upscaler) Device() mlx.Device { return u.base.device }

// Dtype returns the dtype that it computes in.
func (u *Upscaler) Dtype() mlx.Dtype { return u.base.dtype }

// run returns how to compute an image: within half of the free memory.
func (u *Upscaler) run() upscaler.Run { return upscaler.Run{Budget: mlx.FreeMemory(u.base.device) / 2} }

// Memory estimates the bytes in which Upscale enlarges an image, to a size if it is SeedVR2, with the memory that is free now.
func (u *Upscaler) Memory(from, to image.Point) int64 {
	if u.seedvr2 != nil {
		return u.restoringMemory(to.Y, to.X)
	}
	n := upscaler.Memory(u.network, from.Y, from.X, u.run(), u.base.device, u.base.dtype)
	if u.network.Channels() == 1 {
		n *= 3 // red, green and blue
	}
	scale := int64(u.Scale())
	return n + weightsSize(u.network) + 4*int64(from.Y)*int64(from.X)*scale*scale
}

// maxPixels limits the images that networks return.
const maxPixels = 4 * picture.MaxPixels

// A Restoration has what only SeedVR2 needs.
type Restoration struct {
	Seed    uint64 // of the noise
	Colours string // [upscaler.Wavelet] or [upscaler.LAB]
}

// Upscale enlarges an image: by Scale, or by SeedVR2 to a size. A network enlarges the transparency too, as a
// gray image if it has no channel for it; for SeedVR2 Lanczos' filter scales it. progress, which may be nil, is called with the share
// that is done. If the image is opaque, so is the result.
func (u *Upscaler) Upscale(img image.Image, to image.Point, r Restoration, progress func(share float64)) (*image.NRGBA, error) {
	if u.base.closed {
		return nil, ErrClosed
	}
	if err := mlx.Use(u.base.device); err != nil {
		return nil, err
	}
	defer limitMemory(u.base.device, autoencoderLookahead).restore()
	if progress == nil {
		progress = func(float64) {}
	}
	if u.seedvr2 != nil {
		return u.restore(img, to, r, progress)
	}
	return u.enlarge(img, progress)
}

// inDtypes calls f with the dtype, and if its values are not finite with those of a larger range.
func (u *Upscaler) inDtypes(f func(dtype mlx.Dtype) (finite bool, err error)) error {
	for dtype := u.base.dtype; ; dtype = nn.WideDtype(dtype) {
		finite, err := f(dtype)
		switch {
		case err != nil || finite:
			return err
		case nn.WideDtype(dtype) == dtype || u.base.points.Active(): // a hook sees a run once
			e := &NotFiniteError{What: "pixels", Dtype: dtype}
			return cmp.Or(e.findWeights(u.loader, u.component), error(e))
		}
	}
}

// enlarge is Upscale for a network.
func (u *Upscaler) enlarge(img image.Image, progress func(share float64)) (*image.NRGBA, error) {
	size, scale := img.Bounds().Size(), u.Scale()
	if size.X < 1 || size.Y < 1 || int64(size.X)*int64(size.Y)*int64(scale*scale) > maxPixels {
		return nil, errs.Requestf("image of %dx%d: enlarged %d times it would have %d million pixels, expected at most %d",
			size.X, size.Y, scale, int64(size.X)*int64(size.Y)*int64(scale*scale)/1e6, maxPixels/1_000_000)
	}
	// pages are in memory when they are first written, here while the device computes
	out := sync.OnceValue(func() *image.NRGBA {
		m := image.NewNRGBA(image.Rect(0, 0, size.X*scale, size.Y*scale))
		for i := 0; i < len(m.Pix); i += os.Getpagesize() {
			m.Pix[i] = 0
		}
		return m
	})
	go out()
	levels := picture.Transparent(img)
	opaque := levels == nil
	if opaque {
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
		report := func(share float64) { progress((float64(i) + share) / float64(len(passes))) }
		err := u.inDtypes(func(dtype mlx.Dtype) (bool, error) {
			return u.pass(out, data.Take(2, channels), i > 0, opaque, dtype, report), nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out(), nil
}

// pass enlarges channels, pixels [H, W, C] of 8 bits, and sets out: its transparency, the mean of the channels, if
// alpha is set, and otherwise its colours, and its transparency if there are four channels or it is opaque. It reports whether all
// values were finite.
func (u *Upscaler) pass(
	out func() *image.NRGBA, x *mlx.Array, alpha, opaque bool, dtype mlx.Dtype, report func(float64),
) (finite bool) {
	finite = true
	run := u.run()
	run.Progress = report
	var levels *mlx.Array // the last rows of the result, [1, rows, W, 1] or [rows, W, 4], which are not copied yet
	set := 0
	finish := func() { // copies them
		if levels == nil {
			return
		}
		if to := out().Pix[set:]; alpha {
			for i, v := range levels.Uint8s() {
				to[4*i+3] = v
			}
			set += 4 * levels.Size()
		} else {
			set += levels.ReadUint8s(to)
		}
		levels.Free()
		levels = nil
	}
	mlx.WithScope(func() {
		points := &u.base.points
		if !alpha {
			x = points.Value("image.in", x)
		}
		x := x.AsType(mlx.Float32).Over(255).AsType(dtype).ExpandDims(0)
		alone := u.network.Channels() == 1
		if alone {
			x = x.Transpose(3, 1, 2, 0) // each channel is an image
		}
		points.Step = 0
		upscaler.Enlarge(u.network, x, run, func(y *mlx.Array) {
			mlx.AsyncEval(y)
			finish() // while the device computes
			if finite = finite && y.AllFinite(); !finite {
				return
			}
			points.Step = -1
			levels = mlx.Scope(func() *mlx.Array {
				if alone {
					y = y.Transpose(3, 1, 2, 0)
				}
				y := y.AsType(mlx.Float32).Clip(0, 1).Times(255)
				if alpha {
					return y.Mean(3).Round().AsType(mlx.Uint8)
				}
				y = points.Value("image", y.Round().AsType(mlx.Uint8).Squeeze(0))
				if opaque {
					y = y.Slice(2, 0, 3)
				}
				return rgbaOf(y).Contiguous()
			})
			mlx.AsyncEval(levels)
			mlx.Keep(levels)
		})
		finish()
	})
	return finite
}
