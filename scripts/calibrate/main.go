// Command calibrate fits the constants by which the memory of a model's runs is
// estimated to what its runs take on this machine:
//
//	go run ./scripts/calibrate [flags] FOLDER
//
// A component class needs none: what has no constants is described by
// component.DefaultStack, which is a quarter off at most for the models that there
// are. Constants of its own make the estimates better, and with them the choices
// that follow from them, such as when one part of the model is in memory at a time.
//
// The model is run at several sizes, for several pictures at once and with prompts
// of several lengths, a step each, and the most memory that encoding and the step
// take is measured (mlx.PeakMemory). Then constants are searched with which
// Run.Estimate is closest to that, by least squares of relative errors: on the CPU
// Alive, Scores, Cast and CastAlone, on a GPU Made and Read. What is printed for each
// component is the stack for component.Class.Blocks, w being the model's width, and
// how far off estimates are: with it, with what the class has now, and with the
// default.
//
// What no run tells apart stays as the default has it. On the CPU, weights that are
// cast or unpacked tell more of Cast (-quantize 4, or files in bfloat16), and large
// pictures of Scores. A GPU needs a large model: it is done with a small one before
// MLX has given it much to do; and what MLX takes in advance on CUDA is limited in
// the estimate as in the run, so that a run at the limit tells nothing. If two text
// encoders run, a peak is that of the larger, and the other one is not fitted.
//
// Other work on the machine makes MLX take less at times, and more at others, when
// what is done is freed late. Every run is repeated, and the median of its peaks
// counts.
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

// options are those of the command line.
type options struct {
	folder   string
	device   string
	dtype    string
	quantize string
	sizes    []int // sides of pictures; none: parts of the model's own
	batches  []int
	repeats  int
}

func main() {
	o := options{batches: []int{1, 2, 4}}
	flag.StringVar(&o.device, "device", "", "cpu or gpu (default: a GPU if there is one)")
	flag.StringVar(&o.dtype, "dtype", "", "float32, bfloat16 or float16 (default: the device's)")
	flag.StringVar(&o.quantize, "quantize", "", "3, 4, 5, 6, 8, mxfp4, mxfp8 or nvfp4")
	flag.Func("sizes", "`sides` of pictures, with commas (default: a quarter, half and all of the model's own, on the CPU of at most 256)", numbers(&o.sizes))
	flag.Func("batches", "how many `pictures` at once, with commas (default 1,2,4)", numbers(&o.batches))
	flag.IntVar(&o.repeats, "repeats", 3, "how often each run is measured")
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

// numbers reads positive numbers with commas between them.
func numbers(list *[]int) func(string) error {
	return func(s string) error {
		*list = nil
		for _, word := range strings.Split(s, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no positive number", word)
			}
			*list = append(*list, n)
		}
		return nil
	}
}

// calibrate measures the model and writes what fits it.
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

// load loads the model with stacks that can be changed.
func load(o options) (*bench, error) {
	b := &bench{trial: map[*component.Class]component.Stack{}}
	to := models.LoadOptions{Stack: b.stack}
	if o.device != "" {
		d, err := mlx.ParseDevice(o.device)
		if err != nil {
			return nil, err
		}
		to.Device = &d
	}
	if o.dtype != "" {
		d, err := mlx.ParseDtype(o.dtype)
		if err != nil {
			return nil, err
		}
		to.Dtype = &d
	}
	if o.quantize != "" {
		q, err := component.ParseQuantization(o.quantize, 0)
		if err != nil {
			return nil, err
		}
		to.Quantize = q
	}
	var err error
	before := settled()
	if b.Pipeline, err = models.Load(os.DirFS(o.folder), to); err != nil {
		return nil, err
	}
	b.weights = settled() - before
	return b, nil
}
