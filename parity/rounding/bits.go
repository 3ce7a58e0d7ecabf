package rounding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
)

// decodedImage is the tensor whose error a search is about: the decoded image before it is rounded to
// 8 bits.
const decodedImage = "vae.decode.out"

// BitsOptions configure [SearchBits].
type BitsOptions struct {
	parity.Options
	// Error is the largest relative L2 error of the decoded image that is allowed.
	Error report.Number
	// Tried is called after every run with low modules, with its error.
	Tried func(runs int, e report.Number)
}

// A BitsReport lists the modules that must keep a higher precision than the others.
type BitsReport struct {
	Run          string        `json:"run"`
	Model        string        `json:"model"`
	Device       string        `json:"device"`
	Dtype        string        `json:"dtype"`                  // of low modules
	Quantization string        `json:"quantization,omitempty"` // of the weights of low modules
	KeptDtype    string        `json:"kept_dtype"`             // of the modules that are kept
	Allowed      report.Number `json:"allowed_error"`
	AllLow       report.Number `json:"all_low_error"`  // if all modules are low
	AllKept      report.Number `json:"all_kept_error"` // if all are kept
	Error        report.Number `json:"error"`          // if all but Keep are low
	Modules      int           `json:"modules"`        // that could be low
	Runs         int           `json:"runs"`
	Keep         []Kept        `json:"keep"`
	OK           bool          `json:"ok"` // the allowed error can be reached
}

// A Kept is a module that must be kept, without the modules inside it.
type Kept struct {
	Module string        `json:"module"`
	Error  report.Number `json:"error"` // of the image if only this module is low
}

// ErrMemory is wrapped by errors about comparisons that do not fit into memory.
var ErrMemory = errors.New("not enough memory")

// SearchBits finds a smallest set of modules that must keep a higher precision for the error
// of a run's image to stay within a limit. The truth is the same run in float32; the run's own
// tensors are not needed.
//
// o.Quantize is the quantization of low modules, whose weights alone matter then: all modules are
// in o.Dtype, or float32 if it is nil. Without a quantization low modules are in o.Dtype, and
// those that are kept in float32.
//
// Low precision is computed with the model in float32, so that each run may have other low
// modules. Weights are cast to the dtype, or quantized and dequantized. A module's outputs, and the
// q, k and v of attention, are cast to the dtype, in which they may overflow, and back.
//
// The search measures the error of every block if it alone is low, makes as many blocks low as the
// limit allows, those with the smallest errors first, and repeats this with the parts of the
// blocks that are left. No single module of the result could be low as well, as far as its error
// adds to that of the others like an independent one.
func SearchBits(ctx context.Context, run string, o BitsOptions) (rep *BitsReport, err error) {
	err = mlx.Do(ctx, func() error {
		s := &bitsSearch{BitsOptions: o, run: run, quantization: o.Quantize, dtype: mlx.Float32, low: map[string]bool{}}
		if o.Dtype != nil {
			s.dtype = *o.Dtype
		}
		exact, inFloat32 := mlx.Float32, o.Options
		inFloat32.Dtype, inFloat32.Quantize = &exact, nil
		if s.Prepared, err = parity.Prepare(run, inFloat32); err != nil {
			return err
		}
		defer s.Pipeline.Close()
		rep, err = s.search()
		return err
	})
	return rep, err
}

// A bitsSearch is a search in progress.
type bitsSearch struct {
	BitsOptions
	*parity.Prepared
	run          string
	quantization *mlx.Quantization // of low modules, or nil
	dtype        mlx.Dtype         // of low modules; with a quantization, of all
	parameters   []*parameter
	lowValues    map[*parameter]*mlx.Array
	low          map[string]bool // modules
	truth        []float32
	runs         int
}

func (s *bitsSearch) search() (*BitsReport, error) {
	r := &BitsReport{
		Run: s.run, Model: s.Prepared.Model, Device: s.Pipeline.Device().String(), Dtype: s.dtype.String(), KeptDtype: "float32",
		Allowed: s.Error, Keep: []Kept{},
	}
	if s.quantization != nil {
		r.Quantization, r.KeptDtype = component.QuantizationName(*s.quantization), r.Dtype
	}
	modules := map[string]bool{}
	var err error
	if s.truth, err = s.generate(func(tap hooks.Tap) *mlx.Array {
		if s.quantization == nil && report.IsModule(tap.Name) {
			modules[tap.Name] = true
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if s.truth == nil {
		return nil, fmt.Errorf("run %s: %w: the image is not finite in float32", s.run, parity.ErrRun)
	}
	if err := s.lowerParameters(modules); err != nil {
		return nil, err
	}
	all := group{modules: slices.SortedFunc(maps.Keys(modules), report.CompareNames)}
	r.Modules = len(all.modules)
	if r.AllKept, err = s.errorOf(); err != nil {
		return nil, err
	}
	if r.AllLow, err = s.errorOf(all); err != nil {
		return nil, err
	}
	switch {
	case r.AllLow <= s.Error:
		r.Error, r.OK = r.AllLow, true
	case r.AllKept > s.Error:
		r.Error = r.AllKept
	default:
		r.OK = true
		err = s.narrow(r, all)
	}
	r.Runs = s.runs
	return r, err
}

// lowerParameters computes the values of parameters in low modules, and adds these to modules.
func (s *bitsSearch) lowerParameters(modules map[string]bool) error {
	if name := notLoaded(s.Pipeline); name != "" {
		return fmt.Errorf("%w: the search needs the whole model in float32, and %s is loaded only while it runs", ErrMemory, name)
	}
	s.parameters = parametersOf(s.Pipeline, s.quantization)
	s.lowValues = map[*parameter]*mlx.Array{}
	lowers := func(p *parameter) bool { return s.quantization == nil || p.quantization != nil }
	var need int64
	for _, p := range s.parameters {
		if lowers(p) {
			need += int64(p.original.Size()) * int64(s.dtype.ItemSize())
		}
	}
	if err := checkRoom(need, mlx.FreeMemory(s.Pipeline.Device())); err != nil {
		return err
	}
	for _, p := range s.parameters {
		if lowers(p) {
			s.lowValues[p] = p.lowered(s.dtype)
			modules[p.module] = true
		}
		if s.quantization != nil {
			p.original = p.cast(s.dtype)
		}
	}
	if len(modules) == 0 {
		return fmt.Errorf("model %s: %w: none of its weights can be quantized (in its files they are already quantized, or too small)",
			s.Prepared.Model, parity.ErrRun)
	}
	return nil
}

// checkRoom returns an error if a copy of the weights does not fit into the free memory, in bytes,
// which is 0 if it is unknown.
func checkRoom(need, free int64) error {
	if free == 0 || need <= free {
		return nil
	}
	return fmt.Errorf("%w: the search needs %s more for a copy of the weights, and %s are free", ErrMemory,
		units.Gigabytes(need), units.Gigabytes(free))
}

// generate makes the run and returns the decoded image, or nil if the image is not finite. The
// hook sees all other tensors.
func (s *bitsSearch) generate(hook func(hooks.Tap) *mlx.Array) (values []float32, err error) {
	request, finite := s.Request, true
	request.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
		if tap.Name == decodedImage {
			values = tap.Output.Floats()
		} else if tap.Name != "latents" {
			return hook(tap), nil
		}
		if tap.Output.AllFinite() {
			return nil, nil
		}
		finite = false
		return mlx.Zeros(tap.Output.Dtype(), tap.Output.Shape()...), nil // to end without an error
	}
	if _, err = s.Pipeline.Generate(request); err != nil {
		return nil, fmt.Errorf("run %s: %w", s.run, err)
	}
	if !finite {
		return nil, nil
	}
	return values, nil
}

// errorOf returns the error of the image if the modules of some groups are low, besides those that
// already are. It is infinite if the image is not finite.
func (s *bitsSearch) errorOf(groups ...group) (report.Number, error) {
	low := maps.Clone(s.low)
	lower(low, groups...)
	for _, p := range s.parameters {
		p.set(p.original)
		if low[p.module] && s.lowValues[p] != nil {
			p.set(s.lowValues[p])
		}
	}
	values, err := s.generate(func(tap hooks.Tap) *mlx.Array {
		cast := s.quantization != nil && report.IsModule(tap.Name) || low[tap.Name]
		if d := tap.Output.Dtype(); cast && s.dtype != mlx.Float32 && d == mlx.Float32 && !tap.Point.OnRequest() {
			return tap.Output.AsType(s.dtype).AsType(d)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	e := report.Infinite
	if values != nil {
		e = report.RelativeL2(values, s.truth)
	}
	s.runs++
	if s.Tried != nil {
		s.Tried(s.runs, e)
	}
	return e, nil
}

// narrow makes as many modules low as the limit allows, and reports the others.
func (s *bitsSearch) narrow(r *BitsReport, all group) error {
	r.Error = r.AllKept
	left := all.blocks()
	for {
		if err := s.measure(left); err != nil {
			return err
		}
		cost := func(g group) report.Number { return g.error / report.Number(len(g.modules)) }
		slices.SortStableFunc(left, func(a, b group) int { return cmp.Compare(cost(a), cost(b)) })
		var err error
		if left, err = s.fill(r, left); err != nil {
			return err
		}
		var parts []group
		for _, g := range left {
			parts = append(parts, g.split()...)
		}
		if len(parts) == len(left) {
			break
		}
		left = parts
	}
	for _, g := range left {
		r.Keep = append(r.Keep, Kept{g.modules[0], g.error})
	}
	slices.SortFunc(r.Keep, func(a, b Kept) int { return report.CompareNames(a.Module, b.Module) })
	return nil
}

// measure sets the errors of groups of which each alone is low.
func (s *bitsSearch) measure(groups []group) (err error) {
	low := s.low
	s.low = map[string]bool{}
	defer func() { s.low = low }()
	for i := range groups {
		if groups[i].known {
			continue
		}
		groups[i].known = true
		if groups[i].error, err = s.errorOf(groups[i]); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the first groups low, as many as the limit allows together, and then each of the
// others that it still allows; it does not try those whose error would be far too large. It
// returns the groups that are left.
func (s *bitsSearch) fill(r *BitsReport, groups []group) (left []group, err error) {
	within := func(groups ...group) (bool, error) {
		e, err := s.errorOf(groups...)
		if err == nil && e <= s.Error {
			r.Error = e
			return true, nil
		}
		return false, err
	}
	n, over := 0, len(groups)+1 // as many are within the limit, and over it
	for over-n > 1 {
		middle := (n + over) / 2
		ok, err := within(groups[:middle]...)
		if err != nil {
			return nil, err
		}
		if ok {
			n = middle
		} else {
			over = middle
		}
	}
	lower(s.low, groups[:n]...)
	for _, g := range groups[n:] {
		ok := false
		if math.Hypot(float64(r.Error), float64(g.error)) <= 1.1*float64(s.Error) {
			if ok, err = within(g); err != nil {
				return nil, err
			}
		}
		if ok {
			lower(s.low, g)
		} else {
			left = append(left, g)
		}
	}
	return left, nil
}

// lower adds the modules of groups to those that are low.
func lower(low map[string]bool, groups ...group) {
	for _, g := range groups {
		for _, m := range g.modules {
			low[m] = true
		}
	}
}
