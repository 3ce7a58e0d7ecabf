package gomflux

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"math"

	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/upscaler"
)

// DefaultUpscaler is the name of the published network that enlarges images where nothing else is asked for.
const DefaultUpscaler = "realesrgan-x4plus"

// Lanczos is the name of an upscaler without a network: the filter of [picture.Resize].
const Lanczos = "lanczos"

// LanczosScale is the largest scale of Lanczos, and defaultScale that of Lanczos and SeedVR2 where nothing else is asked for.
const LanczosScale, defaultScale = 8, 2

// An Upscaler enlarges images by a network: ESRGAN's, Real-ESRGAN's or SeedVR2's. Like a [Model] it may be used from several
// goroutines.
type Upscaler struct {
	network               *models.Upscaler // nil for Lanczos
	name, revision, class string
	scale                 int
	device                Device
	dtype                 Dtype
}

// UpscaleOptions describe how large an image becomes. The zero value and nil stand for the scale of the network.
// A smaller size is the network's, reduced by Lanczos' filter. SeedVR2 works at the size that is asked for, and makes an image
// twice as large without one.
type UpscaleOptions struct {
	// Scale is the height or width divided by that of the image, from 1 to that of the network.
	Scale float64
	// Seed is that of SeedVR2's noise.
	Seed uint64
	// ColorCorrection is how SeedVR2's result gets the colours of the image: "lab", the default, matches the distribution of colours in
	// CIELAB too, "wavelet" only takes the low frequencies, as its makers do.
	ColorCorrection string
	// Width and Height are the size in pixels. If one of them is 0, the proportions are kept.
	Width, Height int
	// Progress, if set, is called on the caller's goroutine.
	Progress func(Progress)
}

// OpenUpscaler loads a network by its name: a safetensors file, a folder with one, or with those of SeedVR2, one of the
// published networks that gomflux models lists, or owner/name:file in the Hugging Face cache. Of the options it uses
// Device, Dtype and Progress; [Lanczos] does not need them. Without a Dtype a GPU computes in float16, and where that
// overflows in float32; SeedVR2 computes in the dtype of models. The caller must close it.
func OpenUpscaler(ctx context.Context, name string, o *OpenOptions) (*Upscaler, error) {
	if name == Lanczos {
		return &Upscaler{name: name, scale: LanczosScale, device: CPU, dtype: Uint8}, nil
	}
	found, err := catalog.FindUpscaler(name)
	if err != nil {
		return nil, err
	}
	load, err := o.load()
	if err != nil {
		return nil, err
	}
	n, err := onMLX(ctx, func() (*models.Upscaler, error) { return models.LoadUpscaler(found.FS, load) })
	if err != nil {
		return nil, err
	}
	return &Upscaler{
		network: n, name: found.Name, revision: found.Revision, class: n.Class(), scale: n.Scale(),
		device: Device(n.Device().String()), dtype: Dtype(n.Dtype().String()),
	}, nil
}

// Close frees the memory of the network. Afterwards, Upscale returns [ErrClosed].
func (u *Upscaler) Close() error {
	if u.network == nil {
		return nil
	}
	return closeModel(u.network)
}

// Name returns the name that the network was opened with.
func (u *Upscaler) Name() string { return u.name }

// Revision returns the commit of a network in the Hugging Face cache, "" for others.
func (u *Upscaler) Revision() string { return u.revision }

// Class returns the class of the network: RRDBNet, SRVGGNetCompact or, of SeedVR2, NaDiT. It is "" for Lanczos.
func (u *Upscaler) Class() string { return u.class }

// Scale returns how many times the network enlarges images; for Lanczos and SeedVR2 the largest scale.
func (u *Upscaler) Scale() int { return u.scale }

// Seeded reports whether UpscaleOptions.Seed has an effect: that of SeedVR2 has.
func (u *Upscaler) Seeded() bool { return u.network != nil && u.network.Restores() }

// Device returns the device that the network runs on, CPU for Lanczos.
func (u *Upscaler) Device() Device { return u.device }

// Dtype returns the dtype of the network's computations, Uint8 for Lanczos.
func (u *Upscaler) Dtype() Dtype { return u.dtype }

// Memory estimates the memory in bytes that Upscale needs for an image of a size, with the memory that is free now:
// where it is short, an image is enlarged in strips.
func (u *Upscaler) Memory(width, height int, o *UpscaleOptions) int64 {
	w, h, err := u.Size(width, height, o)
	if u.network == nil || err != nil {
		return 0
	}
	n, _ := onMLX(context.Background(), func() (int64, error) { // never fails
		return u.network.Memory(image.Pt(width, height), image.Pt(w, h)), nil
	})
	return n
}

// Size returns the size that an image of a width and height becomes. A size that the network cannot reach is an
// [ErrRequest].
func (u *Upscaler) Size(width, height int, o *UpscaleOptions) (w, h int, err error) {
	o = cmp.Or(o, &UpscaleOptions{})
	scale, usual := u.scale, u.scale
	if u.network == nil || u.Seeded() {
		usual = defaultScale
	}
	to := func(n int, factor float64) int { return max(1, int(math.Round(float64(n)*factor))) }
	factor := cmp.Or(o.Scale, float64(usual))
	switch {
	case o.Scale != 0 && (o.Width != 0 || o.Height != 0):
		return 0, 0, errs.Requestf("scale %g: a scale and a size exclude each other", o.Scale)
	case o.Width < 0 || o.Height < 0:
		return 0, 0, errs.Requestf("size %dx%d: must be positive", o.Width, o.Height)
	case o.Width != 0 || o.Height != 0:
		w, h = o.Width, o.Height
		if w == 0 {
			w = to(width, float64(h)/float64(height))
		}
		if h == 0 {
			h = to(height, float64(w)/float64(width))
		}
		if w < width || h < height || w > width*scale || h > height*scale {
			return 0, 0, errs.Requestf("size %dx%d: must be from %dx%d, that of the image, to %dx%d, %d times that",
				w, h, width, height, width*scale, height*scale, scale)
		}
	case !(factor >= 1 && factor <= float64(scale)):
		return 0, 0, scaleError(factor, scale)
	default:
		w, h = to(width, factor), to(height, factor)
	}
	if int64(w)*int64(h) > picture.MaxPixels {
		most := math.Sqrt(picture.MaxPixels / (float64(width) * float64(height)))
		return 0, 0, errs.Requestf("size %dx%d: %d million pixels, expected at most %d (a scale of %.2f)", w, h, int64(w)*int64(h)/1e6,
			picture.MaxPixels/1_000_000, math.Floor(100*most)/100)
	}
	return w, h, nil
}

func scaleError(found float64, most int) error {
	return errs.Requestf("scale %g: must be from 1 to %d, that of the network (enlarge the result again for more)", found, most)
}

// Upscale enlarges an image. Transparency is enlarged by the network too. The result is an *image.NRGBA if the image
// has transparent pixels, and otherwise an *image.RGBA.
func (u *Upscaler) Upscale(ctx context.Context, img image.Image, o *UpscaleOptions) (image.Image, error) {
	o = cmp.Or(o, &UpscaleOptions{})
	size := img.Bounds().Size()
	if size.X < 1 || size.Y < 1 {
		return nil, errs.Request(fmt.Errorf("image of %dx%d: has no pixels", size.X, size.Y))
	}
	w, h, err := u.Size(size.X, size.Y, o)
	if err != nil {
		return nil, err
	}
	if u.network == nil {
		return resized(img, w, h), nil
	}
	how := models.Restoration{Seed: o.Seed, Colours: cmp.Or(o.ColorCorrection, upscaler.LAB)}
	if how.Colours != upscaler.LAB && how.Colours != upscaler.Wavelet {
		return nil, errs.Requestf("color correction %q: expected %s or %s", how.Colours, upscaler.LAB, upscaler.Wavelet)
	}
	report := onCallerFunc(o.Progress)
	const steps = 1000
	done, opaque := -1, picture.Transparent(img) == nil
	large, err := onMLX(ctx, func() (*image.NRGBA, error) {
		return u.network.Upscale(img, image.Pt(w, h), how, func(share float64) {
			if now := int(share * steps); report != nil && now > done {
				done = now
				report(Progress{Phase: PhaseUpscale, Step: now, Steps: steps})
			}
		})
	})
	if err != nil {
		return nil, err
	}
	if opaque { // no need to look at all pixels of the result
		return resizedOpaque((*image.RGBA)(large), w, h), nil
	}
	return resized(large, w, h), nil
}

// resized returns an image in a size, as an *image.NRGBA if it has transparent pixels, and otherwise an *image.RGBA.
func resized(img image.Image, w, h int) image.Image {
	if t := picture.Transparent(img); t != nil {
		if t.Rect.Dx() != w || t.Rect.Dy() != h {
			t = picture.ResizeTransparent(t, w, h)
		}
		return t
	}
	return resizedOpaque(picture.Opaque(img), w, h)
}

func resizedOpaque(opaque *image.RGBA, w, h int) *image.RGBA {
	if opaque.Rect.Dx() != w || opaque.Rect.Dy() != h {
		opaque = picture.Resize(opaque, w, h)
	}
	return opaque
}
