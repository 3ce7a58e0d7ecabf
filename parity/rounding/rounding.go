// Package rounding is about computing in fewer bits. [Compare] measures how far this program is
// from the exact result, as a multiple of the reference's own rounding errors, and [SearchBits]
// finds the modules that need more bits than the others.
package rounding

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

// MostRounding is the default limit of [Errors.Rounding]: our error as a multiple of the reference's.
const MostRounding = 4

// CompareOptions configure [Compare].
type CompareOptions struct {
	parity.Options
	// Precise is the folder of the same run in float32.
	Precise string
	// Limit is the largest error that is allowed, as a multiple of the reference's; 0 is
	// MostRounding.
	Limit report.Number
}

// A Report compares three runs: a reference in float32, the same reference in fewer bits,
// and ours. Errors are relative L2 errors.
type Report struct {
	Run          string         `json:"run"`
	Precise      string         `json:"precise"`
	Model        string         `json:"model"`
	Device       string         `json:"device"`
	Dtype        string         `json:"dtype"`
	RefDtype     string         `json:"reference_dtype"`
	Quantization string         `json:"quantization,omitempty"`
	Limit        report.Number  `json:"limit"`
	Verdict      report.Verdict `json:"verdict"`
	// Unhooked compares the run without hooks; nil without the reading from the start.
	Unhooked *report.Unhooked `json:"unhooked,omitempty"`
	// Modules have a module's own errors, given the reference's inputs in fewer bits.
	Modules []*Errors `json:"modules,omitempty"`
	// Values have the errors of the pipeline's values from the start of the run.
	Values []*Errors `json:"values"`

	replayed bool // Modules was filled
}

// Errors has the errors of a tensor in ours and in the reference.
type Errors struct {
	Module    string        `json:"module"` // or the value of the pipeline
	Tensor    string        `json:"tensor"` // the module's tensor with the largest multiple
	Stage     string        `json:"stage"`
	Reference report.Number `json:"reference"` // the reference's error
	Ours      report.Number `json:"ours"`
	// Multiple is our error as a multiple of the reference's.
	Multiple report.Number `json:"multiple"`
	// Quantized is the part of quantized weights in our error, as such a multiple, and Rounding
	// the remaining error. Without quantization Rounding is Multiple.
	Quantized report.Number `json:"quantized,omitempty"`
	Rounding  report.Number `json:"rounding"`
	OK        bool          `json:"ok"`
}

// Compare judges a run by the reference's own rounding errors, for which it needs the
// reference's run twice: in the folder run in its usual dtype, and in o.Precise in float32.
//
// It first replays the precise run in float32, which must be within tolerance. So ours in float32
// is exact enough to measure what bfloat16, float16 and quantized weights change: given the inputs
// of each module in run, the errors of the reference's output and of ours are the distances from
// the output in float32. Where the reference hardly rounds, its error counts as a quarter of its
// dtype's unit roundoff, which is less than that of random values.
func Compare(ctx context.Context, run string, o CompareOptions) (*Report, error) {
	o.Limit = cmp.Or(o.Limit, MostRounding)
	if len(o.Readings) == 0 {
		o.Readings = []string{report.Free, report.Isolated}
	}
	settings, err := sameRun(run, o.Precise)
	if err != nil {
		return nil, err
	}
	compute, err := mlx.ParseDtype(settings.Compute)
	if err != nil || compute == mlx.Float32 {
		return nil, fmt.Errorf("run %s: %w: it was computed in %q, expected bfloat16 or float16", run, parity.ErrRun, settings.Compute)
	}
	p := &comparison{CompareOptions: o, run: run, compute: compute, modules: map[string]int{}, report: &Report{
		Run: run, Precise: o.Precise, RefDtype: settings.Compute, Limit: o.Limit, replayed: slices.Contains(o.Readings, report.Isolated),
	}}
	if o.Quantize != nil {
		p.report.Quantization = component.QuantizationName(*o.Quantize)
	}
	if p.report.replayed {
		if ok, err := p.own(ctx); !ok || err != nil {
			return p.report, err
		}
	}
	if err := p.free(ctx); err != nil {
		return nil, err
	}
	p.report.judge()
	return p.report, nil
}

// sameRun checks that two folders have one run, the second in float32, and returns the settings of
// the first.
func sameRun(run, precise string) (low parity.Settings, err error) {
	var exact parity.Settings
	if err := checkpoint.ReadJSON(os.DirFS(run), "settings.json", &low); err != nil {
		return low, err
	}
	if err := checkpoint.ReadJSON(os.DirFS(precise), "settings.json", &exact); err != nil {
		return low, err
	}
	if exact.Compute != "float32" {
		return low, fmt.Errorf("run %s: %w: it was computed in %q, expected float32", precise, parity.ErrRun, exact.Compute)
	}
	text := func(s *string) string {
		if s == nil {
			return "none"
		}
		return *s
	}
	size := func(s parity.Settings) string { return fmt.Sprintf("%dx%d", s.Width, s.Height) }
	for _, c := range []struct {
		what string
		a, b any
	}{
		{"prompt", low.Prompt, exact.Prompt}, {"negative prompt", text(low.NegativePrompt), text(exact.NegativePrompt)},
		{"seed", low.Seed, exact.Seed}, {"steps", low.Steps, exact.Steps}, {"guidance", low.Guidance, exact.Guidance},
		{"size", size(low), size(exact)}, {"scheduler", low.Scheduler, exact.Scheduler},
		{"image strength", low.ImageStrength, exact.ImageStrength},
		{"number of reference images", len(low.References), len(exact.References)},
	} {
		if c.a != c.b {
			return low, fmt.Errorf("run %s: %w: its %s is %v, that of %s is %v (both must be the same run)",
				precise, parity.ErrRun, c.what, c.b, run, c.a)
		}
	}
	return low, nil
}

// A comparison is a three-way comparison in progress.
type comparison struct {
	CompareOptions
	run     string
	compute mlx.Dtype // of run
	report  *Report
	modules map[string]int // index in report.Modules
}

// own measures the errors of modules by themselves. It returns false if float32 differs, with that
// verdict.
func (p *comparison) own(ctx context.Context) (ok bool, err error) {
	o := p.Options
	float32s := mlx.Float32
	o.Dtype, o.Quantize = &float32s, nil
	o.Readings = []string{report.Isolated}
	r, err := parity.Replay(ctx, p.Precise, o)
	if err != nil {
		return false, err
	}
	if !r.Verdict.OK {
		p.report.Model, p.report.Device, p.report.Dtype, p.report.Verdict = r.Model, r.Device, r.Dtype, r.Verdict
		p.report.Verdict.Text = "in float32, before anything is rounded: " + r.Verdict.Text
		return false, nil
	}
	exact, err := p.outputs(ctx, o)
	if err != nil {
		return false, err
	}
	quantized := exact
	if p.Quantize != nil {
		o = onLoaded(o, p.quantizeWeights)
		if quantized, err = p.outputs(ctx, o); err != nil {
			return false, err
		}
	}
	o = p.Options
	o.Readings = []string{report.Isolated}
	o.Measure = func(pair parity.Pair) {
		truth, known := exact[pair.Tensor.Name]
		if !known || !pair.Tap.Output.Dtype().IsFloat() {
			return
		}
		x := newErrors(pair, truth, pair.Reference, p.compute)
		if p.Quantize != nil {
			x.split(truth, quantized[pair.Tensor.Name], pair.Tap.Output.Floats())
		}
		p.add(x)
	}
	if err := p.replay(ctx, p.run, o); err != nil {
		return false, err
	}
	return true, p.report.checkModel()
}

// checkModel returns an error if the reference's errors are not those of rounding, so that its two
// runs are of different models.
func (r *Report) checkModel() error {
	var errors []report.Number
	for _, m := range r.Modules {
		errors = append(errors, m.Reference)
	}
	slices.Sort(errors)
	const most = 0.1 // far more than half precision loses in a module
	if len(errors) > 0 && errors[len(errors)/2] <= most {
		return nil
	}
	return fmt.Errorf("run %s: %w: its modules do not compute those of %s with rounding: the runs are of different models", r.Run,
		parity.ErrRun, r.Precise)
}

// quantizeWeights replaces the weights by what is left of them after they are quantized in the
// dtype of ours.
func (p *comparison) quantizeWeights(pipeline *models.Pipeline) {
	dtype := pipeline.Device().ComputeDtype()
	if p.Dtype != nil {
		dtype = *p.Dtype
	}
	for _, w := range parametersOf(pipeline, p.Quantize) {
		if w.quantization != nil {
			w.set(w.lowered(dtype))
		}
	}
}

// onLoaded returns options that also call f with the loaded pipeline.
func onLoaded(o parity.Options, f func(*models.Pipeline)) parity.Options {
	first := o.Loaded
	o.Loaded = func(p *models.Pipeline) {
		if first != nil {
			first(p)
		}
		f(p)
	}
	return o
}

// outputs returns all tensors that o computes from the inputs of the run, on the host.
func (p *comparison) outputs(ctx context.Context, o parity.Options) (map[string][]float32, error) {
	found := map[string][]float32{}
	o.Measure = func(pair parity.Pair) { found[pair.Tensor.Name] = pair.Tap.Output.Floats() }
	return found, p.replay(ctx, p.run, o)
}

// free measures the errors of the pipeline's values from the start of the run.
func (p *comparison) free(ctx context.Context) error {
	var low *parity.Run
	o := onLoaded(p.Options, func(*models.Pipeline) {
		var err error
		if low, err = parity.OpenRun(os.DirFS(p.run)); err != nil {
			mlx.Throw(err)
		}
	})
	o.Readings = []string{report.Free}
	o.Measure = func(pair parity.Pair) {
		t, tap, want := pair.Tensor, pair.Tap, pair.Reference
		if report.IsModule(tap.Name) || t.Kind != hooks.Output.String() || strings.HasSuffix(tap.Name, ".input_ids") {
			return
		}
		name := cmp.Or(t.Reference, t.Name)
		rounded := low.Array(name)
		if rounded == nil {
			return
		}
		rounded = pair.Cut(rounded)
		if !slices.Equal(rounded.Shape(), want.Shape()) {
			mlx.Throw(fmt.Errorf("%s: %w: %s is %v in %s, and %v in %s: another model", p.Precise, parity.ErrRun, name, want.Shape(),
				p.Precise, rounded.Shape(), p.run))
		}
		p.report.Values = append(p.report.Values, newErrors(pair, want.Floats(), rounded, p.compute))
	}
	return p.replay(ctx, p.Precise, o)
}

// replay replays a run for what o measures.
func (p *comparison) replay(ctx context.Context, run string, o parity.Options) error {
	r, err := parity.Replay(ctx, run, o)
	if err != nil {
		return err
	}
	p.report.Model, p.report.Device, p.report.Dtype = r.Model, r.Device, r.Dtype
	p.report.Unhooked = r.Unhooked
	return nil
}

// newErrors compares the reference's values in fewer bits, and ours, with the exact ones. dtype
// is that of the reference's computation.
func newErrors(pair parity.Pair, exact []float32, reference *mlx.Array, dtype mlx.Dtype) *Errors {
	x := &Errors{Module: pair.Tensor.Module, Tensor: pair.Tensor.Name, Stage: pair.Tensor.Stage}
	x.Reference = max(report.RelativeL2(reference.Floats(), exact), unitRoundoff[dtype]/4)
	x.Ours = report.RelativeL2(pair.Tap.Output.Floats(), exact)
	x.Multiple = multiple(x.Ours, x.Reference)
	x.Rounding = x.Multiple
	return x
}

// split divides our error into that of quantized weights and the rest.
func (x *Errors) split(exact, quantized, ours []float32) {
	x.Quantized = multiple(report.RelativeL2(quantized, exact), x.Reference)
	x.Rounding = multiple(report.RelativeL2(ours, quantized), x.Reference)
}

// multiple returns an error as a multiple of another one.
func multiple(e, of report.Number) report.Number {
	if e == report.Infinite && of == report.Infinite {
		return 1
	}
	return report.Ratio(e, of)
}

// unitRoundoff is the largest relative error of rounding a value to a dtype.
var unitRoundoff = map[mlx.Dtype]report.Number{mlx.BFloat16: 1.0 / (1 << 8), mlx.Float16: 1.0 / (1 << 11)}

// add keeps the largest multiple of each module.
func (p *comparison) add(x *Errors) {
	at, known := p.modules[x.Module]
	switch {
	case !known:
		p.modules[x.Module] = len(p.report.Modules)
		p.report.Modules = append(p.report.Modules, x)
	case x.Rounding > p.report.Modules[at].Rounding:
		p.report.Modules[at] = x
	}
}

func (r *Report) judge() {
	var wrong []*Errors
	all := r.Modules
	if !r.replayed {
		all = r.Values
	}
	for _, x := range all {
		if x.OK = x.Rounding <= r.Limit; !x.OK {
			wrong = append(wrong, x)
		}
	}
	if u := r.Unhooked; len(wrong) == 0 && u != nil && !u.OK {
		r.Verdict = u.Verdict()
		return
	}
	if len(wrong) == 0 {
		r.Verdict = report.Verdict{OK: true, Text: fmt.Sprintf(
			"the rounding errors of all %d modules are at most %g times those of the reference", len(all), r.Limit)}
		return
	}
	x := wrong[0]
	r.Verdict = report.Verdict{Stage: x.Stage, Module: x.Module, Tensor: x.Tensor, Text: fmt.Sprintf(
		"%s is the first with a rounding error above %g times the reference's: %s has %s, the reference %s (%s times)",
		x.Module, r.Limit, x.Tensor, report.ErrorText(x.Ours), report.ErrorText(x.Reference), times(x.Rounding))}
	for _, x := range wrong[1:] {
		r.Verdict.Others = append(r.Verdict.Others, x.Module)
	}
}

func times(m report.Number) string { return fmt.Sprintf("%.3g", m) }
