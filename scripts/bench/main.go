// Command bench measures the times of the phases of a run, and compares the speed of a denoising
// step with that of a large matrix product:
//
//	go run ./scripts/bench [--model shapes|FOLDER] [--image FILE]... [--json]
//
// It runs once to warm up. Times are medians over the runs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	_ "github.com/gomflux/gomflux/models/shapes"
	"github.com/gomflux/gomflux/picture"
)

// A report has the results of a benchmark. Times are in seconds.
type report struct {
	Model    string  `json:"model"`
	Class    string  `json:"class"`
	Device   string  `json:"device"`
	Dtype    string  `json:"dtype"`
	Quantize string  `json:"quantize,omitempty"`
	LowRAM   bool    `json:"low_ram,omitempty"`
	MLX      string  `json:"mlx"`
	BLAS     string  `json:"blas"`
	CPUs     int     `json:"cpus"`
	Height   int     `json:"height"`
	Width    int     `json:"width"`
	Steps    int     `json:"steps"`
	Guidance float64 `json:"guidance"`
	Tokens   int     `json:"prompt_tokens"`
	Images   int     `json:"images"`       // reference images
	Image    int     `json:"image_tokens"` // tokens of the image and the reference images
	Runs     int     `json:"runs"`

	Load   float64 `json:"load_s"`
	Encode float64 `json:"encode_s"`
	Step   float64 `json:"step_s"`
	Decode float64 `json:"decode_s"`

	Weights      int     `json:"weights_bytes"`          // in memory after loading
	LoadPeak     int     `json:"load_peak_memory_bytes"` // while they were loaded
	PeakMemory   int     `json:"peak_memory_bytes"`      // of a run
	Estimated    int64   `json:"estimated_memory_bytes"` // estimate of PeakMemory
	StepTFLOP    float64 `json:"step_tflop"`             // operations of a step
	StepTFLOPS   float64 `json:"step_tflop_per_s"`       // speed of a step
	MatmulTFLOPS float64 `json:"matmul_tflop_per_s"`     // speed of a large square product
}

func main() {
	model := flag.String("model", "shapes", "the model, by its name or folder")
	prompt := flag.String("prompt", "a red circle left of a blue square", "the prompt")
	size := flag.Int("size", 0, "height and width in pixels (default: the model's)")
	steps := flag.Int("steps", 0, "denoising steps (default: the model's)")
	guidance := flag.Float64("guidance", -1, "guidance (default: the model's)")
	device := flag.String("device", "", "cpu or gpu")
	dtype := flag.String("dtype", "", "float32, bfloat16 or float16")
	quantize := flag.String("quantize", "", "3, 4, 5, 6, 8, mxfp4, mxfp8 or nvfp4")
	lowRAM := flag.Bool("low-ram", false, "have one component in memory at a time")
	var images []image.Image
	flag.Func("image", "a reference image (repeat for more)", func(name string) error {
		p, err := picture.ReadFile(name)
		if err == nil {
			images = append(images, p.Image)
		}
		return err
	})
	runs := flag.Int("runs", 3, "how many runs to time")
	asJSON := flag.Bool("json", false, "print JSON")
	flag.Parse()
	if flag.NArg() > 0 || *runs < 1 {
		flag.Usage()
		os.Exit(2)
	}
	o := gomflux.Options{Prompt: *prompt, Height: *size, Width: *size, Steps: *steps, Seed: new(uint64), References: images}
	if *guidance >= 0 {
		o.Guidance = guidance
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	open := &gomflux.OpenOptions{Device: gomflux.Device(*device), Dtype: gomflux.Dtype(*dtype),
		Quantize: gomflux.Quantization(*quantize), LowRAM: *lowRAM}
	r, err := bench(ctx, *model, open, o, *runs)
	if err == nil && *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else if err == nil {
		r.print()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, name string, open *gomflux.OpenOptions, o gomflux.Options, runs int) (*report, error) {
	lib, err := mlx.Open()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	source, err := gomflux.Find(name)
	if err != nil {
		return nil, err
	}
	m, err := source.Open(ctx, open)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	r := &report{Model: name, Class: m.Class(), Device: string(m.Device()), Dtype: string(m.Dtype()),
		Quantize: string(open.Quantize), LowRAM: open.LowRAM,
		BLAS: lib.BLAS, CPUs: runtime.NumCPU(), Runs: runs, Load: time.Since(start).Seconds()}
	if err := mlx.Do(ctx, func() error {
		r.Weights, r.LoadPeak = mlx.ActiveMemory(), mlx.PeakMemory()
		return nil
	}); err != nil {
		return nil, err
	}

	if err := r.measure(ctx, m, o); err != nil {
		return nil, err
	}
	flops, err := stepFLOPs(source.FS(), r)
	if err != nil {
		return nil, err
	}
	r.StepTFLOP = flops / 1e12
	r.StepTFLOPS = r.StepTFLOP / r.Step
	r.MatmulTFLOPS, r.MLX, err = matmulCeiling(ctx, r.Device, r.Dtype)
	return r, err
}

// measure runs the model r.Runs times after a run to warm up.
func (r *report) measure(ctx context.Context, m *gomflux.Model, o gomflux.Options) error {
	var encode, step, decode []float64
	prompt := o.Prompt
	for i := range r.Runs + 1 {
		// another prompt each time, since encodings are cached; the negative prompt equals the
		// prompt, so that both passes of a step with guidance take the same time
		o.Prompt = fmt.Sprintf("%s %d", prompt, i%10)
		o.NegativePrompt = o.Prompt
		res, err := m.Generate(ctx, o)
		if err != nil {
			return err
		}
		if i == 0 {
			s := res.Settings
			r.Height, r.Width, r.Steps, r.Guidance, r.Tokens = s.Height, s.Width, s.Steps, s.Guidance, res.TextTokens
			if r.Images, r.Image = len(o.References), r.Height/m.Multiple()*(r.Width/m.Multiple()); r.Images > 0 {
				if r.Image, err = imageTokens(ctx, m, o); err != nil {
					return err
				}
			}
			continue
		}
		encode = append(encode, res.EncodeTime.Seconds())
		step = append(step, res.StepTime.Seconds()/float64(res.Settings.Steps))
		decode = append(decode, res.DecodeTime.Seconds())
		r.PeakMemory, r.Estimated = max(r.PeakMemory, res.PeakMemory), res.EstimatedMemory
	}
	r.Encode, r.Step, r.Decode = median(encode), median(step), median(decode)
	return nil
}

// imageTokens returns the number of tokens of the image and the reference images in the
// transformer's sequence, from a run that ends at the transformer.
func imageTokens(ctx context.Context, m *gomflux.Model, o gomflux.Options) (int, error) {
	seen, n := errors.New("seen"), 0
	o.Hook = func(tap gomflux.Tap) (gomflux.Tensor, error) {
		for _, in := range tap.Inputs {
			if tap.Name == "transformer" && in.Key == "hidden_states" {
				n = in.Shape()[1]
				return nil, seen
			}
		}
		return nil, nil
	}
	if _, err := m.Generate(ctx, o); !errors.Is(err, seen) {
		return 0, fmt.Errorf("found no tokens: %w", err)
	}
	return n, nil
}

// stepFLOPs returns the number of operations of one denoising step of a model folder, including
// both passes of a step with guidance.
func stepFLOPs(fsys fs.FS, r *report) (float64, error) {
	x, err := index.Read(fsys)
	if err != nil {
		return 0, err
	}
	d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
	if err != nil {
		return 0, err
	}
	if c, ok := d.Pipeline.(family.KVCached); ok && r.Images > 0 && c.CacheSize(r.Image) > 0 {
		return 0, fmt.Errorf("no FLOP count for a %s with reference images: its first step does more than the others", d.Class.Name)
	}
	t := d.Transformer()
	if t.Class.FLOPs == nil {
		return 0, fmt.Errorf("no FLOP count for a %s", t.Class.Name)
	}
	flops := t.Class.FLOPs(t.Model, r.Image, r.Tokens)
	guided, err := d.Pipeline.Guidance(r.Guidance)
	if guided {
		flops *= 2
	}
	return flops, err
}

// matmulCeiling measures the product of two large square matrices on a device, in TFLOP/s, and
// returns MLX's version too.
func matmulCeiling(ctx context.Context, device, dtype string) (tflops float64, version string, err error) {
	d, err := mlx.ParseDevice(device)
	if err != nil {
		return 0, "", err
	}
	kind, err := mlx.ParseDtype(dtype)
	if err != nil {
		return 0, "", err
	}
	n := 8192
	switch {
	case d == mlx.CPU && kind != mlx.Float32:
		n = 512 // half precision is slow on the CPU
	case d == mlx.CPU:
		n = 2048
	}
	err = mlx.Do(ctx, func() error {
		version = mlx.Version()
		if err := mlx.Use(d); err != nil {
			return err
		}
		a := mlx.Normal(mlx.Key(1), kind, n, n)
		b := mlx.Normal(mlx.Key(2), kind, n, n)
		mlx.Eval(a, b)
		best := time.Duration(0)
		for i := range 6 {
			start := time.Now()
			mlx.WithScope(func() {
				mlx.Eval(a.Matmul(b))
			})
			// the first one warms up
			if took := time.Since(start); i > 0 && (best == 0 || took < best) {
				best = took
			}
			mlx.StopPoint()
		}
		tflops = 2 * float64(n) * float64(n) * float64(n) / best.Seconds() / 1e12
		return nil
	})
	return tflops, version, err
}

func (r *report) print() {
	blas := ""
	if r.BLAS != "" {
		blas = ", " + r.BLAS
	}
	weights := ""
	if r.Quantize != "" {
		weights = ", weights at " + r.Quantize
	}
	if r.LowRAM {
		weights += ", low RAM"
	}
	fmt.Printf("%s (%s), MLX %s%s, %s in %s%s, %d CPUs\n", r.Model, r.Class, r.MLX, blas, r.Device, r.Dtype, weights, r.CPUs)
	fmt.Printf("%dx%d, %d steps, guidance %g, %d tokens, median of %d runs\n\n", r.Width, r.Height, r.Steps, r.Guidance, r.Tokens, r.Runs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "load\t%.3f s\t%.3f GB\t%.3f GB at most meanwhile\n", r.Load, float64(r.Weights)/1e9, float64(r.LoadPeak)/1e9)
	fmt.Fprintf(w, "encode\t%.3f s\n", r.Encode)
	fmt.Fprintf(w, "one step\t%.3f s\t%.4g TFLOP\t%.4g TFLOP/s\t%.0f %% of a matmul's %.4g TFLOP/s\n",
		r.Step, r.StepTFLOP, r.StepTFLOPS, 100*r.StepTFLOPS/r.MatmulTFLOPS, r.MatmulTFLOPS)
	fmt.Fprintf(w, "all steps\t%.3f s\n", r.Step*float64(r.Steps))
	fmt.Fprintf(w, "decode\t%.3f s\n", r.Decode)
	fmt.Fprintf(w, "peak memory\t%.3f GB\testimated %.3f GB\n", float64(r.PeakMemory)/1e9, float64(r.Estimated)/1e9)
	w.Flush()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
