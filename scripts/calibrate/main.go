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
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
)

// options are the options of the command line.
type options struct {
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	_, err := mlx.Open()
	if err == nil {
		err = mlx.Do(ctx, func() error { return calibrate(flag.Arg(0), o) })
	}
	if err != nil {
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

// calibrate measures a model with constants that can be changed, and prints the fitted ones.
func calibrate(folder string, o options) (err error) {
	b := &bench{trial: map[*component.Class]component.BlockMemory{}}
	o.load.BlockMemory = b.blocks
	before := settled()
	if b.Pipeline, err = models.Load(os.DirFS(folder), o.load); err != nil {
		return err
	}
	defer b.Close()
	b.weights = settled() - before
	runs, err := b.measure(o)
	if err != nil {
		return err
	}
	for _, c := range b.Components() {
		if c.Class.Role == component.Transformer || c.Class.Role == component.TextEncoder {
			b.report(os.Stdout, c, runs)
		}
	}
	return nil
}

// report fits a component's constants and writes them with the errors of the estimates.
func (b *bench) report(w io.Writer, c component.Component, runs []*measured) {
	standard, width, phase := component.DefaultBlockMemory(c.Model), float64(component.Width(c.Model)), phaseOf(c)
	if width == 0 {
		fmt.Fprintf(w, "%s has no blocks.\n\n", c.Class.Name)
		return
	}
	loss := func(s component.BlockMemory) float64 { return squares(b.off(c, s, runs)) }
	if loss(standard) == loss(component.BlockMemory{Blocks: standard.Blocks, Heads: standard.Heads}) {
		fmt.Fprintf(w, "%s is not fitted: another text encoder takes more in all runs.\n\n", c.Class.Name)
		return
	}
	e := runs[0].run.Estimate()
	cpu := b.Device() == mlx.CPU
	fmt.Fprintf(w, "%s, %s: %d runs on the %v in %v, width %.0f\n\n", c.Class.Name, phase, len(runs), e.Device, e.Dtype, width)

	first, own := standard, standard
	if c.Class.Blocks != nil { // with the heads and blocks of the config
		own = c.Class.Blocks(c.Model)
		first.Blocks, first.Heads = own.Blocks, own.Heads
	}
	fitted := fit(first, knobs(cpu, width), loss)
	fmt.Fprintf(w, "\t%s\n\n", literal(fitted, width, cpu))

	columns := [][]float64{b.off(c, fitted, runs)}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	fmt.Fprint(t, "run\tpeak\tfitted\t")
	if c.Class.Blocks != nil {
		columns = append(columns, b.off(c, own, runs))
		fmt.Fprint(t, "class\t")
	}
	columns = append(columns, b.off(c, standard, runs))
	fmt.Fprint(t, "default\t")
	row := func(name string, value func(errors []float64) float64) {
		fmt.Fprintf(t, "\n%s\t", name)
		for _, c := range columns {
			fmt.Fprintf(t, "%+.1f %%\t", 100*value(c))
		}
	}
	for i, m := range runs {
		row(fmt.Sprintf("%s\t%.1f MB", m.name, float64(m.peaks[phase])/1e6), func(errors []float64) float64 { return errors[i] })
	}
	row("mean square\t", squares)
	row("worst\t", func(errors []float64) float64 {
		return slices.MaxFunc(errors, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	})
	fmt.Fprint(t, "\n\n")
}

// literal returns the constants that are fitted on a device as a Go literal, relative to the width
// w.
func literal(s component.BlockMemory, width float64, cpu bool) string {
	if !cpu {
		return fmt.Sprintf("component.BlockMemory{Blocks: %d, Heads: %d, Written: %.3g * w, Read: %.3g * w}", s.Blocks, s.Heads,
			s.Written/width, s.Read/width)
	}
	return fmt.Sprintf("component.BlockMemory{Blocks: %d, Heads: %d, Live: %.3g * w, Scores: %.3g, Cast: %.3g, CastAlone: %.3g}",
		s.Blocks, s.Heads, s.Live/width, s.Scores, s.Cast, s.CastAlone)
}
