// Package lora reads LoRAs, finds the parameters that their tensors change, and
// changes them: in the weights while these are loaded, or beside the layers while
// the model runs.
//
// It reads safetensors files under the names of diffusers and PEFT, kohya-ss'
// sd-scripts, LyCORIS, ComfyUI, and of the models' makers, with LoRA, DoRA, LoKr,
// LoHa and plain differences in them. The order of LoRAs counts for DoRA only.
package lora

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A Set is LoRAs that were found to fit a model. Their files stay open until
// Close.
type Set struct {
	files   []*file
	reports []Report
	// updates are by component and by parameter, in the order of the LoRAs.
	updates map[string]map[string][]*update
	// baked are the parameters that were changed when they were loaded, by component.
	baked map[string]map[string]bool
}

// A Report is what was found in one LoRA.
type Report struct {
	Path  string
	Scale float64
	// Modules is how many modules it changes of the components.
	Modules map[string]int
	// Unused are its tensors for layers of a text encoder that come behind all that
	// the pipeline uses of it.
	Unused []string
}

// Load opens LoRAs and finds what their tensors change. It reads their headers,
// their scales, and as much as shows that they change something. Errors are an
// [*Error]: tensors that fit nothing are an [*UnmatchedError] in it, others name file
// and tensor, what was expected and what was found. The hints tell what a LoRA that
// fits nothing seems to be for.
func Load(specs []Spec, components []Component, hints ...Hint) (*Set, error) {
	s := &Set{updates: map[string]map[string][]*update{}, baked: map[string]map[string]bool{}}
	var known []*component
	for _, c := range components {
		known = append(known, newComponent(c))
	}
	// a name without a prefix is the transformer's, if it has it
	slices.SortStableFunc(known, func(a, b *component) int { return a.rank() - b.rank() })
	var errs []error
	for _, spec := range specs {
		f, err := open(spec)
		if err == nil {
			s.files = append(s.files, f)
			err = s.add(spec, f, known, hints)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &Error{errors.Join(err, s.Close())}
	}
	return s, nil
}

// Close closes the files. Nothing can be baked or attached then.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Reports says what was found, LoRA by LoRA.
func (s *Set) Reports() []Report { return s.reports }

// add finds what the tensors of a file change.
func (s *Set) add(spec Spec, f *file, components []*component, hints []Hint) error {
	type found struct {
		component *component
		name      string // with dots, without a prefix
	}
	modules, where := map[string]map[part]*tensor{}, map[string]found{}
	var unmatched, unused []string
	for _, name := range f.Header.Names {
		raw, p, ok := parseKey(name)
		if !ok {
			unmatched = append(unmatched, name)
			continue
		}
		if modules[raw] == nil {
			modules[raw] = map[part]*tensor{}
			for _, c := range components {
				if name := c.find(raw); name != "" {
					where[raw] = found{c, name}
					break
				}
			}
		}
		if where[raw].component == nil {
			if slices.ContainsFunc(components, func(c *component) bool { return c.unused(raw) }) {
				unused = append(unused, name)
			} else {
				unmatched = append(unmatched, name)
			}
			continue
		}
		if before := modules[raw][p]; before != nil {
			return fmt.Errorf("LoRA %s: tensors %s and %s are both %s of %s", f.Name, quote.Name(before.Name), quote.Name(name), p, quote.Name(raw))
		}
		modules[raw][p] = f.tensor(name)
	}
	if len(f.Header.Names) == 0 {
		return fmt.Errorf("LoRA %s: the file has no tensors", f.Name)
	}
	if len(where) == 0 {
		unmatched = append(unmatched, unused...)
	}
	if len(unmatched) > 0 {
		return newUnmatchedError(f, unmatched, components, hints)
	}

	report := Report{Path: spec.Path, Scale: spec.Scale, Modules: map[string]int{}, Unused: unused}
	var errs []error
	var all []*update
	for _, raw := range slices.Sorted(maps.Keys(where)) {
		in := where[raw]
		updates, err := f.module(raw, in.name, in.component, modules[raw])
		for _, u := range updates {
			err = errors.Join(err, s.enter(in.component.Name, u))
		}
		all = append(all, updates...)
		errs = append(errs, err)
		report.Modules[in.component.Name]++
	}
	s.reports = append(s.reports, report)
	if err := first(errs, 5); err != nil {
		if !slices.ContainsFunc(errs, func(err error) bool { _, ok := errors.AsType[*sizeError](err); return !ok }) {
			err = fmt.Errorf("%w\n\tno change has the size of its weight: it seems to be for a model of another size", err)
		}
		return err
	}
	for _, u := range all {
		if zero, err := u.zero(); err != nil || !zero {
			return err
		}
	}
	return fmt.Errorf("LoRA %s: changes nothing: all its values are 0, as before a training", f.Name)
}

// enter puts an update to those of its parameter, of which a file has only one.
func (s *Set) enter(component string, u *update) error {
	if s.updates[component] == nil {
		s.updates[component] = map[string][]*update{}
	}
	list := s.updates[component][u.Name]
	for _, before := range list {
		if before.file == u.file {
			return fmt.Errorf("LoRA %s: %s and %s both change %s of the %s", u.file.Name, quote.Name(before.module), quote.Name(u.module), u.Name, component)
		}
	}
	s.updates[component][u.Name] = append(list, u)
	return nil
}

// first joins errors, at most that many of them.
func first(errs []error, most int) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if n := len(errs); n > most {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", n-most))
	}
	return errors.Join(errs...)
}

// Changes says whether a parameter of a component is changed.
func (s *Set) Changes(component, parameter string) bool {
	return len(s.updates[component][parameter]) > 0
}

// Bake returns what changes the parameters of a component while they are loaded,
// nil if no LoRA changes any. It gets a parameter as it is in memory, but in
// float32, and returns it changed, or as it is; what is wrong with a file it
// throws ([mlx.Throw]). It must be called on the MLX thread.
func (s *Set) Bake(component string) func(p nn.Parameter, w *mlx.Array) *mlx.Array {
	return s.bake(component, func(*update) bool { return true })
}

// BakeFixed is [Set.Bake] for what [Set.Attach] cannot do: the parameters that are
// none of a linear layer, and DoRA along the inputs.
func (s *Set) BakeFixed(component string) func(p nn.Parameter, w *mlx.Array) *mlx.Array {
	return s.bake(component, (*update).fixed)
}

func (s *Set) bake(component string, takes func(*update) bool) func(p nn.Parameter, w *mlx.Array) *mlx.Array {
	done := map[string]bool{}
	s.baked[component] = done
	all := s.updates[component]
	chosen := map[string]bool{}
	for name, list := range all {
		if slices.ContainsFunc(list, takes) {
			chosen[name] = true
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	return func(p nn.Parameter, w *mlx.Array) *mlx.Array {
		if !chosen[p.Name] {
			return w
		}
		before := w
		for _, u := range all[p.Name] {
			w = mlx.Scope(func() *mlx.Array { return u.bake(w, before) })
		}
		if !w.AllFinite() && before.AllFinite() {
			throw("LoRA %s: makes values of %s in the %s NaN or infinite", names(all[p.Name]), p.Name, component)
		}
		done[p.Name] = true
		return w
	}
}

// Attach puts adapters beside the linear layers of a loaded component, for all
// changes that were not baked when it was loaded: none after [Set.Bake], except
// those of weights that the checkpoint has quantized. Adapters of an earlier
// Attach are dropped. It throws what cannot be done. It must run on the MLX
// thread.
func (s *Set) Attach(component string, model any) {
	s.Detach(model)
	layers := nn.Linears(model)
	parameters := slices.Collect(maps.Keys(s.updates[component]))
	slices.SortFunc(parameters, func(a, b string) int { // biases last, because DoRA multiplies what is before it
		return cmp.Or(cmp.Compare(path.Ext(b), path.Ext(a)), cmp.Compare(a, b))
	})
	for _, name := range parameters {
		if s.baked[component][name] {
			continue
		}
		list := s.updates[component][name]
		layer := layers[strings.TrimSuffix(name, path.Ext(name))]
		for _, u := range list {
			if layer == nil || u.fixed() {
				throw("LoRA %s: %s cannot run beside %s of the %s, only be added to it while it is loaded, if it is not quantized yet",
					u.file.Name, quote.Name(u.module), name, component)
			}
			layer.Adapters = append(layer.Adapters, u.attach(s, layer))
		}
	}
}

// Detach drops the adapters that Attach put to a model, and frees them.
func (s *Set) Detach(model any) {
	for _, layer := range nn.Linears(model) {
		layer.Adapters = slices.DeleteFunc(layer.Adapters, func(a nn.Adapter) bool {
			mine, ok := a.(*adapter)
			if ok = ok && mine.set == s; ok {
				for _, array := range mine.arrays {
					array.Free()
				}
			}
			return ok
		})
	}
}

// names are those of the files that updates are from.
func names(list []*update) string {
	var out []string
	for _, u := range list {
		out = append(out, u.file.Name)
	}
	return strings.Join(out, ", ")
}
