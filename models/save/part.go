package save

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// A part is a component with what is written of it.
type part struct {
	component.Component
	ck      *checkpoint.Checkpoint
	entries []*entry
}

// openPart opens a component and lists its tensors, each with what belongs to it.
func openPart(fsys fs.FS, c component.Component) (*part, error) {
	ck, err := c.Open(fsys)
	if err != nil {
		return nil, err
	}
	p := &part{Component: c, ck: ck}
	if err := p.find(); err != nil {
		ck.Close()
		return nil, err
	}
	return p, nil
}

func (p *part) find() error {
	found, mismatch := p.Match(p.ck)
	if mismatch != nil {
		return mismatch
	}
	declared := map[string]int{}
	for i, f := range found {
		declared[f.ID()] = i
	}
	params := nn.Parameters(p.Model)
	alike := map[string]*nn.Parameter{} // by names without numbers
	for i := range params {
		alike[unnumbered(params[i].Name)] = &params[i]
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.ck.Tensors), checkpoint.CompareNames) {
		t := p.ck.Tensors[key]
		e := &entry{key: key, found: nn.Found{Tensor: t}}
		if i, ok := declared[t.ID()]; ok {
			e.found, e.param = found[i], &params[i]
		} else if owner, ok := nn.Companion(key); ok {
			if _, ok := p.ck.Tensors[owner]; ok {
				continue // it comes with the weight
			}
		} else if like := alike[unnumbered(p.Bare(key))]; like != nil && like.Kind() != nn.OtherParam {
			f, err := p.foundLike(key, like)
			if err != nil {
				return err
			}
			e.found, e.like = f, like
		} else if t.Dtype == checkpoint.U32 && p.ck.Tensors[component.Module(key)+".scales"].Name != "" {
			return fmt.Errorf("%s: tensor %s: is quantized, and the shape of its weight is not known", t.File, t.Name)
		}
		p.entries = append(p.entries, e)
	}
	return nil
}

// foundLike finds a weight that the model does not declare with what it comes
// with. It has the shape of another one.
func (p *part) foundLike(key string, like *nn.Parameter) (nn.Found, error) {
	alone := &checkpoint.Checkpoint{Dir: p.ck.Dir, Tensors: map[string]checkpoint.Tensor{}}
	for _, name := range append(nn.Companions(key), key) {
		if t, ok := p.ck.Tensors[name]; ok {
			alone.Tensors["layer"+strings.TrimPrefix(name, component.Module(key))] = t
		}
	}
	shape := like.Stored()
	found, mismatch := nn.Match(&struct {
		Layer *nn.Dense `w:"layer"`
	}{nn.NewLinear(shape[1], shape[0], false)}, alone, nn.LoadOptions{Name: p.Name})
	if mismatch != nil {
		return nn.Found{}, mismatch
	}
	return found[0], nil
}

// unnumbered is a name that the layers of all blocks have.
func unnumbered(name string) string { return numbers.ReplaceAllString(name, "#") }

var numbers = regexp.MustCompile(`\d+`)
