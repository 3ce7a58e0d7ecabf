package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// Replay runs the settings of the dump in a folder again and compares every
// tensor that both have.
//
// The isolated reading puts the reference's tensor in the place of every one
// that was compared. It makes one pass for each depth of the module tree that
// the dump has, in which the modules inside those of that depth run freely, so
// that a module's error is that of all it consists of; in the last pass nothing
// runs freely, and a module's error is that of its own arithmetic.
func Replay(ctx context.Context, run string, o Options) (*Report, error) {
	if len(o.Readings) == 0 {
		o.Readings = []string{Free, Isolated}
	}
	for _, reading := range o.Readings {
		if reading != Free && reading != Isolated {
			return nil, fmt.Errorf("unknown reading %q, expected %s or %s", reading, Free, Isolated)
		}
	}
	if o.Tolerances == nil {
		o.Tolerances = DefaultTable()
	}
	var report *Report
	err := mlx.Do(ctx, func() error {
		ref, err := OpenRun(os.DirFS(run))
		if err != nil {
			return err
		}
		for _, folder := range o.more {
			other, err := OpenRun(os.DirFS(folder))
			if err == nil {
				err = ref.add(other)
			}
			if err != nil {
				return fmt.Errorf("%s, for more of %s: %w", folder, run, err)
			}
		}
		r := &replay{Options: o, ref: ref, run: run, entries: map[string]*Tensor{}}
		if err := r.load(); err != nil {
			return err
		}
		defer r.pipeline.Close()
		if err := r.passes(); err != nil {
			return err
		}
		report = r.report()
		return nil
	})
	return report, err
}

func (r *replay) load() error {
	var err error
	if r.model, r.fsys, err = r.find(); err != nil {
		return err
	}
	r.pipeline, err = models.Load(r.fsys, models.LoadOptions{Device: r.Device, Dtype: r.Dtype, Quantize: r.Quantize, LoRAs: r.LoRAs, RuntimeLoRA: r.RuntimeLoRA})
	if err != nil {
		return err
	}
	if r.absent, err = absentFrom(r.fsys, r.pipeline.Components()); err != nil {
		return err
	}
	s := r.ref.Settings
	r.request = models.Request{
		Prompt: s.Prompt, Height: s.Height, Width: s.Width, Steps: s.Steps, Guidance: s.Guidance, Seed: s.Seed,
		MaxSequenceLength: s.MaxSequenceLength, Scheduler: s.Scheduler, ImageStrength: s.ImageStrength,
	}
	switch {
	case s.NegativePrompt != nil:
		r.request.NegativePrompt = *s.NegativePrompt
	case family.Find(r.pipeline.Class).NeedsNegativePrompt:
		r.request.Guidance = min(r.request.Guidance, 1) // which guides nothing
	}
	switch noise := r.ref.Array("latents.init"); {
	case noise != nil && noise.Ndim() > 1:
		r.request.Latents = models.Latents{Shape: noise.Shape()[1:], Data: noise.Floats()}
	default:
		r.request.RNG = cmp.Or(s.RNG, "torch") // as diffusers draws it for the seed
	}
	if s.Picture != "" {
		if r.request.Image, err = r.picture(s.Picture); err != nil {
			return err
		}
	}
	for _, name := range s.References {
		img, err := r.picture(name)
		if err != nil {
			return err
		}
		r.request.References = append(r.request.References, img)
	}
	if err := r.pipeline.Check(r.request); err != nil {
		return fmt.Errorf("run %s: %w: %w", r.run, ErrRun, err)
	}
	r.passNames = passNames{r.ref, r.ref.batched() && r.pipeline.UsesNegativePrompt(r.request)}
	return nil
}

// find finds the model: the one that was asked for, or the one that the dump
// was made with.
func (r *replay) find() (string, fs.FS, error) {
	name := r.Options.Model
	if name == "" {
		if name = r.ref.Model; name == "" {
			return "", nil, fmt.Errorf("run %s: its settings name no model (--model says which one)", r.run)
		}
		for _, up := range []string{".", "..", "../.."} {
			if folder := filepath.Join(r.run, up, name); !filepath.IsAbs(name) && disk.IsFolder(folder) {
				name = folder
				break
			}
		}
	}
	if !disk.IsFolder(name) {
		source, err := catalog.Find(name)
		if err != nil {
			return "", nil, err
		}
		return name, source.FS, nil
	}
	folder, err := checkpoint.OpenFolder(name)
	return name, folder, err
}

// picture reads what the run started from, or was shown: a file in the run's
// folder, or beside it.
func (r *replay) picture(name string) (image.Image, error) {
	file := filepath.Join(r.run, name)
	if filepath.IsAbs(name) {
		file = name
	} else if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		file = filepath.Join(r.run, "..", name)
	}
	p, err := picture.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return p.Image, nil
}

// passes makes them all.
func (r *replay) passes() error {
	var plan []pass
	if slices.Contains(r.Readings, Free) {
		plan = append(plan, pass{reading: Free})
	}
	if slices.Contains(r.Readings, Isolated) {
		for _, depth := range r.depths() {
			plan = append(plan, pass{reading: Isolated, depth: depth})
		}
		plan[len(plan)-1].last = true
	}
	if r.quick {
		plan = plan[len(plan)-1:]
	}
	for i, p := range plan {
		if r.Progress != nil {
			r.Progress(i+1, len(plan))
		}
		if err := r.once(p); err != nil {
			return err
		}
	}
	return nil
}

// depths are those of the modules in the dump.
func (r *replay) depths() []int {
	depths := []int{0}
	for _, name := range r.ref.Names() {
		if n, err := hooks.ParseName(name); err == nil && n.Point.Kind != hooks.Input {
			depths = append(depths, depth(n.Module))
		}
	}
	slices.Sort(depths)
	return slices.Compact(depths)
}

// depth is how far a module is below its component. Values of the pipeline are
// above all modules.
func depth(module string) int {
	if !inside.MatchString(module) {
		return 0
	}
	return strings.Count(module, ".")
}

func (r *replay) once(p pass) error {
	r.pass, r.visited, r.whole, r.order, r.first, r.seeking = p, map[string]bool{}, map[string]bool{}, 0, -1, 4
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
		out, err := r.look(tap, positive[made])
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
	res, err := r.pipeline.Generate(request)
	if _, ok := errors.AsType[*models.NotFiniteError](err); ok {
		return nil // there is no picture, and what made it so has been compared
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", r.run, err)
	}
	if p.reading == Free || r.ours == nil {
		r.ours = nil
		for i := 0; i < len(res.Image.Pix); i += 4 {
			r.ours = append(r.ours, res.Image.Pix[i:i+3]...)
		}
	}
	return nil
}

// look compares what a tap has, and returns what should take its place.
func (r *replay) look(tap hooks.Tap, positive int) (replacement *mlx.Array, err error) {
	own := r.ownPass()
	for t := range tap.All() {
		if t.Point.Kind != hooks.Output && !own {
			continue
		}
		if name := r.name(nameOf(t), t.Negative, positive); r.isThere(name, t) {
			if x := r.compare(name, t); t.Point == tap.Point { // inputs are what they are
				replacement = x
			}
		}
		if t.Point.Key != hooks.Weights {
			continue
		}
		entropy := t
		entropy.Point.Key = hooks.Entropy
		if name := r.name(nameOf(entropy), t.Negative, positive); r.isThere(name, entropy) {
			r.compare(name, t.Entropy())
		}
	}
	if tap.Point.OnRequest() {
		return nil, nil // nothing is computed from it
	}
	return replacement, nil
}

// ownPass says whether this pass looks at everything.
func (r *replay) ownPass() bool {
	return r.pass.last || r.pass.reading == Free && !slices.Contains(r.Readings, Isolated)
}

// isThere says whether the reference has a tensor. Around a module that is not
// there, others are looked at with all that is in them.
func (r *replay) isThere(name string, tap hooks.Tap) bool {
	r.visited[name] = true
	there := r.ref.Array(name) != nil || r.ref.Array(name+":samples") != nil
	if r.ownPass() {
		wanted := !tap.Point.OnRequest() && r.absent.untapped(name) == ""
		r.sights = append(r.sights, sight{tap.FullName(), name, tap.Point.Kind, depth(tap.Name), there, wanted})
	}
	if there {
		return true
	}
	if tap.Point.Kind == hooks.Output {
		for around := parentOf(tap.Name); around != ""; around = parentOf(around) {
			r.whole[fmt.Sprint(around, "@", tap.Step)] = true
		}
		r.whole[stageOf(tap.FullName())] = true
	}
	return false
}

// compare measures a tensor, and returns what takes its place in this pass.
func (r *replay) compare(name string, tap hooks.Tap) *mlx.Array {
	got, want := tap.Output, r.ref.Array(name)
	ours := tap.FullName()
	t := r.entries[ours]
	if t == nil {
		t = &Tensor{Name: ours, Kind: tap.Point.Kind.String(), Stage: stageOf(ours), Module: moduleOf(ours), Dtype: got.Dtype().String(), Shape: got.Shape()}
		if name != ours {
			t.Reference = name
		}
		r.entries[ours] = t
	}
	r.order++
	t.Order = r.order
	t.RefDtype = r.ref.dtypes[r.ref.stored(name)]
	if want == nil { // samples
		at := r.ref.Array(name + ":positions").Int32s()
		t.RefDtype, t.RefShape = r.ref.dtypes[r.ref.stored(name+":samples")], r.ref.Shapes[name]
		if t.shapes() {
			all := got.Floats()
			some := make([]float32, len(at))
			for i, p := range at {
				if p < 0 || int(p) >= len(all) {
					mlx.Throw(fmt.Errorf("run %s: %s:positions has %d, expected 0 to %d", r.run, name, p, len(all)-1))
				}
				some[i] = all[p]
			}
			r.read(t, some, r.ref.Array(name+":samples").Floats(), nil)
		}
		return nil
	}
	want = r.onePass(want, nameOf(tap), tap.Negative, got.Shape())
	t.RefShape = want.Shape()
	if !t.shapes() {
		t.Guess, t.Hints = guessShape(got, want), r.shapeHints(name, got, want)
		t.Got, t.Ref = first(got.Floats()), first(want.Floats())
		return nil
	}
	forced := r.pass.reading == Isolated && (r.pass.last || depth(tap.Name) <= r.pass.depth)
	if r.pass.reading == Isolated && !r.pass.last && depth(tap.Name) != r.pass.depth {
		if forced {
			return want.AsType(got.Dtype())
		}
		return nil
	}
	g, w := got.Floats(), want.Floats()
	if d := r.read(t, g, w, got.Shape()); !d.OK && r.seeking > 0 && (r.pass.last || !slices.Contains(r.Readings, Isolated)) {
		r.seeking--
		t.Hints = r.hints(name, tap, got, want)
	}
	if forced && !ofPictures(tap.Name) {
		return want.AsType(got.Dtype())
	}
	return nil
}

// ofPictures reports whether a value must belong to the pictures that are shown, so
// that the reference's cannot take its place where those are others.
func ofPictures(name string) bool {
	return strings.HasSuffix(name, ".input_ids") || name == "vision.grid_thw"
}

// read makes the reading of this pass. Values that are samples have no shape.
func (r *replay) read(t *Tensor, got, want []float32, shape []int) *Reading {
	reading := r.pass.reading
	if value := !inside.MatchString(t.moduleName()); r.pass.last && !r.whole[t.at()] && !(value && r.whole[t.Stage]) {
		reading = Own
	}
	tolerance := r.Tolerances.For(r.pipeline.Device().Backend(), r.pipeline.Dtype().String(), stageKey(t.Stage), reading, t.Name)
	d := newReading(t.Name, got, want, shape, tolerance)
	t.Got, t.Ref = first(got), first(want)
	t.Histogram = histogram(got, want)
	if r.pass.reading == Free {
		t.Free = d
	} else {
		if shape != nil && t.Kind == hooks.Output.String() && (!r.pass.last || depth(t.moduleName()) == r.pass.depth) {
			t.Isolated = d
		}
		if r.pass.last || shape == nil {
			t.Own = d
		}
	}
	return d
}

// newReading compares a tensor's values, of a shape that is nil for samples, and
// judges them.
func newReading(name string, got, want []float32, shape []int, tolerance Tolerance) *Reading {
	d := &Reading{Difference: Compare(got, want), Tolerance: tolerance}
	if axis := channelAxis(name, shape); axis >= 0 && len(want) > 0 {
		d.channels(got, want, shape, axis)
	}
	d.count(got, want, tolerance.ATol, tolerance.RTol)
	if name == "image" && tolerance.OffByOne > 0 {
		d.OK = offByOne(got, want, tolerance.OffByOne)
	} else {
		d.OK = d.Within(tolerance)
	}
	return d
}

// offByOne lets a part of the values differ by 1, by rounding, and two of any
// picture, however small.
func offByOne(got, want []float32, part float64) bool {
	off := 0
	for i, w := range want {
		switch e := math.Abs(float64(got[i]) - float64(w)); {
		case !(e <= 1):
			return false
		case e != 0:
			off++
		}
	}
	return float64(off) <= max(2, part*float64(len(want)))
}

func first(values []float32) []float64 {
	out := make([]float64, min(10, len(values)))
	for i := range out {
		out[i] = float64(values[i])
	}
	return out
}

// pixels are the names of 8-bit pictures.
var pixels = regexp.MustCompile(`^image(\.in|\.condition)?(#\d+)?$`)

// channelAxis is the axis of features: behind the batch in pictures, the last
// one of tokens. -1 is none.
func channelAxis(name string, shape []int) int {
	switch {
	case len(shape) < 2 || pixels.MatchString(name) || strings.Contains(name, ".input_ids"):
		return -1
	case len(shape) == 4 && !strings.HasPrefix(name, "t"), len(shape) == 3 && strings.Contains(name, "group_norm"), len(shape) == 5:
		return 1
	case len(shape) == 4 && (strings.HasPrefix(name, "transformer@")):
		return 0
	}
	return len(shape) - 1
}

func (r *replay) report() *Report {
	rep := &Report{
		Run: r.run, Model: r.model, Device: r.pipeline.Device().String(), Dtype: r.pipeline.Dtype().String(), RefDtype: r.ref.Compute,
		Readings: r.Readings, FirstStep: r.first, RefFirstStep: r.ref.FirstStep, replayed: true,
	}
	for _, t := range r.entries {
		rep.Tensors = append(rep.Tensors, t)
	}
	slices.SortFunc(rep.Tensors, func(a, b *Tensor) int { return cmp.Compare(a.Order, b.Order) })
	full := slices.Contains(r.Readings, Isolated) || len(r.Readings) == 1
	for _, name := range r.ref.Names() {
		if !full || r.visited[name] {
			continue
		}
		if reason := r.absent.untapped(name); reason != "" {
			rep.leaveOut(name, reason)
		} else {
			rep.Missing = append(rep.Missing, name)
		}
	}
	if img := r.ref.Array("image"); img != nil && img.Size() == len(r.ours) {
		rep.ours, rep.reference, rep.Width, rep.Height = r.ours, img.Uint8s(), r.ref.Width, r.ref.Height
	}
	rep.sights = r.sights
	rep.judge()
	rep.Verdict.unseen = len(rep.ask(nil)) > 0
	if n, err := hooks.ParseName(rep.Verdict.Module); err == nil && !rep.Verdict.OK && r.whole[fmt.Sprint(n.Module, "@", n.Step)] {
		step := ""
		if n.Step >= 0 {
			step = fmt.Sprint("@", n.Step)
		}
		rep.Verdict.Ask = []string{n.Module + step + "*", n.Module + ".*" + step + "*"}
	}
	return rep
}
