// Command stepcache makes a table of what less work for an image costs and saves: step caches, and
// guidance in a part of the steps.
//
//	go run ./scripts/stepcache [flags] MODEL...
//
// For each model it generates an image with everything computed, and the same image with each of
// the variants: rules as of --step-cache, and intervals as of --guidance-interval, which models
// without classifier-free guidance leave out. A row has the time of all steps and its part of the
// complete run's, how many predictions used the step cache, the relative L2 error of the last
// latents, and the PSNR of the image. Each variant runs twice and the second run counts, since the
// first one compiles.
//
// With -random the weights are drawn at random in the size of a published model (gomflux models
// lists them) or of the configs in a folder. Predictions of random weights change less or more from
// step to step than those of a trained model, so their errors compare rules, not models.
package main

import (
	"context"
	"flag"
	"fmt"
	"image"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	_ "github.com/gomflux/gomflux/models/shapes" // the built-in model
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/scheduler"
)

// options are the options of the command line.
type options struct {
	random   bool
	steps    int
	size     int
	guidance float64 // negative for the model's
	prompt   string
	variants []string
}

func main() {
	o := options{}
	flag.BoolVar(&o.random, "random", false, "draw random weights in the size of the models")
	flag.IntVar(&o.steps, "steps", 0, "denoising steps (default: the model's, at least 20)")
	flag.IntVar(&o.size, "size", 0, "height and width in pixels (default: the model's)")
	flag.Float64Var(&o.guidance, "guidance", -1, "guidance scale (default: the model's)")
	flag.StringVar(&o.prompt, "prompt", "a red circle left of a blue square", "the prompt, without -random")
	variants := flag.String("variants", "first-block:0.05 first-block:0.1 first-block:0.2 0,0.6",
		"`rules` of step caches and guidance intervals, separated by spaces")
	flag.Parse()
	o.variants = strings.Fields(*variants)
	if flag.NArg() == 0 || len(o.variants) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Println("| model | steps | less work | time of the steps | of all | skipped | latents | PSNR |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, name := range flag.Args() {
		if err := mlx.Do(ctx, func() error { return measure(os.Stdout, name, o) }); err != nil {
			fmt.Fprintf(os.Stderr, "stepcache: %s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

// measure writes the rows of a model.
func measure(w io.Writer, name string, o options) error {
	p, err := load(name, o)
	if err != nil {
		return err
	}
	defer p.Close()
	r := request(p, o)
	complete, err := generate(p, r)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| %s | %d | no | %.3g s | | | | |\n", name, r.Steps, complete.time.Seconds())
	for _, variant := range o.variants {
		q := r
		if strings.Contains(variant, ":") {
			q.StepCache = variant
		} else if q.GuidanceInterval, err = scheduler.ParsePart(variant); err != nil {
			return fmt.Errorf("%s: %w", variant, err)
		}
		if q.GuidanceInterval != nil && !p.UsesNegativePrompt(q) {
			continue
		}
		run, err := generate(p, q)
		if err != nil {
			return err
		}
		difference, err := report.CompareImages(run.image, complete.image)
		if err != nil {
			return err
		}
		predictions := r.Steps
		if p.UsesNegativePrompt(r) {
			predictions *= 2
		}
		fmt.Fprintf(w, "| %s | %d | %s | %.3g s | %.0f %% | %d of %d | %.2g | %.1f dB |\n", name, r.Steps, variant, run.time.Seconds(),
			100*run.time.Seconds()/complete.time.Seconds(), run.skipped, predictions, report.RelativeL2(run.latents, complete.latents),
			difference.PSNR)
	}
	return nil
}

// load loads a model, or draws its weights.
func load(name string, o options) (*models.Pipeline, error) {
	find := catalog.Find
	var l models.LoadOptions
	if o.random {
		find = catalog.FindConfigs
		l.Random = &models.Random{Dtype: checkpoint.BF16, PromptTokens: 32}
	}
	s, err := find(name)
	if err != nil {
		return nil, err
	}
	l.Defaults = (*family.Defaults)(s.Defaults)
	l.Requests = func(p *models.Pipeline) []models.Request { return []models.Request{request(p, o)} }
	return models.Load(s.FS, l)
}

// request returns the request with everything computed.
func request(p *models.Pipeline, o options) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: o.prompt, NegativePrompt: d.NegativePrompt, Height: d.Height, Width: d.Width, Steps: max(d.Steps, 20),
		Guidance: d.Guidance, MaxSequenceLength: d.MaxSequenceLength, Seed: 1,
	}
	if o.steps > 0 {
		r.Steps = o.steps
	}
	if o.size > 0 {
		r.Height, r.Width = o.size, o.size
	}
	if o.guidance >= 0 {
		r.Guidance = o.guidance
	}
	for range p.LeastReferences() {
		img := image.NewRGBA(image.Rect(0, 0, r.Width, r.Height))
		for i := range img.Pix {
			img.Pix[i] = uint8(i * 7 / (1 + i%5))
		}
		r.References = append(r.References, img)
	}
	return r
}

// A run is the result of a request.
type run struct {
	time    time.Duration // of all steps
	latents []float32
	image   *image.RGBA
	skipped int // predictions that used the step cache
}

// generate runs a request twice and returns the second result.
func generate(p *models.Pipeline, r models.Request) (out run, err error) {
	r.OnStep = func(s models.Step) error {
		if s.Step == s.Steps {
			out.latents = s.Latents.Data
		}
		return nil
	}
	var result *models.Result
	for range 2 {
		if result, err = p.Generate(r); err != nil {
			return out, err
		}
	}
	out.time, out.image = result.Step, result.Image
	out.skipped = len(result.Skipped) + len(result.SkippedNegative)
	return out, nil
}
