package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/weights"
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
		Long: `Decode takes latents from a safetensors file, decodes them with the autoencoder
(VAE) of a model, and writes the picture to a file, whose name it prints on
standard output. Nothing else of the model is read, or has to be there: a folder
with only vae in it, or a vae's own folder, is enough.

The file's only tensor is taken or else the one that is named latents; another
one is named after a colon. Its shape is [C, h, w] or [1, C, h, w], its dtype
F32, F16 or BF16. The latents are as diffusers' pipelines return them with
output_type="latent"; those that vae.decode takes, without the model's
scaling_factor and shift_factor, need --unscaled.

A file that is there already is kept: the new one is named latents_1.png and so
on, unless --overwrite is given.

With --json it prints one object: file, width, height, latents (file, tensor,
dtype, shape), unscaled, device, dtype, seconds (load, decode, save),
peak_memory_bytes.
` + exitStatus,
		Example: `  gomflux decode latents.safetensors --model z-image-turbo -o picture.png
  gomflux decode dump.safetensors:step_8 --model ./Z-Image/vae --unscaled`,
		Args: oneFile("a safetensors file with latents"),
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

// oneFile takes one argument.
func oneFile(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usageErrorf("give %s", what)
		case 1:
			return nil
		}
		return usageErrorf("unexpected argument %q", args[1])
	}
}

// warnings go to a writer.
type warnings struct{ io.Writer }

func (w warnings) warn(format string, args ...any) {
	fmt.Fprintf(w, "gomflux: warning: "+format+"\n", args...)
}

func (o *decodeOptions) run(ctx context.Context, arg string, stdout, stderr io.Writer) error {
	file, tensor, err := openLatents(arg)
	if err != nil {
		return coded(exitUsage, err)
	}
	defer file.Close()
	output := o.output
	if output == "" {
		output = strings.TrimSuffix(filepath.Base(file.Name), ".safetensors") + ".png"
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
			file.Name, printable(tensor.Name), tensor.Shape, w*scale, h*scale, picture.MaxPixels/1_000_000)
	}
	warnMemory(warnings{above{show, stderr}}, vae, h*scale, w*scale)
	latents, err := readLatents(ctx, file, tensor)
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
		return usageErrorf("%s: tensor %s: %w", file.Name, printable(tensor.Name), err)
	}
	if err != nil {
		return err
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
			name, size.X, size.Y, jsonLatents{file.Name, tensor.Name, string(tensor.Dtype), tensor.Shape}, o.unscaled, vae.Device(), vae.Dtype(),
			jsonTimes{milliseconds(loaded.Sub(start)), milliseconds(decoded.Sub(loaded)), milliseconds(saved.Sub(decoded))}, peak,
		})
	}
	fmt.Fprintf(stderr, "%dx%d from %v, load %s, decode %s, peak memory %s\n", size.X, size.Y, tensor.Shape, seconds(loaded.Sub(start)), seconds(decoded.Sub(loaded)), bytes(int64(peak)))
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
		show = newDisplay(ctx, stderr)
	}
	open := m.openOptions()
	open.Progress = show.report
	vae, err := gomflux.OpenVAE(ctx, source.Name, open)
	if err != nil {
		show.close()
		return nil, nil, coded(exitModel, modelError(err))
	}
	return vae, show, nil
}

// warnMemory says in advance what would end with the system ending the program.
func warnMemory(w warner, vae *gomflux.VAE, height, width int) {
	need, there := vae.DecodeMemory(height, width), availableMemory()
	if there > 0 && uint64(need) > there {
		w.warn("a picture of %dx%d takes about %s of memory, and %s are free: the system may end the program", width, height, bytes(need), bytes(int64(there)))
	}
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
func openLatents(arg string) (*weights.File, weights.Tensor, error) {
	name, key := splitLatents(arg)
	dir, base := filepath.Split(name)
	if !strings.HasPrefix(dir, string(filepath.Separator)) {
		dir = filepath.Join(".", dir)
	}
	if base == "" || base == "." || base == ".." {
		return nil, weights.Tensor{}, fmt.Errorf("%s: expected a file, found a folder", name)
	}
	file, err := weights.Open(weights.Folder{FS: os.DirFS(dir), Name: dir}, base)
	if err != nil {
		return nil, weights.Tensor{}, err
	}
	tensor, err := chooseTensor(file, key)
	if err != nil {
		file.Close()
		return nil, weights.Tensor{}, fmt.Errorf("%s: %w", file.Name, err)
	}
	return file, tensor, nil
}

// splitLatents splits FILE:TENSOR. Both may have colons.
func splitLatents(arg string) (name, key string) {
	if _, err := os.Stat(arg); err == nil {
		return arg, ""
	}
	const suffix = ".safetensors"
	if i := strings.Index(arg, suffix+":"); i >= 0 {
		return arg[:i+len(suffix)], arg[i+len(suffix)+1:]
	}
	if i := strings.LastIndex(arg, ":"); i > 0 {
		if _, err := os.Stat(arg[:i]); err == nil {
			return arg[:i], arg[i+1:]
		}
	}
	return arg, ""
}

func chooseTensor(file *weights.File, key string) (weights.Tensor, error) {
	names := file.Header.Names
	list := func() string {
		const most = 10
		var all []string
		for _, name := range names[:min(len(names), most)] {
			t := file.Header.Tensors[name]
			all = append(all, fmt.Sprintf("%s %s %v", printable(name), t.Dtype, t.Shape))
		}
		text := strings.Join(all, ", ")
		if len(names) > most {
			text += fmt.Sprintf(" and %d more", len(names)-most)
		}
		return text
	}
	if len(names) == 0 {
		return weights.Tensor{}, errors.New("has no tensors")
	}
	const standard = "latents"
	switch _, ok := file.Header.Tensors[standard]; {
	case key != "":
	case len(names) == 1:
		key = names[0]
	case ok:
		key = standard
	default:
		return weights.Tensor{}, fmt.Errorf("has %d tensors and none is named %s: put :TENSOR behind the file's name, with one of %s", len(names), standard, list())
	}
	t, ok := file.Header.Tensors[key]
	if !ok {
		return t, fmt.Errorf("has no tensor %s, only %s", printable(key), list())
	}
	if n := len(t.Shape); n != 3 && (n != 4 || t.Shape[0] != 1) {
		return t, fmt.Errorf("tensor %s has the shape %v, expected [C, h, w] or [1, C, h, w] as latents of one picture have", printable(key), t.Shape)
	}
	if !slices.Contains([]weights.Dtype{"F32", "F16", "BF16"}, t.Dtype) {
		return t, fmt.Errorf("tensor %s has the dtype %s, expected F32, F16 or BF16", printable(key), t.Dtype)
	}
	return t, nil
}

// readLatents reads a tensor and makes sure that all of it are numbers.
func readLatents(ctx context.Context, file *weights.File, tensor weights.Tensor) (l gomflux.Latents, err error) {
	l.Shape = tensor.Shape
	err = mlx.Do(ctx, func() error {
		path, err := file.Path()
		if err != nil {
			return err
		}
		arrays, err := mlx.LoadSafetensors(path, []string{tensor.Name})
		if err != nil {
			return err
		}
		l.Data = arrays[tensor.Name].AsType(mlx.Float32).Floats()
		info, err := os.Stat(path) // MLX does not notice if a read fails
		if err == nil && info.Size() < file.Header.DataOffset+tensor.End {
			err = errors.New("the file was cut short while it was read")
		}
		return err
	})
	if err != nil {
		return l, fmt.Errorf("%s: tensor %s: %w", file.Name, printable(tensor.Name), err)
	}
	bad := 0
	for _, v := range l.Data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			bad++
		}
	}
	if bad > 0 {
		return l, usageErrorf("%s: tensor %s: %d of %d values are NaN or infinite (what made them went wrong; half precision may have overflowed)", file.Name, printable(tensor.Name), bad, len(l.Data))
	}
	return l, nil
}
