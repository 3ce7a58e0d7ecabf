package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A NotFiniteError says that a model computed NaN or infinite values where a
// picture needs numbers, and as far as it could be found out why.
type NotFiniteError struct {
	What  string    // latents or pixels
	Dtype mlx.Dtype // that they were computed in
	// Weights are the first parameters of each component that are not finite
	// themselves, and Total is how many there are in all.
	Weights []NotFiniteWeight
	Total   int
}

// A NotFiniteWeight is a parameter with NaN or infinite elements in memory.
type NotFiniteWeight struct {
	File   string // with its tensor Name, which may have a prefix to the parameter's
	Name   string
	Dtype  mlx.Dtype // in memory
	Stored string    // what is not finite of the tensor in the file, "" if all is
}

// Damaged says whether it is the fault of the model's files.
func (e *NotFiniteError) Damaged() bool {
	return slices.ContainsFunc(e.Weights, func(w NotFiniteWeight) bool { return w.Stored != "" })
}

func (e *NotFiniteError) Error() string {
	if len(e.Weights) > 0 {
		w, more := e.Weights[0], ""
		if i := slices.IndexFunc(e.Weights, func(w NotFiniteWeight) bool { return w.Stored != "" }); i > 0 {
			w = e.Weights[i]
		}
		if n := e.Total - 1; n > 0 {
			more = fmt.Sprintf(", and so have %d more", n)
		}
		if w.Stored != "" {
			return fmt.Sprintf("%s: tensor %s: has %s%s: the %s are not finite either, and there is no picture (gomflux inspect names all such tensors)", w.File, w.Name, w.Stored, more, e.What)
		}
		return fmt.Sprintf("%s: tensor %s: is finite in the file but not as %v in memory%s: the %s are not finite either, and there is no picture%s", w.File, w.Name, w.Dtype, more, e.What, nn.RangeHint(w.Dtype))
	}
	hint := cmp.Or(nn.RangeHint(e.Dtype), " (gomflux generate --check-finite names the first module that does it)")
	return fmt.Sprintf("the model computed %s that are NaN or infinite, though all its weights are finite, and there is no picture%s", e.What, hint)
}

// notFinite is the error about latents that are not finite, whatever part of
// the model it was. Parts that were freed for want of memory are loaded once
// more, one after the other.
func (p *Pipeline) notFinite(what string, report func(Progress)) error {
	e := &NotFiniteError{What: what, Dtype: p.dtype}
	for _, dir := range sorted(p.parts) {
		if err := p.ensure(dir, report); err != nil {
			return err
		}
		if err := e.look(p.loader, p.parts[dir].Component); err != nil {
			return err
		}
	}
	return e
}

// look finds the parameters of a component that are not finite in memory, and
// whether they are in the files.
func (e *NotFiniteError) look(l *component.Loader, c component.Component) error {
	const most = 4 // whose files are read
	var bad []int
	dtypes := map[int]mlx.Dtype{} // of a quantized one it is that of its scales
	for i, p := range nn.Parameters(c.Model) {
		for _, a := range p.Arrays() {
			if !a.AllFinite() {
				bad, dtypes[i] = append(bad, i), a.Dtype()
				break
			}
		}
		mlx.StopPoint()
	}
	e.Total += len(bad)
	if len(bad) == 0 {
		return nil
	}
	ck, err := c.Open(l.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return mismatch // the files were changed since
	}
	r, err := checkpoint.OpenReader(ck)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, i := range bad[:min(len(bad), most)] {
		w := NotFiniteWeight{File: found[i].File, Name: found[i].Name, Dtype: dtypes[i]}
		for _, stored := range found[i].Tensors() { // with the scales of a quantized one
			s, err := r.Stats(context.Background(), stored, func(int64) {})
			if err != nil {
				return err
			}
			if s != nil && s.NaN+s.Inf > 0 {
				w.File, w.Name = stored.File, stored.Name
				w.Stored = fmt.Sprintf("%d NaN and %d infinite of %d elements", s.NaN, s.Inf, stored.Len())
				break
			}
		}
		e.Weights = append(e.Weights, w)
	}
	return nil
}
