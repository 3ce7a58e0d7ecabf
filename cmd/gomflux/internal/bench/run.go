package bench

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/tuning"
)

// Defaults of gomflux bench. The speed of a step does not depend on their number.
const (
	benchSteps        = 4
	benchPromptTokens = 32
	benchPrompt       = "a red circle left of a blue square"
)

// A benchmark is a run of gomflux bench.
type benchmark struct {
	*benchOptions
	out      *ui.Output
	progress *ui.Progress
	pipeline *models.Pipeline
	group    *mlx.Group // of this process and others, nil if it is alone
	report   benchReport

	times map[string][]float64 // in seconds, by phase; the first is that of the first run
}

// run measures everything.
func (b *benchmark) run(ctx context.Context) error {
	fsys, defaults, err := b.findModel()
	if err != nil {
		return err
	}
	lib, err := b.OpenTuned(ctx, b.out, nil)
	if err != nil {
		return err
	}
	if err := b.join(ctx); err != nil {
		return err
	}
	b.times, b.report.Versions = map[string][]float64{}, newBenchVersions(lib)
	b.progress = b.out.StartProgress(ctx)
	defer b.progress.Close()
	if n := b.textTokens.OrZero(); n > 0 {
		err = b.text(ctx, fsys, n)
	} else {
		err = b.image(ctx, fsys, defaults)
	}
	if err != nil {
		return err
	}
	b.report.finish(b.times)
	b.report.share = b.share
	return nil
}

// join connects the command with the others that were started together with it, of which rank 0 prints the results.
func (b *benchmark) join(ctx context.Context) (err error) {
	if _, b.group, err = cli.JoinEngine(ctx, b.split.Value, b.out); err != nil || b.group == nil {
		return err
	}
	if b.textTokens.Given() {
		return cli.UsageErrorf("--text-tokens needs a process that is alone (leave it out, or start one process)")
	}
	b.profile.OfRank(b.group.Rank())
	b.report.Processes = b.group.Size()
	return nil
}

// image measures the generation of an image.
func (b *benchmark) image(ctx context.Context, fsys fs.FS, defaults *family.Defaults) error {
	if err := b.load(ctx, fsys, defaults); err != nil {
		return cli.Coded(cli.ExitModel, cli.ModelError(err))
	}
	defer b.pipeline.Close()
	return cli.ModelError(b.measure(ctx))
}

// findModel finds the files of the model.
func (b *benchmark) findModel() (fs.FS, *family.Defaults, error) {
	r := &b.report
	if b.random == "" {
		s, err := b.Find()
		if err != nil {
			return nil, nil, err
		}
		if err := s.Err(); err != nil {
			return nil, nil, cli.Coded(cli.ExitModel, err)
		}
		r.Model = cmp.Or(b.ModelFlags.Model, b.Fallback)
		return s.FS(), (*family.Defaults)(s.Defaults()), nil
	}
	s, err := catalog.FindConfigs(b.random)
	if err != nil && b.textTokens.Given() { // a language model in a folder of its own
		if folder, noFolder := catalog.Find(b.random); noFolder == nil {
			s, err = folder, nil
		}
	}
	if err != nil {
		return nil, nil, cli.Coded(cli.ExitModel, err)
	}
	r.Model, r.Random = b.random, true
	return s.FS, s.Defaults, nil
}

// loadOptions returns the options with which any model is loaded.
func (b *benchmark) loadOptions() (o models.LoadOptions, err error) {
	o.Progress = b.show
	o.Warn = func(message string) { mlx.Call(func() { b.out.Warn("%s", message) }) }
	if o.Device, o.Dtype, err = b.Place(); err != nil {
		return o, err
	}
	if q := b.quantize.OrZero(); q != "" {
		if o.Quantize, err = component.ParseQuantization(string(q), 0); err != nil {
			return o, err
		}
	}
	if b.random != "" {
		o.Random = &models.Random{Dtype: checkpoint.BF16, PromptTokens: b.promptTokens.OrElse(benchPromptTokens)}
		if o.Dtype != nil {
			o.Random.Dtype, _ = nn.FileDtype(*o.Dtype)
		}
	}
	return o, nil
}

// load loads the model, or draws its weights.
func (b *benchmark) load(ctx context.Context, fsys fs.FS, defaults *family.Defaults) error {
	o, err := b.loadOptions()
	if err != nil {
		return err
	}
	o.Defaults, o.LowRAM, o.Group = defaults, b.lowRAM, b.group
	o.Requests = func(p *models.Pipeline) []models.Request { return []models.Request{b.request(p, 0)} }
	start := time.Now()
	err = mlx.Do(ctx, func() (err error) {
		if b.pipeline, err = models.Load(fsys, o); err != nil {
			return err
		}
		b.add("load", time.Since(start))
		b.report.fileBytes = b.pipeline.FileBytes()
		r, err := b.pipeline.Prepare(b.request(b.pipeline, 0), 1)
		if err != nil {
			return err
		}
		b.describe(r)
		return nil
	})
	return err
}

// describe fills in what is known before the model runs.
func (b *benchmark) describe(run *models.Run) {
	r, e := &b.report, run.Estimate()
	b.describeModel(b.pipeline.Class)
	r.LowRAM = e.LowRAM
	r.Height, r.Width, r.Steps, r.Guidance = run.Height, run.Width, run.Steps, run.Guidance
	r.Interval, r.StepCache = run.GuidanceInterval, run.StepCache
	r.ImageTokens, r.References, r.Inpaint = run.ImageTokens(), len(run.Request.References), run.Request.Inpaint != nil
	r.Weights, r.Split = e.AllWeights(), run.Split
}

// describeModel fills in what is known of any loaded model.
func (b *benchmark) describeModel(class string) {
	r, device := &b.report, b.pipeline.Device()
	r.Class, r.Device, r.Dtype, r.Tuning = class, device.String(), b.pipeline.Dtype().String(), tuning.InUse(device).String()
	r.Quantize, r.Repeat = string(b.quantize.OrZero()), b.repeat
	r.Versions.MLX, r.Machine = mlx.Version(), cli.NewMachine(device)
}

// request returns the request of a run. Each has another prompt and other reference images, since
// encodings are cached; prompts have the same number of tokens.
func (b *benchmark) request(p *models.Pipeline, run int) models.Request {
	d := p.Defaults
	r := models.Request{
		Prompt: fmt.Sprintf("%s %d", benchPrompt, run%10), NegativePrompt: fmt.Sprintf("%s %d", benchPrompt, (run+5)%10),
		Height: cmp.Or(b.height.OrZero(), d.Height), Width: cmp.Or(b.width.OrZero(), d.Width),
		Steps: cmp.Or(b.steps.OrZero(), min(d.Steps, benchSteps)), Guidance: b.guidance.OrElse(d.Guidance),
		MaxSequenceLength: d.MaxSequenceLength, Progress: b.show,
	}
	r.GuidanceInterval, r.StepCache, r.Split = b.interval.OrZero(), b.stepCache.String(), string(b.split.OrZero())
	n := p.LeastReferences()
	if b.inpaint {
		n = max(n-1, 0) // an editor sees the image to inpaint as its first reference image
	}
	random := rand.New(rand.NewPCG(uint64(run), 0))
	draw := func() *image.RGBA {
		img := image.NewRGBA(image.Rect(0, 0, r.Width, r.Height))
		for i := range img.Pix {
			img.Pix[i] = uint8(random.Uint32())
		}
		return img
	}
	for range b.references.OrElse(n) {
		r.References = append(r.References, draw())
	}
	if r.Inpaint = p.LeastInpaint(draw()); b.inpaint {
		r.Inpaint = models.HalfInpaint(draw())
	}
	return r
}

// measure runs the model.
func (b *benchmark) measure(ctx context.Context) error {
	before, err := b.matmul(ctx)
	if err != nil {
		return err
	}
	for i := range b.repeat + 1 {
		if err := b.generate(ctx, i); err != nil {
			return err
		}
	}
	after, err := b.matmul(ctx)
	b.report.Matmul = max(before, after)
	if err != nil || b.profile.File == "" {
		return err
	}
	return b.profiled(ctx)
}

// generate runs the model once.
func (b *benchmark) generate(ctx context.Context, run int) error {
	request := b.request(b.pipeline, run)
	var steps []time.Duration
	var last time.Time
	made, received := 0, int64(0)
	request.Progress = func(p models.Progress) {
		if p.Phase == models.PhaseStep {
			if p.Step > 0 {
				steps = append(steps, time.Since(last))
			}
			if run == 0 && p.Step < 2 {
				b.report.operations, made = mlx.Made()-made, mlx.Made()
				b.report.Exchanged, received = b.group.Received()-received, b.group.Received()
			}
		}
		b.show(p)
		last = time.Now()
	}
	return mlx.Do(ctx, func() error {
		prepared, err := b.pipeline.Prepare(request, 1)
		if err != nil {
			return err
		}
		results, err := prepared.Generate([]uint64{0})
		if err != nil {
			return err
		}
		result, all := results[0], time.Duration(0)
		b.add("encode", result.Encode-result.References)
		if len(prepared.Request.References) > 0 {
			b.add("references", result.References)
		}
		for _, d := range steps {
			all += d
		}
		for _, d := range measuredSteps(run, steps) {
			b.add("step", d)
		}
		if b.unequalSteps() {
			b.add("steps", all)
		}
		b.report.Skipped, b.report.SkippedNegative = result.Skipped, result.SkippedNegative
		b.add("decode", result.Decode)
		b.add("image", result.Encode+all+result.Decode)
		b.report.PeakMemory = max(b.report.PeakMemory, result.PeakMemory)
		b.report.Estimated, b.report.Compiled, b.report.PromptTokens = result.EstimatedMemory, result.Compiled, result.PromptTokens
		if b.report.decodeFLOPs = prepared.DecodeFLOPs(); b.report.stepFLOPs == 0 && !b.unequalSteps() {
			b.report.stepFLOPs, _ = prepared.StepFLOPs(result.PromptTokens)
		}
		return nil
	})
}

// unequalSteps reports whether some steps leave out work that others do, so that the time of one
// step does not describe a run.
func (b *benchmark) unequalSteps() bool { return b.interval.Given() || b.stepCache.Given() }

// measuredSteps returns the times of the steps of a run that are reported: the first one of the
// first run, and of later runs all but the first, which compiles.
func measuredSteps(run int, steps []time.Duration) []time.Duration {
	switch {
	case run == 0:
		return steps[:1]
	case len(steps) == 1:
		return steps
	}
	return steps[1:]
}

// add adds a time of a phase.
func (b *benchmark) add(phase string, d time.Duration) {
	b.times[phase] = append(b.times[phase], d.Seconds())
}

// show shows the progress of loading or generating.
func (b *benchmark) show(p models.Progress) {
	mlx.Call(func() { b.progress.Report(publicProgress(p)) })
}

// publicProgress returns the progress as the public API has it.
func publicProgress(p models.Progress) gomflux.Progress {
	return gomflux.Progress{
		Phase: gomflux.Phase(p.Phase), Component: p.Component, Bytes: p.Bytes, TotalBytes: p.TotalBytes, Step: p.Step, Steps: p.Steps,
	}
}

// matmul measures the product of two large square matrices, in TFLOP/s.
func (b *benchmark) matmul(ctx context.Context) (tflops float64, err error) {
	device, dtype := b.pipeline.Device(), b.pipeline.Dtype()
	n := 8192
	switch {
	case device == mlx.CPU && dtype != mlx.Float32:
		n = 512 // half precision is slow on the CPU
	case device == mlx.CPU:
		n = 2048
	}
	b.report.MatmulSize = n
	err = mlx.Do(ctx, func() error {
		if err := mlx.Use(device); err != nil {
			return err
		}
		tflops = models.ProductSpeed(dtype, n, 5) / 1e12
		mlx.ClearCache()
		return nil
	})
	return tflops, err
}
