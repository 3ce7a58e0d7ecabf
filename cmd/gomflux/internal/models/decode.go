package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/picture"
)

const decodeHelp = `Decode reads latents from a safetensors file or a NumPy file (.npy, .npz),
decodes them with the autoencoder (VAE) of a model, and writes the image to a
file, whose name it prints on standard output. Only the autoencoder is loaded: a
folder with nothing but vae in it, or a vae folder itself, is enough.

The tensor is the only one of the file, or the one named latents; :TENSOR
chooses another. Its shape is [C, h, w] or [1, C, h, w], its dtype F32, F16 or
BF16; @float32 at the end casts other dtypes. Latents are scaled as diffusers
pipelines return them with output_type="latent". Use --unscaled for latents that
diffusers' vae.decode takes, without scaling_factor and shift_factor.

An existing file is kept: the new one is named latents_1.png and so on, unless
--overwrite is given.

With --json decode prints one object: file, width, height, latents (file,
tensor, dtype, shape), unscaled, device, dtype, seconds (load, decode, save) and
peak_memory_bytes.
` + cli.ExitStatus

// decodeOptions are the flags of gomflux decode.
type decodeOptions struct {
	cli.ModelFlags
	cli.FileFlags
	cli.OutputFlags
	unscaled bool
}

func NewDecodeCommand() *cobra.Command {
	o := &decodeOptions{ModelFlags: cli.NewModelFlags()}
	cmd := &cobra.Command{
		Use:   "decode LATENTS[:TENSOR] --model MODEL",
		Short: "Decode latents to an image with a model's autoencoder",
		Long:  decodeHelp,
		Example: `  gomflux decode latents.safetensors --model z-image-turbo -o image.png
  gomflux decode dump.safetensors:step_8 --model ./z-image/vae --unscaled`,
		Args: cli.OneArg("a file with latents"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), o.Out(cmd), args[0])
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.AddModel(f)
	o.AddFile(f, "", "output `file` (default: the latents' name with .png, in the current folder)")
	f.BoolVar(&o.unscaled, "unscaled", false, "the latents are unscaled, as diffusers' vae.decode takes them")
	o.AddCompute(f)
	o.AddJSON(f, "a JSON object")
	return cmd
}

// A decoded is what decode prints.
type decoded struct {
	File       string        `json:"file"`
	Width      int           `json:"width"`
	Height     int           `json:"height"`
	Latents    jsonLatents   `json:"latents"`
	Unscaled   bool          `json:"unscaled"`
	Device     string        `json:"device"`
	Dtype      string        `json:"dtype"`
	Seconds    decodeSeconds `json:"seconds"`
	PeakMemory int           `json:"peak_memory_bytes"`
}

type jsonLatents struct {
	File   string `json:"file"`
	Tensor string `json:"tensor"`
	Dtype  string `json:"dtype"`
	Shape  []int  `json:"shape"`
}

type decodeSeconds struct {
	Load   float64 `json:"load"`
	Decode float64 `json:"decode"`
	Save   float64 `json:"save"`
}

func (d *decoded) Text(p *ui.Page) { p.Printf("%s\n", d.File) }

func (o *decodeOptions) run(ctx context.Context, out *ui.Output, arg string) error {
	ref, tensor, err := openLatents(arg)
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	name := cmp.Or(o.Output, cli.TrimTensorSuffix(filepath.Base(ref.File))+".png")
	if err := cli.CheckOutput(name); err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}

	start := time.Now()
	vae, progress, err := o.OpenVAE(ctx, out)
	if err != nil {
		return err
	}
	defer vae.Close()
	defer progress.Close()
	loaded := time.Now()
	img, err := o.decode(ctx, out, vae, progress, ref, tensor)
	if err != nil {
		return err
	}
	decodedAt := time.Now()
	if name, err = (cli.Saver{Overwrite: o.Overwrite}).Save(ctx, name, img); err != nil {
		return err
	}
	saved := time.Now()
	progress.Close()
	peak, err := cli.PeakMemory(ctx)
	if err != nil {
		return err
	}
	size := img.Bounds().Size()
	out.Note("%dx%d from %v, load %s, decode %s, peak memory %s", size.X, size.Y, tensor.Shape,
		ui.Duration(loaded.Sub(start)), ui.Duration(decodedAt.Sub(loaded)), units.Bytes(int64(peak)))
	return out.Result(&decoded{
		File: name, Width: size.X, Height: size.Y, Latents: jsonLatents{ref.File, tensor.Name, string(tensor.Dtype), tensor.Shape},
		Unscaled: o.unscaled, Device: string(vae.Device()), Dtype: string(vae.Dtype()), PeakMemory: peak,
		Seconds: decodeSeconds{ui.Seconds(loaded.Sub(start)), ui.Seconds(decodedAt.Sub(loaded)), ui.Seconds(saved.Sub(decodedAt))},
	})
}

// decode reads and decodes the latents.
func (o *decodeOptions) decode(
	ctx context.Context, out *ui.Output, vae *gomflux.VAE, progress *ui.Progress, ref checkpoint.Reference, tensor checkpoint.Tensor,
) (image.Image, error) {
	scale := vae.ScaleFactor()
	h, w := tensor.Shape[len(tensor.Shape)-2], tensor.Shape[len(tensor.Shape)-1]
	if w == 0 || h > picture.MaxPixels/scale/scale/w {
		return nil, cli.UsageErrorf("%s: tensor %s of shape %v: an image of %dx%d pixels is too large (the limit is %d million pixels)",
			ref.File, quote.Printable(tensor.Name), tensor.Shape, w*scale, h*scale, picture.MaxPixels/1_000_000)
	}
	cli.WarnMemory(ctx, out, "decoding", vae.Device(), vae.DecodeMemory(h*scale, w*scale), h*scale, w*scale)
	latents, err := readLatents(ref)
	if err != nil {
		return nil, err
	}
	progress.Report(gomflux.Progress{Phase: gomflux.PhaseDecode})
	img, err := vae.DecodeTransparent(ctx, latents, o.unscaled)
	if errors.Is(err, gomflux.ErrRequest) {
		return nil, cli.UsageErrorf("%s: tensor %s: %w", ref.File, quote.Printable(tensor.Name), err)
	}
	return img, cli.ModelError(err)
}

// openLatents opens FILE[:TENSOR], chooses the tensor and checks its shape and
// dtype.
func openLatents(arg string) (ref checkpoint.Reference, info checkpoint.Tensor, err error) {
	if ref, err = checkpoint.ParseReference(arg); err != nil {
		return ref, info, err
	}
	file, info, err := ref.Open("latents")
	if err != nil {
		return ref, info, err
	}
	file.Close()
	ref.Key = info.Name
	name := quote.Printable(info.Name)
	if n := len(info.Shape); n != 3 && (n != 4 || info.Shape[0] != 1) {
		return ref, info, fmt.Errorf("%s: tensor %s has the shape %v, expected [C, h, w] or [1, C, h, w], the latents of one image",
			ref.File, name, info.Shape)
	}
	floats := []checkpoint.Dtype{checkpoint.F32, checkpoint.F16, checkpoint.BF16}
	if d := cmp.Or(ref.Cast, info.Dtype); !slices.Contains(floats, d) {
		return ref, info, fmt.Errorf("%s: tensor %s has the dtype %s, expected F32, F16 or BF16", ref.File, name, d)
	}
	return ref, info, nil
}

// readLatents reads a tensor and refuses NaN and infinite values.
func readLatents(ref checkpoint.Reference) (gomflux.Latents, error) {
	t, err := ref.Read()
	if err != nil {
		return gomflux.Latents{}, err
	}
	if s := t.Stats(); !s.Finite() {
		return gomflux.Latents{}, cli.UsageErrorf(
			"%s: tensor %s: %d of %d values are NaN or infinite (the run that saved them failed; half precision may have overflowed)",
			ref.File, quote.Printable(ref.Key), s.NaN+s.Inf, t.Len())
	}
	return gomflux.Latents{Shape: t.Shape, Data: t.Float32s()}, nil
}
