package save

import (
	"cmp"
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

// A savedComponent is a component with the tensors to write.
type savedComponent struct {
	component.Component
	ck      *checkpoint.Checkpoint
	entries []*entry
}

// openPart opens a component and lists its tensors.
func openPart(fsys fs.FS, c component.Component) (*savedComponent, error) {
	ck, err := c.Open(fsys)
	if err != nil {
		return nil, err
	}
	p := &savedComponent{Component: c, ck: ck}
	if err := p.listEntries(); err != nil {
		ck.Close()
		return nil, err
	}
	return p, nil
}

// listEntries makes an entry of every tensor, or of every quantized matrix with its
// scales and biases.
func (p *savedComponent) listEntries() error {
	found, mismatch := p.Match(p.ck)
	if mismatch != nil {
		return mismatch
	}
	declared := map[string]int{}
	for i, f := range found {
		declared[f.ID()] = i
	}
	params := nn.Parameters(p.Model)
	byPattern := map[string]*nn.Parameter{} // by name without numbers
	for i := range params {
		pattern := withoutNumbers(params[i].Name)
		byPattern[pattern], byPattern[inLayer(pattern)] = &params[i], &params[i]
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.ck.Tensors), checkpoint.CompareNames) {
		t := p.ck.Tensors[key]
		e := &entry{key: key, found: nn.Found{Tensor: t}}
		if i, ok := declared[t.ID()]; ok {
			e.found, e.param = found[i], &params[i]
		} else if owner, ok := nn.Companion(key); ok {
			if _, ok := p.ck.Tensors[owner]; ok {
				continue // part of the weight's entry
			}
		} else if like := p.similar(key, params, byPattern); like != nil && like.Kind() != nn.OtherParam {
			f, err := p.findSimilar(key, like)
			if err != nil {
				return err
			}
			e.found, e.similar = f, like
		} else if t.Dtype == checkpoint.U32 && p.ck.Tensors[component.Module(key)+".scales"].Name != "" {
			return fmt.Errorf("%s: tensor %s: quantized weight of unknown shape", t.File, t.Name)
		}
		p.entries = append(p.entries, e)
	}
	return nil
}

// similar returns a parameter with the shape of a tensor that the model does not declare: of another
// block, or the embedding for a language model's head. It is nil for other tensors.
func (p *savedComponent) similar(key string, params []nn.Parameter, byPattern map[string]*nn.Parameter) *nn.Parameter {
	if p.Class.Headed && strings.HasSuffix(key, "lm_head.weight") {
		var words *nn.Parameter // the largest embedding; others are of positions
		for i := range params {
			if params[i].Kind() == nn.EmbeddingWeight && (words == nil || params[i].Stored()[0] > words.Stored()[0]) {
				words = &params[i]
			}
		}
		return words
	}
	pattern := withoutNumbers(p.Bare(key))
	return cmp.Or(byPattern[pattern], byPattern[inLayer(pattern)])
}

// inLayer returns the name in a text encoder's layer, whose prefix differs between versions of transformers.
func inLayer(pattern string) string { return pattern[max(0, strings.Index(pattern, "layers.#.")):] }

// findSimilar finds a weight that the model does not declare, with its scales and
// biases. It must have the shape of a similar parameter that the model declares.
func (p *savedComponent) findSimilar(key string, like *nn.Parameter) (nn.Found, error) {
	alone := &checkpoint.Checkpoint{Dir: p.ck.Dir, Tensors: map[string]checkpoint.Tensor{}}
	for _, name := range append(nn.Companions(key), key) {
		if t, ok := p.ck.Tensors[name]; ok {
			alone.Tensors["layer"+strings.TrimPrefix(name, component.Module(key))] = t
		}
	}
	shape := like.Stored()
	found, mismatch := nn.Match(&struct {
		Layer *nn.Linear `w:"layer"`
	}{nn.NewLinear(shape[1], shape[0], false)}, alone, nn.LoadOptions{Name: p.Name})
	if mismatch != nil {
		return nn.Found{}, mismatch
	}
	return found[0], nil
}

// withoutNumbers returns a name with # in place of numbers, which is the same for the
// layers of all blocks.
func withoutNumbers(name string) string { return numbers.ReplaceAllString(name, "#") }

var numbers = regexp.MustCompile(`\d+`)
