package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A NotFiniteError reports that a model computed NaN or infinite values, and which of its weights
// have such values.
type NotFiniteError struct {
	What    string            // latents or pixels
	Dtype   mlx.Dtype         // in which they were computed
	Weights []NotFiniteWeight // the first parameters of each component that are not finite
	Total   int               // number of all parameters that are not finite
}

// A NotFiniteWeight is a parameter with NaN or infinite elements in memory.
type NotFiniteWeight struct {
	File   string
	Name   string    // of the tensor in File, which may have a prefix
	Dtype  mlx.Dtype // in memory
	Stored string    // counts of NaN and infinite elements in the file, "" if it has only finite ones
}

// Damaged reports whether the cause is in the model's files.
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
			more = fmt.Sprintf(" (and %d more tensors)", n)
		}
		if w.Stored != "" {
			return fmt.Sprintf("%s: tensor %s: has %s%s, so the %s are not finite (gomflux inspect lists all such tensors)",
				w.File, w.Name, w.Stored, more, e.What)
		}
		return fmt.Sprintf("%s: tensor %s: is finite in the file but not as %v in memory%s, so the %s are not finite%s",
			w.File, w.Name, w.Dtype, more, e.What, nn.RangeHint(w.Dtype))
	}
	hint := cmp.Or(nn.RangeHint(e.Dtype), " (gomflux generate --check-finite names the first module whose output is not finite)")
	return fmt.Sprintf("the model computed %s that are NaN or infinite, although all its weights are finite%s", e.What, hint)
}

// notFinite returns the error for latents that are not finite, whichever component is the cause.
// Components that were freed to save memory are loaded again, one after the other.
func (p *Pipeline) notFinite(what string, report func(Progress)) error {
	e := &NotFiniteError{What: what, Dtype: p.dtype}
	for _, dir := range sorted(p.loadables) {
		if err := p.ensureLoaded(dir, nil, report); err != nil {
			return err
		}
		if err := e.findWeights(p.loader, p.loadables[dir].Component); err != nil {
			return err
		}
	}
	return e
}

// findWeights adds the parameters of a component that are not finite in memory, and looks for the
// cause in the first ones' files.
func (e *NotFiniteError) findWeights(l *component.Loader, c component.Component) error {
	const filesRead = 4 // tensors
	var bad []int
	dtypes := map[int]mlx.Dtype{} // of the scales if a parameter is quantized
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
	return e.findStored(l, c, bad[:min(len(bad), filesRead)], dtypes)
}

// findStored adds parameters, by their indices, with what is not finite of them in their files.
func (e *NotFiniteError) findStored(l *component.Loader, c component.Component, bad []int, dtypes map[int]mlx.Dtype) error {
	ck, err := c.Open(l.FS)
	if err != nil {
		return err
	}
	defer ck.Close()
	found, mismatch := c.Match(ck)
	if mismatch != nil {
		return mismatch // the files have changed
	}
	for _, i := range bad {
		w := NotFiniteWeight{File: found[i].File, Name: found[i].Name, Dtype: dtypes[i]}
		for _, stored := range found[i].Tensors() { // including the scales of quantized weights
			s, err := ck.Stats(context.Background(), stored, func(int64) {})
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
