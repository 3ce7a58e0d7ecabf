package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/parity/hints"
	"github.com/gomflux/gomflux/parity/report"
)

// Replay runs the settings of the dump in a folder again and compares every tensor that both
// runs have.
//
// The isolated reading replaces every tensor that was compared by the reference's. It makes one
// pass for each depth of the module tree that the dump has. In a pass the modules below that
// depth run freely, so a module's error is that of everything inside it. In the last pass
// nothing runs freely, and a module's error is that of its own arithmetic.
func Replay(ctx context.Context, run string, o Options) (rep *report.Report, err error) {
	if len(o.Readings) == 0 {
		o.Readings = []string{report.Free, report.Isolated}
	}
	for _, reading := range o.Readings {
		if reading != report.Free && reading != report.Isolated {
			return nil, fmt.Errorf("unknown reading %q, expected %s or %s", reading, report.Free, report.Isolated)
		}
	}
	if o.Debugger != nil {
		o.Readings = []string{report.Isolated}
	}
	err = mlx.Do(ctx, func() error {
		ref, err := OpenRun(folder(run))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRun, err)
		}
		if err := ref.checkSettings(run); err != nil {
			return err
		}
		for _, more := range o.more {
			other, err := OpenRun(folder(more))
			if err == nil {
				err = ref.add(other)
			}
			if err != nil {
				return fmt.Errorf("%s, with more tensors of %s: %w", more, run, err)
			}
		}
		rep, err = o.replay(run, ref)
		return err
	})
	return rep, err
}

// replay runs the settings of a reference's run, and compares its tensors.
func (o Options) replay(run string, ref *Run) (*report.Report, error) {
	o.Tolerances, o.seen = cmp.Or(o.Tolerances, report.DefaultTable()), cmp.Or(o.seen, new([]seenTensor))
	*o.seen = nil
	r := &replay{Options: o, ref: ref, run: run, entries: map[string]*report.Tensor{}}
	defer r.close()
	if err := r.load(); err != nil {
		return nil, err
	}
	if err := r.passes(); err != nil {
		return nil, err
	}
	if err := ref.end(r.ours != nil); err != nil {
		return nil, err
	}
	return r.report(), nil
}

// A replay is one in progress.
type replay struct {
	Options
	passNames
	run       string
	ref       *Run
	fsys      fs.FS // of the model
	modelName string
	model     interface{ Close() }                         // nil if it was not loaded
	pipeline  *models.Pipeline                             // which has the device and the dtype
	generate  func(models.Request) (*models.Result, error) // with the pipeline, or with what runs in its place
	request   models.Request
	language  *writer // of a run of a language model, nil for others
	untapped  untappedTensors
	parts     standIn // for components that are not there

	entries map[string]*report.Tensor
	ours    []uint8         // pixels of the image
	sought  map[string]bool // kinds of this pass that have been searched for hints

	unhooked    *report.Unhooked // nil without the free reading
	hooked      *trajectory      // the run that it is compared with
	lastLatents string           // name of the last tap of latents in hooked
	forks       map[string]bool  // module and operation of fused operations, true if they compute what they should

	// Of the current pass:
	pass    pass
	visited map[string]bool                // names of the reference's tensors
	judged  map[string]*debugger.Judgement // of calls that are not done, by module
	// incomplete holds the modules (with @STEP) and stages that contain modules that the dump
	// lacks.
	incomplete map[string]bool
	order      int
	first      int // step that ran; -1 before any did
}

// A pass is one run of the model.
type pass struct {
	reading string
	depth   int  // modules down to this depth return the reference's outputs
	last    bool // of all passes
}

// passes runs the model once for each pass.
func (r *replay) passes() error {
	var plan []pass
	if slices.Contains(r.Readings, report.Free) {
		plan = append(plan, pass{reading: report.Free})
	}
	if slices.Contains(r.Readings, report.Isolated) {
		for _, depth := range r.depths() {
			plan = append(plan, pass{reading: report.Isolated, depth: depth})
		}
		plan[len(plan)-1].last = true
	}
	if r.quick || r.Measure != nil || r.Debugger != nil {
		plan = plan[len(plan)-1:]
	}
	runs := len(plan)
	if plan[0].reading == report.Free {
		runs++
	}
	progress := func(n int) {
		if r.Progress != nil {
			r.Progress(n, runs)
		}
	}
	for i, p := range plan {
		progress(i + 1)
		if err := r.once(p); err != nil {
			return err
		}
	}
	if r.unhooked == nil {
		return nil
	}
	progress(runs)
	return r.withoutHooks()
}

// depths returns the depths of the modules in the dump.
func (r *replay) depths() []int {
	depths := []int{0}
	for _, name := range r.ref.moduleNames() {
		if n, err := hooks.ParseName(name); err == nil && n.Point.Kind != hooks.Input {
			depths = append(depths, report.Depth(n.Module))
		}
	}
	slices.Sort(depths)
	return slices.Compact(depths)
}

func (r *replay) once(p pass) error {
	r.pass, r.visited, r.incomplete, r.order, r.first, r.sought = p, map[string]bool{}, map[string]bool{}, 0, -1, map[string]bool{}
	r.judged = map[string]*debugger.Judgement{}
	positive := map[string]int{} // finished calls for the prompt, by name and step
	request := r.request
	request.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
		made := fmt.Sprint(tap.Name, "@", tap.Step)
		if !tap.Negative && tap.Point.Kind == hooks.Output {
			positive[made] = tap.Call + 1
		}
		if tap.Step >= 0 && r.first < 0 {
			r.first = tap.Step
		}
		if r.bug != nil {
			if x := r.bug(r, tap); x != nil {
				tap.Output = x
			}
		}
		var err error
		out := r.look(tap, positive[made])
		if r.Debugger != nil {
			out, err = r.askDebugger(tap, out)
		}
		if r.fault != nil {
			seen := tap
			if out != nil {
				seen.Output = out
			}
			if x := r.fault(r, seen); x != nil {
				out = x
			}
		}
		if out == nil && r.bug != nil {
			out = tap.Output
		}
		return out, err
	}
	if r.language != nil {
		return r.write(request.Hook)
	}
	if p.reading == report.Free {
		r.keepTrajectory(&request)
	}
	res, err := r.generate(request)
	if _, ok := errors.AsType[*models.NotFiniteError](err); ok {
		r.unhooked = nil
		return nil // there is no image, but the module that caused this has been compared
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", r.run, err)
	}
	if p.reading == report.Free || r.ours == nil {
		r.ours = pixels.RGB(res.Image)
	}
	if p.reading == report.Free {
		r.hooked.pixels = r.ours
	}
	return nil
}

// look compares the tensors of a tap, and returns what replaces its output.
func (r *replay) look(tap hooks.Tap, positive int) (replacement *mlx.Array) {
	own := r.ownPass()
	for t := range tap.All() {
		if t.Point.Kind != hooks.Output && !own {
			continue
		}
		if x := r.meet(r.name(nameOf(t), t.Negative, positive), t); t.Point == tap.Point { // inputs cannot be replaced
			replacement = x
		}
		if t.Point.Key != hooks.Weights {
			continue
		}
		entropy := t
		entropy.Point.Key = hooks.Entropy
		if name := r.name(nameOf(entropy), t.Negative, positive); r.isRecorded(name, entropy) {
			r.compare(name, t.Entropy())
		}
	}
	if tap.Point.OnRequest() {
		return nil // nothing is computed from it
	}
	return replacement
}

// meet compares a tensor if the reference has it, and returns what replaces it.
func (r *replay) meet(name string, tap hooks.Tap) *mlx.Array {
	if !r.isRecorded(name, tap) {
		return nil
	}
	defer r.ref.used(name)
	if len(r.parts.absent) > 0 && r.parts.Has(tap.Name, tap.Step) {
		return nil // it is the reference's
	}
	if name == "latents.image" && r.ref.Posterior != "" { // random numbers decide about them
		return r.ref.Array(name).AsType(tap.Output.Dtype())
	}
	return r.compare(name, tap)
}

// ownPass reports whether this pass compares inputs and inner values too.
func (r *replay) ownPass() bool {
	return r.pass.last || r.pass.reading == report.Free && !slices.Contains(r.Readings, report.Isolated)
}

// isRecorded reports whether the reference has a tensor. It marks the modules around one that the
// reference lacks as incomplete: their errors include those of what is inside.
func (r *replay) isRecorded(name string, tap hooks.Tap) bool {
	r.visited[name] = true
	r.ref.await(name)
	recorded := r.ref.Array(name) != nil || r.ref.Array(name+":samples") != nil
	if r.ownPass() {
		recordable := !tap.Point.OnRequest() && r.untapped.reason(name) == ""
		*r.seen = append(*r.seen, seenTensor{tap.FullName(), name, tap.Point.Kind, report.Depth(tap.Name), recorded, recordable})
	}
	if recorded {
		return true
	}
	if tap.Point.Kind == hooks.Output {
		for around := hooks.Parent(tap.Name); around != ""; around = hooks.Parent(around) {
			r.incomplete[fmt.Sprint(around, "@", tap.Step)] = true
		}
		r.incomplete[report.StageOf(tap.FullName())] = true
	}
	return false
}

// compare measures a tensor, and returns what replaces it in this pass.
func (r *replay) compare(name string, tap hooks.Tap) *mlx.Array {
	got, want := tap.Output, r.ref.Array(name)
	t := r.entry(name, tap)
	defer func() { r.noteJudgement(tap, t, want) }()
	if want == nil {
		r.compareSamples(t, name, got)
		return nil
	}
	want = r.onePass(want, nameOf(tap), tap.Negative, got.Shape())
	t.RefDtype, t.RefShape = r.ref.dtypes[r.ref.stored(name)], want.Shape()
	if !t.SameShape() {
		t.ShowShapes(got.Floats(), want.Floats())
		t.Hints = hints.ExplainShapes(r.hintQuestion(name, tap, got, want))
		return nil
	}
	at := report.Depth(tap.Name)
	forced := r.pass.reading == report.Isolated && (r.pass.last || at <= r.pass.depth)
	if r.pass.reading == report.Isolated && !r.pass.last && at != r.pass.depth { // another pass measures it
		if forced {
			return want.AsType(got.Dtype())
		}
		return nil
	}
	if r.Measure != nil {
		r.Measure(Pair{t, tap, want, func(x *mlx.Array) *mlx.Array {
			return r.onePass(x, nameOf(tap), tap.Negative, want.Shape())
		}})
	} else if d := r.read(t, got.Floats(), want.Floats(), got.Shape()); !d.OK &&
		(r.pass.last || !slices.Contains(r.Readings, report.Isolated)) && r.isFirst(t) {
		t.Hints, t.HintLimits = hints.Explain(r.hintQuestion(name, tap, got, want))
	}
	if forced && !ofImages(tap.Name) {
		return want.AsType(got.Dtype())
	}
	return nil
}

// mostSought limits how many tensors of a pass are searched for hints.
const mostSought = 16

// isFirst reports whether a wrong tensor is the first of its kind in this pass: of a module whose
// name differs from earlier ones' not only by numbers, and of its first output, further ones, inputs or inner values.
func (r *replay) isFirst(t *report.Tensor) bool {
	key := report.KindOf(t.Name)
	if r.sought[key] || len(r.sought) == mostSought {
		return false
	}
	r.sought[key] = true
	return true
}

// entry returns the report's entry of a tap, whose name in the reference's run is given.
func (r *replay) entry(name string, tap hooks.Tap) *report.Tensor {
	ours := tap.FullName()
	t := r.entries[ours]
	if t == nil {
		t = report.NewTensor(ours, name)
		t.Dtype, t.Shape = tap.Output.Dtype().String(), tap.Output.Shape()
		r.entries[ours] = t
	}
	r.order++
	t.Order = r.order
	return t
}

// compareSamples compares some values of a tensor of which the reference stores only samples.
func (r *replay) compareSamples(t *report.Tensor, name string, got *mlx.Array) {
	t.RefDtype, t.RefShape = r.ref.dtypes[r.ref.stored(name+":samples")], r.ref.Shapes[name]
	if !t.SameShape() {
		return
	}
	positions := r.ref.Array(name + ":positions").Int32s()
	all, some := got.Floats(), make([]float32, len(positions))
	for i, p := range positions {
		if p < 0 || int(p) >= len(all) {
			mlx.Throw(fmt.Errorf("run %s: %s:positions has %d, expected 0 to %d", r.run, name, p, len(all)-1))
		}
		some[i] = all[p]
	}
	r.read(t, some, r.ref.Array(name+":samples").Floats(), nil)
}

// ofImages reports whether a value must match the run's reference images, so that it cannot be
// replaced by the reference's where the images differ.
func ofImages(name string) bool {
	return strings.HasSuffix(name, ".input_ids") || name == "vision.grid_thw"
}

// read makes the reading of this pass. Samples of a tensor have a nil shape.
func (r *replay) read(t *report.Tensor, got, want []float32, shape []int) *report.Reading {
	reading := r.pass.reading
	if value := !report.IsModule(t.ModuleName()); r.pass.last && !r.incomplete[t.ModuleAtStep()] && !(value && r.incomplete[t.Stage]) {
		reading = report.Own
	}
	d := t.Measure(got, want, shape, r.toleranceOf(t.Name, reading))
	if r.pass.reading == report.Free {
		t.Free = d
	} else {
		if shape != nil && t.Kind == hooks.Output.String() && (!r.pass.last || report.Depth(t.ModuleName()) == r.pass.depth) {
			t.Isolated = d
		}
		if r.pass.last || shape == nil {
			t.Own = d
		}
	}
	return d
}

// toleranceOf returns the tolerance of a tensor of ours.
func (r *replay) toleranceOf(name, reading string) report.Tolerance {
	return r.Tolerances.For(r.pipeline.Device().Backend(), r.pipeline.Dtype().String(), report.StageOf(name), reading, name)
}

// elsewhere returns why another process of the group computes a value of the run, "" if none does.
func (r *replay) elsewhere(name string) string {
	if split, _, err := r.pipeline.SplitOf(&r.request); r.Group == nil || err != nil || split != models.SplitPasses {
		return ""
	}
	prompts := []string{"prompt.", "negative."} // each is that of a half
	if strings.HasPrefix(name, prompts[1-2*r.Group.Rank()/r.Group.Size()]) {
		return "another process computes it"
	}
	return ""
}

func (r *replay) report() *report.Report {
	rep := &report.Report{
		Run: r.run, Model: r.modelName, Device: r.pipeline.Device().String(), Dtype: r.pipeline.Dtype().String(), RefDtype: r.ref.Compute,
		Readings: r.Readings, FirstStep: r.first, RefFirstStep: r.ref.FirstStep, Unhooked: r.unhooked, Replayed: true,
	}
	for _, t := range r.entries {
		rep.Tensors = append(rep.Tensors, t)
	}
	slices.SortFunc(rep.Tensors, func(a, b *report.Tensor) int { return cmp.Compare(a.Order, b.Order) })
	full := slices.Contains(r.Readings, report.Isolated) || len(r.Readings) == 1
	if rep.Absent = r.parts.absent; r.parts.lacks(component.Transformers) {
		rep.RefFirstStep = rep.FirstStep // none
	}
	for _, name := range r.ref.Names() {
		if !full || r.visited[name] {
			continue
		}
		if reason := cmp.Or(r.untapped.reason(name), r.parts.reason(name), r.elsewhere(name)); reason != "" {
			rep.LeaveOut(name, reason)
		} else {
			rep.Missing = append(rep.Missing, name)
		}
	}
	if img := cmp.Or(r.ref.Array(report.PastedValue), r.ref.Array(report.ImageValue)); img != nil && img.Size() == len(r.ours) {
		rep.SetImages(r.ours, img.Uint8s(), img.Dim(1), img.Dim(0))
	}
	rep.Judge()
	rep.Verdict.Unseen = len(nextToRecord(rep.Verdict, *r.seen, nil)) > 0
	if n, err := hooks.ParseName(rep.Verdict.Module); err == nil && !rep.Verdict.OK && r.incomplete[fmt.Sprint(n.Module, "@", n.Step)] {
		step := ""
		if n.Step >= 0 {
			step = fmt.Sprint("@", n.Step)
		}
		rep.Verdict.Ask = []string{n.Module + step + "*", n.Module + ".*" + step + "*"}
	}
	return rep
}
