// Package lora reads LoRAs, finds the parameters that their tensors change, and
// applies them: it bakes them into the weights while these are loaded, or computes
// them next to the layers while the model runs.
//
// It reads safetensors files with the tensor names of diffusers and PEFT, kohya-ss'
// sd-scripts, LyCORIS, ComfyUI and the original models. Changes can be LoRA, DoRA,
// LoKr, LoHa and plain differences. The order of several LoRAs matters for DoRA only.
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

// A Set is a set of LoRAs that fit a model. Their files stay open until Close.
type Set struct {
	files   []*file
	reports []Report
	// updates has the changes by component and parameter, in the order of the LoRAs.
	updates map[string]map[string][]*update
	// baked has the parameters that were changed while they were loaded, by component.
	baked map[string]map[string]bool
}

// A Report describes one LoRA.
type Report struct {
	Path  string
	Scale float64
	// Modules is the number of modules that the LoRA changes, by component.
	Modules map[string]int
	// Unused lists tensors for the last layers of a text encoder, whose output the
	// pipeline does not use.
	Unused []string
	// Warnings describe tensors that were left out, each in one line.
	Warnings []string
}

// Load opens LoRAs and finds the parameters that their tensors change. It reads their
// headers and scales, and enough of the tensors to know that not all of them are zero.
// An error is an [*Error]. It wraps an [*UnmatchedError] if tensors match no layer; in
// that case hints are used to guess the model that the LoRA is for.
func Load(specs []Spec, components []Component, hints ...Hint) (*Set, error) {
	s := &Set{updates: map[string]map[string][]*update{}, baked: map[string]map[string]bool{}}
	var known []*component
	for _, c := range components {
		known = append(known, newComponent(c))
	}
	// the transformer comes first: names without a prefix are usually its modules
	slices.SortStableFunc(known, func(a, b *component) int { return a.searchOrder() - b.searchOrder() })
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

// Close closes the files. Afterwards nothing can be baked or attached.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Reports describes the LoRAs.
func (s *Set) Reports() []Report { return s.reports }

// add adds the updates of a file.
func (s *Set) add(spec Spec, f *file, components []*component, hints []Hint) error {
	matched, err := f.match(components)
	if err != nil {
		return err
	}
	if len(f.Header.Names) == 0 {
		return fmt.Errorf("LoRA %s: the file has no tensors", f.Name)
	}
	if len(matched.modules) == 0 {
		matched.unmatched = append(matched.unmatched, matched.unused...)
	}
	if err := matched.unusable(f, spec, components, hints); err != nil {
		return err
	}
	report := Report{Path: spec.Path, Scale: spec.Scale, Modules: map[string]int{}, Unused: matched.unused}
	all, err := s.addModules(f, spec, matched, report.Modules)
	if other := findHint(f.Header.Names, otherModels).For; other != "" {
		matched.warn(f, "its tensors have names of %s, and fit this model by chance", other)
	}
	report.Warnings = matched.warnings
	s.reports = append(s.reports, report)
	if misfits, ok := errors.AsType[*sizeErrors](err); ok {
		if misfits.model = newUnmatchedError(f, nil, components, hints).For; misfits.model == "" {
			misfits.model = "a model of another size"
		}
	}
	if err != nil {
		return err
	}
	for _, u := range all {
		if zero, err := u.zero(); err != nil || !zero {
			return err
		}
	}
	return fmt.Errorf("LoRA %s: has no effect: all its values are 0, as before training", f.Name)
}

// addModules adds the updates of a file's modules, and counts the modules by component. Of
// modules that change the same layer, those of the lowest rank count.
func (s *Set) addModules(f *file, spec Spec, matched *matching, count map[string]int) (all []*update, err error) {
	var errs, misfits []error
	var missed, repeated, counted []string
	for _, m := range matched.inOrder() {
		updates, err := m.updates()
		if _, ok := errors.AsType[*sizeError](err); ok && spec.Partial {
			misfits, missed = append(misfits, err), append(missed, m.raw)
			continue
		}
		if before := s.earlier(m, updates); before != nil && matched.modules[before.module].rank() < m.rank() {
			repeated, counted = append(repeated, m.raw), append(counted, before.module)
			continue
		}
		for _, u := range updates {
			err = errors.Join(err, s.addUpdate(m.component.Name, u))
		}
		all = append(all, updates...)
		errs = append(errs, err)
		count[m.component.Name]++
	}
	if len(all) == 0 {
		errs = append(errs, misfits...)
	} else if len(missed) > 0 {
		matched.warn(f, "left out %d of its %d modules, whose layers have another size: %s", len(missed), len(matched.modules),
			list(missed))
	}
	if len(repeated) > 0 {
		matched.warn(f, "left out %s: %s changes the same layers, and counts", list(repeated), list(counted))
	}
	err = joinErrors(errs, 5)
	if err != nil && !slices.ContainsFunc(errs, func(err error) bool { _, ok := errors.AsType[*sizeError](err); return !ok }) {
		err = &sizeErrors{err, ""}
	}
	return all, err
}

// earlier returns an update of the same file for a parameter of one of the updates of m, nil if
// there is no such update.
func (s *Set) earlier(m *module, updates []*update) *update {
	for _, u := range updates {
		for _, before := range s.updates[m.component.Name][u.Name] {
			if before.file == u.file {
				return before
			}
		}
	}
	return nil
}

// A matching is the result of searching components for the tensors of a file.
type matching struct {
	modules           map[string]*module // by the file's names for them
	unmatched, unused []string           // names of other tensors, see Report.Unused
	warnings          []string           // see Report.Warnings
}

func (m *matching) warn(f *file, format string, args ...any) {
	m.warnings = append(m.warnings, fmt.Sprintf("LoRA %s: ", f.Name)+fmt.Sprintf(format, args...))
}

// inOrder returns the modules by their rank and name.
func (m *matching) inOrder() []*module {
	return slices.SortedFunc(maps.Values(m.modules), func(a, b *module) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.raw, b.raw))
	})
}

// match finds the modules that the tensors of a file change.
func (f *file) match(components []*component) (*matching, error) {
	out := &matching{modules: map[string]*module{}}
	missing := map[string]bool{} // names of modules that no component has
	for _, name := range f.names() {
		raw, p, ok := parseKey(name)
		if !ok {
			out.unmatched = append(out.unmatched, name)
			continue
		}
		if out.modules[raw] == nil && !missing[raw] {
			if c, name := findModule(components, raw); c != nil {
				out.modules[raw] = &module{file: f, raw: raw, name: name, component: c, parts: map[part]*tensor{}}
			} else {
				missing[raw] = true
			}
		}
		m := out.modules[raw]
		switch {
		case m == nil && slices.ContainsFunc(components, func(c *component) bool { return c.isUnusedLayer(raw) }):
			out.unused = append(out.unused, name)
		case m == nil:
			out.unmatched = append(out.unmatched, name)
		case m.parts[p] != nil:
			return nil, fmt.Errorf("LoRA %s: tensors %s and %s are both %s of %s",
				f.Name, quote.Name(m.parts[p].Name), quote.Name(name), p, quote.Name(raw))
		default:
			m.parts[p] = f.tensor(name)
		}
	}
	return out, nil
}

// addUpdate adds an update to those of its parameter. A file can have only one for each
// parameter.
func (s *Set) addUpdate(component string, u *update) error {
	if s.updates[component] == nil {
		s.updates[component] = map[string][]*update{}
	}
	list := s.updates[component][u.Name]
	for _, before := range list {
		if before.file == u.file {
			return fmt.Errorf("LoRA %s: %s and %s both change %s of the %s",
				u.file.Name, quote.Name(before.module), quote.Name(u.module), u.Name, component)
		}
	}
	s.updates[component][u.Name] = append(list, u)
	return nil
}

// joinErrors joins errors, at most a number of them.
func joinErrors(errs []error, most int) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if n := len(errs); n > most {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", n-most))
	}
	return errors.Join(errs...)
}

// Changes reports whether a parameter of a component is changed.
func (s *Set) Changes(component, parameter string) bool {
	return len(s.updates[component][parameter]) > 0
}

// Bake returns a function that changes the parameters of a component while they are
// loaded, nil if no LoRA changes any. It is called with the values of a parameter in
// float32, in the shape that it has in memory, and returns the changed values. It
// throws errors ([mlx.Throw]) and must be called on the MLX thread. With required it
// makes only the changes that [Set.Attach] does not support: those of parameters outside
// of linear layers, and DoRA along the inputs.
func (s *Set) Bake(component string, required bool) func(p nn.Parameter, w *mlx.Array) *mlx.Array {
	takes := func(u *update) bool { return !required || u.mustBake() }
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
			files := joined(all[p.Name], func(u *update) string { return u.file.Name })
			throw("LoRA %s: makes values of %s in the %s NaN or infinite", files, p.Name, component)
		}
		done[p.Name] = true
		return w
	}
}

// Attach adds adapters to the linear layers of a component that are loaded, for all changes
// that were not baked while it was loaded. After [Set.Bake] these are only the changes of
// weights that are quantized in the checkpoint. Adapters of an earlier Attach are
// removed. It throws errors and must run on the MLX thread.
func (s *Set) Attach(component string, model any) {
	s.Detach(model)
	layers, loaded := nn.Linears(model), map[string]bool{}
	for _, p := range nn.Parameters(model) {
		loaded[p.Name] = p.Array != nil
	}
	parameters := slices.Collect(maps.Keys(s.updates[component]))
	slices.SortFunc(parameters, func(a, b string) int { // biases last, because DoRA must not multiply them
		return cmp.Or(cmp.Compare(path.Ext(b), path.Ext(a)), cmp.Compare(a, b))
	})
	for _, name := range parameters {
		if s.baked[component][name] || !loaded[name] {
			continue
		}
		list := s.updates[component][name]
		layer := layers[strings.TrimSuffix(name, path.Ext(name))]
		for _, u := range list {
			if layer == nil || u.mustBake() {
				throw("LoRA %s: %s changes %s of the %s, which is quantized in the file and cannot be changed at run time",
					u.file.Name, quote.Name(u.module), name, component)
			}
			layer.Adapters = append(layer.Adapters, u.attach(s, layer))
		}
	}
}

// Detach removes the adapters that Attach added to a model, and frees them.
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

// joined returns a text of each value, with commas.
func joined[T any](values []T, text func(T) string) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, text(v))
	}
	return strings.Join(texts, ", ")
}
