package models

import (
	"context"
	"fmt"
	"image"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/picture"
)

const roundtripHelp = `Roundtrip encodes an image to latents and decodes it again with the autoencoder
(VAE) of a model, and prints how much the result differs. Only the autoencoder
is loaded: a folder with nothing but vae in it, or a vae folder itself, is
enough.

The image is a PNG, JPEG or WebP file. Transparent pixels are white, except for
an autoencoder with an alpha channel; they are compared on white. The image is
cropped at the center to multiples of the autoencoder's scale factor, usually 8.
The result is written only with -o; an existing file is kept, and the new one
numbered, unless --overwrite is given.

Differences are of red, green and blue, on a scale from 0 to 255:

  psnr      peak signal-to-noise ratio in dB, inf for equal images
  mean      mean absolute difference
  largest   largest absolute difference

With --json roundtrip prints one object: picture (file, format, width, height),
cut (left, top, right, bottom), width, height, latents (shape), psnr (null for
equal images), mean, largest, device, dtype, seconds (load, encode, decode),
peak_memory_bytes, and with -o file.
` + cli.ExitStatus

// roundtripOptions are the flags of gomflux roundtrip.
type roundtripOptions struct {
	cli.ModelFlags
	cli.FileFlags
	cli.OutputFlags
	write bool // --output is given
}

func NewRoundtripCommand() *cobra.Command {
	o := &roundtripOptions{ModelFlags: cli.NewModelFlags()}
	cmd := &cobra.Command{
		Use:   "roundtrip IMAGE --model MODEL",
		Short: "Encode and decode an image, and measure the difference",
		Long:  roundtripHelp,
		Example: `  gomflux roundtrip photo.jpg --model z-image-turbo
  gomflux roundtrip photo.jpg --model ./z-image/vae -o decoded.png --json`,
		Args: cli.OneArg("an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.write = cmd.Flags().Changed("output")
			if o.Overwrite && !o.write {
				return cli.UsageErrorf("--overwrite has no effect without --output")
			}
			return o.run(cmd.Context(), o.Out(cmd), args[0])
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddModel(f)
	o.AddFile(f, "", "write the decoded image to this `file`")
	o.AddCompute(f)
	o.AddJSON(f, "a JSON object")
	return cmd
}

// A roundtrip is what roundtrip prints.
type roundtrip struct {
	Picture    roundtripImage   `json:"picture"`
	Cut        jsonCut          `json:"cut"`
	Width      int              `json:"width"`
	Height     int              `json:"height"`
	Latents    roundtripLatents `json:"latents"`
	PSNR       *float64         `json:"psnr"`
	Mean       float64          `json:"mean"`
	Largest    int              `json:"largest"`
	Device     string           `json:"device"`
	Dtype      string           `json:"dtype"`
	Seconds    roundtripSeconds `json:"seconds"`
	PeakMemory int              `json:"peak_memory_bytes"`
	File       string           `json:"file,omitempty"`

	times [4]time.Time // start, loaded, encoded, decoded
}

type roundtripImage struct {
	File   string `json:"file"`
	Format string `json:"format"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// jsonCut is what was cropped at each side, in pixels.
type jsonCut struct {
	Left   int `json:"left"`
	Top    int `json:"top"`
	Right  int `json:"right"`
	Bottom int `json:"bottom"`
}

type roundtripLatents struct {
	Shape []int `json:"shape"`
}

type roundtripSeconds struct {
	Load   float64 `json:"load"`
	Encode float64 `json:"encode"`
	Decode float64 `json:"decode"`
}

func (o *roundtripOptions) run(ctx context.Context, out *ui.Output, name string) error {
	p, err := picture.ReadFile(name)
	if err == nil && o.write {
		err = cli.CheckOutput(o.Output)
	}
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	outer := p.Image.Rect
	r := &roundtrip{Picture: roundtripImage{name, p.Format.String(), outer.Dx(), outer.Dy()}}
	r.times[0] = time.Now()
	vae, progress, err := o.OpenVAE(ctx, out)
	if err != nil {
		return err
	}
	defer vae.Close()
	defer progress.Close()
	r.times[1] = time.Now()
	inner, err := crop(outer, vae.ScaleFactor())
	if err != nil {
		return cli.UsageErrorf("%s: %w", name, err)
	}
	r.Cut = jsonCut{inner.Min.X - outer.Min.X, inner.Min.Y - outer.Min.Y, outer.Max.X - inner.Max.X, outer.Max.Y - inner.Max.Y}
	cli.WarnMemory(ctx, out, "decoding", vae.Device(), vae.DecodeMemory(inner.Dy(), inner.Dx()), inner.Dy(), inner.Dx())
	img := p.Image.SubImage(inner).(*image.RGBA)
	var in image.Image = img
	if p.Transparent != nil && vae.HasAlpha() {
		in = p.Transparent.SubImage(inner)
	}
	back, err := r.autoencode(ctx, vae, progress, in)
	if err != nil {
		return cli.ModelError(err)
	}
	if err := r.compare(img, picture.Opaque(back)); err != nil {
		return err
	}
	if o.write {
		if r.File, err = (cli.Saver{Overwrite: o.Overwrite}).Save(ctx, o.Output, back); err != nil {
			return err
		}
	}
	progress.Close()
	if r.PeakMemory, err = cli.PeakMemory(ctx); err != nil {
		return err
	}
	return out.Result(r)
}

// autoencode encodes and decodes an image.
func (r *roundtrip) autoencode(ctx context.Context, vae *gomflux.VAE, progress *ui.Progress, img image.Image) (*image.NRGBA, error) {
	progress.Report(gomflux.Progress{Phase: gomflux.PhaseEncode})
	latents, err := vae.Encode(ctx, img)
	if err != nil {
		return nil, err
	}
	r.times[2] = time.Now()
	progress.Report(gomflux.Progress{Phase: gomflux.PhaseDecode})
	back, err := vae.DecodeTransparent(ctx, latents, false)
	r.times[3] = time.Now()
	r.Latents.Shape, r.Device, r.Dtype = latents.Shape, string(vae.Device()), string(vae.Dtype())
	t := r.times
	r.Seconds = roundtripSeconds{ui.Seconds(t[1].Sub(t[0])), ui.Seconds(t[2].Sub(t[1])), ui.Seconds(t[3].Sub(t[2]))}
	return back, err
}

// compare fills in the differences.
func (r *roundtrip) compare(img, back *image.RGBA) error {
	d, err := report.CompareImages(img, back)
	r.Width, r.Height, r.Mean, r.Largest = img.Rect.Dx(), img.Rect.Dy(), d.Mean, d.Max
	if d.PSNR.Finite() {
		r.PSNR = new(float64(d.PSNR))
	}
	return err
}

func (r *roundtrip) Text(p *ui.Page) {
	line := p.Fields(9)
	line("image", "%s (%v, %dx%d)", quote.Printable(r.Picture.File), r.Picture.Format, r.Picture.Width, r.Picture.Height)
	if c := r.Cut; c != (jsonCut{}) {
		line("cropped", "to %dx%d, by %d left, %d right, %d top, %d bottom", r.Width, r.Height, c.Left, c.Right, c.Top, c.Bottom)
	}
	line("latents", "%v", r.Latents.Shape)
	if r.PSNR == nil {
		line("psnr", "inf (the images are equal)")
	} else {
		line("psnr", "%.2f dB", *r.PSNR)
	}
	line("mean", "%.3f of 255", r.Mean)
	line("largest", "%d of 255", r.Largest)
	t := r.times
	line("time", "load %s, encode %s, decode %s", ui.Duration(t[1].Sub(t[0])), ui.Duration(t[2].Sub(t[1])), ui.Duration(t[3].Sub(t[2])))
	line("memory", "%s at most, on %s in %s", units.Bytes(int64(r.PeakMemory)), r.Device, r.Dtype)
	if r.File != "" {
		line("file", "%s", quote.Printable(r.File))
	}
}

// crop returns the largest centered part whose sides are multiples of scale.
func crop(r image.Rectangle, scale int) (image.Rectangle, error) {
	w, h := r.Dx()/scale*scale, r.Dy()/scale*scale
	if w == 0 || h == 0 {
		return r, fmt.Errorf("an image of %dx%d is too small: must be at least %dx%[3]d for this autoencoder", r.Dx(), r.Dy(), scale)
	}
	corner := r.Min.Add(image.Pt((r.Dx()-w)/2, (r.Dy()-h)/2))
	return image.Rectangle{corner, corner.Add(image.Pt(w, h))}, nil
}
