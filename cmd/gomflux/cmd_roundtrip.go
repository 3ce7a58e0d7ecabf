package main

import (
	"context"
	"fmt"
	"image"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/picture"
)

// roundtripOptions are the flags of gomflux roundtrip.
type roundtripOptions struct {
	modelFlags
	output          string
	overwrite, json bool
}

func newRoundtripCommand() *cobra.Command {
	o := &roundtripOptions{modelFlags: newModelFlags()}
	cmd := &cobra.Command{
		Use:   "roundtrip PICTURE --model MODEL",
		Short: "Encode and decode a picture, and say what that changes",
		Long: `Roundtrip takes a picture to latents and back with the autoencoder (VAE) of a
model, and reports by how much the result differs. Nothing else of the model is
read, or has to be there: a folder with only vae in it, or a vae's own folder,
is enough.

The picture is a PNG, JPEG or WebP file; transparency is laid over white. What
its sides have beyond a multiple of the autoencoder's scale factor (8 as a rule)
is cut off, as evenly as it goes. The result is written only with -o; a file
that is there already is kept, and the new one numbered, unless --overwrite is
given.

The differences are of red, green and blue, on a scale from 0 to 255:

  psnr      peak signal-to-noise ratio in dB, inf for equal pictures
  mean      mean absolute difference
  largest   largest absolute difference

With --json it prints one object: picture (file, format, width, height), cut
(left, top, right, bottom), width, height, latents (shape), psnr (null for equal
pictures), mean, largest, device, dtype, seconds (load, encode, decode),
peak_memory_bytes, and file with -o.
` + exitStatus,
		Example: `  gomflux roundtrip photo.jpg --model z-image-turbo
  gomflux roundtrip photo.jpg --model ./z-image/vae -o decoded.png --json`,
		Args: oneFile("a picture"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("output") && o.overwrite {
				return usageErrorf("--overwrite does nothing without --output")
			}
			return o.run(cmd.Context(), args[0], cmd.Flags().Changed("output"), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.addModel(f)
	f.StringVarP(&o.output, "output", "o", "", "the `file` to write the decoded picture to")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace the file if it is there")
	o.addPlace(f)
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	return cmd
}

func (o *roundtripOptions) run(ctx context.Context, name string, write bool, stdout, stderr io.Writer) error {
	p, err := picture.ReadFile(name)
	if err == nil && write {
		err = checkOutput(o.output)
	}
	if err != nil {
		return coded(exitUsage, err)
	}

	start := time.Now()
	vae, show, err := o.openVAE(ctx, stderr, o.json)
	if err != nil {
		return err
	}
	defer show.close()
	loaded := time.Now()
	inner, err := crop(p.Image.Rect, vae.ScaleFactor())
	if err != nil {
		return usageErrorf("%s: %w", name, err)
	}
	warnMemory(ctx, warnings{above{show, stderr}}, vae, inner.Dy(), inner.Dx())
	img := p.Image.SubImage(inner).(*image.RGBA)
	show.report(gomflux.Progress{Phase: gomflux.PhaseEncode})
	latents, err := vae.Encode(ctx, img)
	if err != nil {
		return modelError(err)
	}
	encoded := time.Now()
	show.report(gomflux.Progress{Phase: gomflux.PhaseDecode})
	back, err := vae.Decode(ctx, latents)
	if err != nil {
		return modelError(err)
	}
	decoded := time.Now()
	d := compare(img, back)
	saved := ""
	if write {
		if saved, err = (saver{overwrite: o.overwrite}).save(ctx, o.output, back); err != nil {
			return err
		}
	}
	show.close()
	peak, err := peakMemory(ctx)
	if err != nil {
		return err
	}

	outer := p.Image.Rect
	cut := jsonCut{inner.Min.X - outer.Min.X, inner.Min.Y - outer.Min.Y, outer.Max.X - inner.Max.X, outer.Max.Y - inner.Max.Y}
	if o.json {
		type jsonFile struct {
			File   string `json:"file"`
			Format string `json:"format"`
			Width  int    `json:"width"`
			Height int    `json:"height"`
		}
		type jsonShape struct {
			Shape []int `json:"shape"`
		}
		type jsonTimes struct {
			Load   float64 `json:"load"`
			Encode float64 `json:"encode"`
			Decode float64 `json:"decode"`
		}
		var psnr *float64
		if !math.IsInf(d.psnr, 0) {
			psnr = &d.psnr
		}
		return writeJSON(stdout, struct {
			Picture    jsonFile  `json:"picture"`
			Cut        jsonCut   `json:"cut"`
			Width      int       `json:"width"`
			Height     int       `json:"height"`
			Latents    jsonShape `json:"latents"`
			PSNR       *float64  `json:"psnr"`
			Mean       float64   `json:"mean"`
			Largest    int       `json:"largest"`
			Device     string    `json:"device"`
			Dtype      string    `json:"dtype"`
			Seconds    jsonTimes `json:"seconds"`
			PeakMemory int       `json:"peak_memory_bytes"`
			File       string    `json:"file,omitempty"`
		}{
			jsonFile{name, p.Format.String(), outer.Dx(), outer.Dy()}, cut, inner.Dx(), inner.Dy(), jsonShape{latents.Shape}, psnr, d.mean, d.largest,
			string(vae.Device()), string(vae.Dtype()), jsonTimes{milliseconds(loaded.Sub(start)), milliseconds(encoded.Sub(loaded)), milliseconds(decoded.Sub(encoded))}, peak, saved,
		})
	}
	var b strings.Builder
	line := liner(&b, 9)
	line("picture", "%s (%v of %dx%d)", quote.Printable(name), p.Format, outer.Dx(), outer.Dy())
	if inner != outer {
		line("cut", "to %dx%d, by %d left, %d right, %d top, %d bottom", inner.Dx(), inner.Dy(), cut.Left, cut.Right, cut.Top, cut.Bottom)
	}
	line("latents", "%v", latents.Shape)
	if math.IsInf(d.psnr, 0) {
		line("psnr", "inf (the pictures are equal)")
	} else {
		line("psnr", "%.2f dB", d.psnr)
	}
	line("mean", "%.3f of 255", d.mean)
	line("largest", "%d of 255", d.largest)
	line("time", "load %s, encode %s, decode %s", seconds(loaded.Sub(start)), seconds(encoded.Sub(loaded)), seconds(decoded.Sub(encoded)))
	line("memory", "%s at most, on %s in %s", units.Bytes(int64(peak)), vae.Device(), vae.Dtype())
	if write {
		line("file", "%s", quote.Printable(saved))
	}
	_, err = io.WriteString(stdout, b.String())
	return err
}

// jsonCut is what was cut off at each side, in pixels.
type jsonCut struct {
	Left   int `json:"left"`
	Top    int `json:"top"`
	Right  int `json:"right"`
	Bottom int `json:"bottom"`
}

// crop is the largest part in the middle whose sides are multiples of scale.
func crop(r image.Rectangle, scale int) (image.Rectangle, error) {
	w, h := r.Dx()/scale*scale, r.Dy()/scale*scale
	if w == 0 || h == 0 {
		return r, fmt.Errorf("a picture of %dx%d is too small, the autoencoder needs %dx%[3]d at least", r.Dx(), r.Dy(), scale)
	}
	corner := r.Min.Add(image.Pt((r.Dx()-w)/2, (r.Dy()-h)/2))
	return image.Rectangle{corner, corner.Add(image.Pt(w, h))}, nil
}

// A difference is that of two pictures' red, green and blue.
type difference struct {
	psnr    float64 // in dB, +Inf for equal pictures
	mean    float64 // of the absolute differences, on a scale of 255
	largest int
}

// compare compares pictures of the same size.
func compare(a, b *image.RGBA) difference {
	var d difference
	var sum, squares int
	size := a.Rect.Size()
	for y := range size.Y {
		p, q := a.Pix[a.PixOffset(a.Rect.Min.X, a.Rect.Min.Y+y):], b.Pix[b.PixOffset(b.Rect.Min.X, b.Rect.Min.Y+y):]
		for i := range 4 * size.X {
			if i%4 == 3 {
				continue // alpha, which is opaque
			}
			e := int(p[i]) - int(q[i])
			squares += e * e
			e = max(e, -e)
			sum += e
			d.largest = max(d.largest, e)
		}
	}
	n := float64(3 * size.X * size.Y)
	d.mean = float64(sum) / n
	d.psnr = 10 * math.Log10(255*255*n/float64(squares))
	return d
}
