package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
)

// decodeOptions are the flags of gomflux decode.
type decodeOptions struct {
	modelFlags
	output          string
	overwrite, json bool
	unscaled        bool
}

func newDecodeCommand() *cobra.Command {
	o := &decodeOptions{modelFlags: newModelFlags()}
	cmd := &cobra.Command{
		Use:   "decode LATENTS[:TENSOR] --model MODEL",
		Short: "Make a picture from latents with a model's autoencoder",
		Long: `Decode takes latents from a safetensors file, or one of NumPy's (.npy, .npz),
decodes them with the autoencoder (VAE) of a model, and writes the picture to a
file, whose name it prints on standard output. Nothing else of the model is
read, or has to be there: a folder with only vae in it, or a vae's own folder,
is enough.

The file's only tensor is taken or else the one that is named latents; another
one is named after a colon. Its shape is [C, h, w] or [1, C, h, w], its dtype
F32, F16 or BF16; @float32 at the end casts another one. The latents are as
diffusers' pipelines return them with output_type="latent"; those that
vae.decode takes, without the model's scaling_factor and shift_factor, need
--unscaled.

A file that is there already is kept: the new one is named latents_1.png and so
on, unless --overwrite is given.

With --json it prints one object: file, width, height, latents (file, tensor,
dtype, shape), unscaled, device, dtype, seconds (load, decode, save),
peak_memory_bytes.
` + exitStatus,
		Example: `  gomflux decode latents.safetensors --model z-image-turbo -o picture.png
  gomflux decode dump.safetensors:step_8 --model ./z-image/vae --unscaled`,
		Args: oneFile("a file with latents"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.addModel(f)
	f.StringVarP(&o.output, "output", "o", "", "the `file` to write (default: the latents' name with .png, in this folder)")
	f.BoolVar(&o.overwrite, "overwrite", false, "replace the file if it is there")
	f.BoolVar(&o.unscaled, "unscaled", false, "the latents are as vae.decode of diffusers takes them")
	o.addPlace(f)
	f.BoolVar(&o.json, "json", false, "print a JSON object")
	return cmd
}

func (o *decodeOptions) run(ctx context.Context, arg string, stdout, stderr io.Writer) error {
	ref, tensor, err := openLatents(arg)
	if err != nil {
		return coded(exitUsage, err)
	}
	output := o.output
	if output == "" {
		output = trimTensorSuffix(filepath.Base(ref.File)) + ".png"
	}
	if err := checkOutput(output); err != nil {
		return coded(exitUsage, err)
	}

	start := time.Now()
	vae, show, err := o.openVAE(ctx, stderr, o.json)
	if err != nil {
		return err
	}
	defer show.close()
	loaded := time.Now()
	scale := vae.ScaleFactor()
	h, w := tensor.Shape[len(tensor.Shape)-2], tensor.Shape[len(tensor.Shape)-1]
	if w == 0 || h > picture.MaxPixels/scale/scale/w {
		return usageErrorf("%s: tensor %s of shape %v would be a picture of %dx%d pixels (the limit is %d million in all)",
			ref.File, quote.Printable(tensor.Name), tensor.Shape, w*scale, h*scale, picture.MaxPixels/1_000_000)
	}
	warnMemory(ctx, warnings{above{show, stderr}}, vae, h*scale, w*scale)
	latents, err := readLatents(ref)
	if err != nil {
		return err
	}
	show.report(gomflux.Progress{Phase: gomflux.PhaseDecode})
	decode := vae.Decode
	if o.unscaled {
		decode = vae.DecodeUnscaled
	}
	img, err := decode(ctx, latents)
	if errors.Is(err, gomflux.ErrRequest) {
		return usageErrorf("%s: tensor %s: %w", ref.File, quote.Printable(tensor.Name), err)
	}
	if err != nil {
		return modelError(err)
	}
	decoded := time.Now()
	name, err := saver{overwrite: o.overwrite}.save(ctx, output, img)
	if err != nil {
		return err
	}
	saved := time.Now()
	show.close()
	peak, err := peakMemory(ctx)
	if err != nil {
		return err
	}

	size := img.Bounds().Size()
	if o.json {
		type jsonTimes struct {
			Load   float64 `json:"load"`
			Decode float64 `json:"decode"`
			Save   float64 `json:"save"`
		}
		return writeJSON(stdout, struct {
			File       string      `json:"file"`
			Width      int         `json:"width"`
			Height     int         `json:"height"`
			Latents    jsonLatents `json:"latents"`
			Unscaled   bool        `json:"unscaled"`
			Device     string      `json:"device"`
			Dtype      string      `json:"dtype"`
			Seconds    jsonTimes   `json:"seconds"`
			PeakMemory int         `json:"peak_memory_bytes"`
		}{
			name, size.X, size.Y, jsonLatents{ref.File, tensor.Name, string(tensor.Dtype), tensor.Shape}, o.unscaled, string(vae.Device()), string(vae.Dtype()),
			jsonTimes{milliseconds(loaded.Sub(start)), milliseconds(decoded.Sub(loaded)), milliseconds(saved.Sub(decoded))}, peak,
		})
	}
	fmt.Fprintf(stderr, "%dx%d from %v, load %s, decode %s, peak memory %s\n", size.X, size.Y, tensor.Shape, seconds(loaded.Sub(start)), seconds(decoded.Sub(loaded)), units.Bytes(int64(peak)))
	_, err = fmt.Fprintln(stdout, name)
	return err
}

type jsonLatents struct {
	File   string `json:"file"`
	Tensor string `json:"tensor"`
	Dtype  string `json:"dtype"`
	Shape  []int  `json:"shape"`
}

// openVAE loads the autoencoder that the flags name. The display shows how it
// is loaded and is still there after that.
func (m *modelFlags) openVAE(ctx context.Context, stderr io.Writer, quiet bool) (*gomflux.VAE, *display, error) {
	source, err := m.find()
	if err != nil {
		return nil, nil, err
	}
	if _, err := m.checkLibrary(ctx, warnings{stderr}); err != nil {
		return nil, nil, err
	}
	show := &display{}
	if !quiet {
		show = newDisplay(ctx, stderr, nil)
	}
	open := m.openOptions()
	open.Progress = show.report
	vae, err := source.OpenVAE(ctx, open)
	if err != nil {
		show.close()
		return nil, nil, coded(exitModel, modelError(err))
	}
	return vae, show, nil
}

// warnMemory says in advance that decoding may fail, or end with the system
// ending the program.
func warnMemory(ctx context.Context, w warner, vae *gomflux.VAE, height, width int) {
	device, err := mlx.ParseDevice(string(vae.Device()))
	if err != nil {
		return
	}
	consequence := "the system may end the program"
	if device == mlx.GPU {
		consequence = "it may fail"
	}
	var free int64
	mlx.Do(ctx, func() error {
		free = mlx.FreeMemory(device)
		return nil
	})
	if text := memoryWarning(vae.DecodeMemory(height, width), free, height, width); text != "" {
		w.warn("%s: %s", text, consequence)
	}
}

// memoryWarning compares what decoding needs, in strips where memory is short,
// with what is free, in bytes, 0 where that is not known.
func memoryWarning(need, free int64, height, width int) string {
	if free == 0 || need <= free {
		return ""
	}
	return fmt.Sprintf("to decode a picture of %dx%d takes about %s of memory, even in strips, and %s are free", width, height, units.Bytes(need), units.Bytes(free))
}

// peakMemory is the most that MLX's arrays took, in bytes.
func peakMemory(ctx context.Context) (n int, err error) {
	err = mlx.Do(ctx, func() error {
		n = mlx.PeakMemory()
		return nil
	})
	return n, err
}

// openLatents opens the file of FILE[:TENSOR] and chooses the tensor, whose
// shape and dtype can be those of latents.
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
		return ref, info, fmt.Errorf("%s: tensor %s has the shape %v, expected [C, h, w] or [1, C, h, w] as latents of one picture have", ref.File, name, info.Shape)
	}
	if d := cmp.Or(ref.Cast, info.Dtype); !slices.Contains([]checkpoint.Dtype{checkpoint.F32, checkpoint.F16, checkpoint.BF16}, d) {
		return ref, info, fmt.Errorf("%s: tensor %s has the dtype %s, expected F32, F16 or BF16", ref.File, name, d)
	}
	return ref, info, nil
}

// readLatents reads a tensor and makes sure that all of it are numbers.
func readLatents(ref checkpoint.Reference) (gomflux.Latents, error) {
	t, err := ref.Read()
	if err != nil {
		return gomflux.Latents{}, err
	}
	if s := t.Stats(); !s.Finite() {
		return gomflux.Latents{}, usageErrorf("%s: tensor %s: %d of %d values are NaN or infinite (what made them went wrong; half precision may have overflowed)", ref.File, quote.Printable(ref.Key), s.NaN+s.Inf, t.Len())
	}
	return gomflux.Latents{Shape: t.Shape, Data: t.Float32s()}, nil
}
