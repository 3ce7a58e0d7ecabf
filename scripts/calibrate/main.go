// Command calibrate fits the constants of the memory model for a model's components to the memory
// that its runs take on this machine:
//
//	go run ./scripts/calibrate [flags] FOLDER
//
// A component class without constants uses component.DefaultBlockMemory, whose estimates are off by
// a quarter at most for the existing models. Constants of its own make the estimates better, and
// with them the choices that follow, such as whether only one component is in memory at a time.
//
// The model runs a single step at several sizes, with several batch sizes, and with prompts of
// several lengths, and the peak memory of encoding and of the step is measured (mlx.PeakMemory).
// Then the constants are searched with which Run.Estimate is closest to these peaks, by least
// squares of relative errors: on the CPU Live, Scores, Cast and CastAlone, on a GPU Written and
// Read. For each component the command prints the value for component.Class.Blocks, where w is the
// model's width, and the errors of the estimates with it, with the class's current constants, and
// with the default.
//
// Constants on which no run depends keep their default. On the CPU, weights that are cast or
// dequantized help to fit Cast (-quantize 4, or files in bfloat16), and large images help to fit
// Scores. A GPU needs a large model, since it finishes a small one before MLX has queued much work.
// On CUDA the memory that MLX allocates ahead of the work is limited in the estimate as in the run,
// so runs at the limit do not help. If two text encoders run, the peak is that of the larger one,
// and the other one is not fitted.
//
// Other work on the machine changes the peaks in both directions: MLX may allocate less, or free
// memory later. Every run is repeated, and the median of its peaks is used.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
)

// options are the options of the command line.
type options struct {
	folder  string
	load    models.LoadOptions
	sizes   []int // sides of images; empty: fractions of the model's default
	batches []int
	repeats int
}

func main() {
	o := options{batches: []int{1, 2, 4}}
	flag.Func("device", "cpu or gpu (default: a GPU if there is one)", parsed(&o.load.Device, mlx.ParseDevice))
	flag.Func("dtype", "float32, bfloat16 or float16 (default: the device's)", parsed(&o.load.Dtype, mlx.ParseDtype))
	flag.Func("quantize", "3, 4, 5, 6, 8, mxfp4, mxfp8 or nvfp4", func(s string) (err error) {
		o.load.Quantize, err = component.ParseQuantization(s, 0)
		return err
	})
	flag.Func("sizes", "`sides` of images, separated by commas "+
		"(default: a quarter, half and all of the model's default size, on the CPU at most 256)", numbers(&o.sizes))
	flag.Func("batches", "batch sizes, as `numbers` separated by commas (default 1,2,4)", numbers(&o.batches))
	flag.IntVar(&o.repeats, "repeats", 3, "number of times that each run is measured")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: calibrate [flags] FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || o.repeats < 1 {
		flag.Usage()
		os.Exit(2)
	}
	o.folder = flag.Arg(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := calibrate(ctx, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "calibrate:", err)
		os.Exit(1)
	}
}

// parsed sets an option to what is parsed.
func parsed[T any](option **T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		*option = &v
		return err
	}
}

// numbers parses positive numbers that are separated by commas.
func numbers(list *[]int) func(string) error {
	return func(s string) error {
		*list = nil
		for _, word := range strings.Split(s, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a positive number", word)
			}
			*list = append(*list, n)
		}
		return nil
	}
}

// calibrate measures the model and writes the fitted constants.
func calibrate(ctx context.Context, w io.Writer, o options) error {
	if _, err := mlx.Open(); err != nil {
		return err
	}
	return mlx.Do(ctx, func() error {
		bench, err := load(o)
		if err != nil {
			return err
		}
		defer bench.Close()
		runs, err := bench.measure(o)
		if err != nil {
			return err
		}
		for _, c := range bench.Components() {
			if c.Class.Role == component.Transformer || c.Class.Role == component.TextEncoder {
				bench.report(w, c, runs)
			}
		}
		return nil
	})
}

// load loads the model with constants that can be changed.
func load(o options) (*bench, error) {
	b := &bench{trial: map[*component.Class]component.BlockMemory{}}
	o.load.BlockMemory = b.stack
	var err error
	before := settled()
	if b.Pipeline, err = models.Load(os.DirFS(o.folder), o.load); err != nil {
		return nil, err
	}
	b.weights = settled() - before
	return b, nil
}
