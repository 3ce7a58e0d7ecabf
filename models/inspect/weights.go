package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
)

// Weights are the tensors of a model's components, as they are in its files:
// the headers are read when it is opened, the elements when [Weights.Read] or
// [Compare] needs them. No MLX.
type Weights struct {
	// Class is the pipeline class, "" where there is no model_index.json.
	Class string
	// Components are those with weights, by name.
	Components []*ComponentWeights
}

// ComponentWeights are the tensors of one component.
type ComponentWeights struct {
	// Name is that of its folder, "." for the model folder itself, or of the
	// file if it is a single one.
	Name string
	// Err says why its files cannot be read; nil if they can.
	Err error
	// Unchecked says why there is nothing to hold the tensors' names and shapes
	// against; nil if that has been done.
	Unchecked error
	// Tensors are in the order of their names.
	Tensors []*TensorWeights

	ck       *checkpoint.Checkpoint
	columns  map[string]int // of the matrices that are expected, by their names without a prefix
	mismatch *nn.MismatchError
	damaged  bool     // Unchecked is the fault of the files
	prefixes []string // that names may have
}

// TensorWeights is one tensor.
type TensorWeights struct {
	checkpoint.Tensor
	// Unused marks a tensor that is expected and that nothing here needs, such
	// as a language model's head.
	Unused bool
	// Stats is nil before [Weights.Read], and for a dtype that cannot be read as
	// numbers.
	Stats *checkpoint.Stats
}

// OpenWeights opens a model folder: the components that its model_index.json
// names, or else all folders in it that have safetensors files, or else its own
// files. A component whose files cannot be read has an Err. The tensors are
// held against what the configs describe where the class is a known one.
func OpenWeights(fsys fs.FS) (*Weights, error) {
	w := &Weights{}
	var expected []expectation
	if index.Exists(fsys) {
		x, err := index.Read(fsys)
		if err != nil {
			return nil, err
		}
		w.Class = x.Class
		if expected = expect(fsys, x); len(expected) == 0 {
			return nil, fmt.Errorf("%s: names no components with weights", checkpoint.FullName(fsys, index.File))
		}
	} else {
		dirs, err := checkpoint.WeightFolders(fsys)
		if err != nil {
			return nil, err
		}
		if len(dirs) == 0 {
			return nil, fmt.Errorf("model folder %s: has no safetensors files, and neither have the folders in it", checkpoint.FullName(fsys, ""))
		}
		for _, dir := range dirs {
			expected = append(expected, expectLone(fsys, dir))
		}
	}
	for _, e := range expected {
		c := &ComponentWeights{Name: e.Dir}
		if c.ck, c.Err = e.Open(fsys); c.Err == nil {
			c.list(e)
		}
		w.Components = append(w.Components, c)
	}
	return w, nil
}

// OpenWeightsFile opens a single safetensors file.
func OpenWeightsFile(path string) (*Weights, error) {
	dir, name := filepath.Split(path)
	f, err := checkpoint.Open(checkpoint.Folder{FS: os.DirFS(cmp.Or(dir, ".")), Name: dir}, name)
	if err != nil {
		return nil, err
	}
	c := &ComponentWeights{Name: name, ck: &checkpoint.Checkpoint{Dir: path, Files: []*checkpoint.File{f}, Tensors: f.Header.Tensors}}
	c.list(expectation{unknown: errors.New("of a single file it is not known what it should have")})
	return &Weights{Components: []*ComponentWeights{c}}, nil
}

// list makes the list of tensors and holds it against what is expected.
func (c *ComponentWeights) list(e expectation) {
	used := map[string]bool{}
	if c.Unchecked, c.damaged = e.unknown, e.damaged; e.unknown == nil {
		c.prefixes, c.columns = e.Prefixes, map[string]int{}
		var found []nn.Found
		found, c.mismatch = e.Match(c.ck)
		for i, p := range nn.Parameters(e.Model) {
			for _, t := range found[i].Tensors() {
				used[t.ID()] = true
			}
			if p.Kind() != nn.OtherParam {
				c.columns[p.Name] = p.Stored()[1]
			}
		}
		if c.mismatch != nil {
			for _, m := range c.mismatch.Unexpected {
				used[c.ck.Tensors[m.Name].ID()] = true // a flag says more
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.ck.Tensors), checkpoint.CompareNames) {
		t := &TensorWeights{Tensor: c.ck.Tensors[name], Unused: e.unknown == nil && !used[c.ck.Tensors[name].ID()]}
		t.Name = name // diffusers' where it has another one in its file
		c.Tensors = append(c.Tensors, t)
	}
}

// Close closes the files.
func (w *Weights) Close() error {
	var failed []error
	for _, c := range w.Components {
		if c.ck != nil {
			failed = append(failed, c.ck.Close())
		}
	}
	return errors.Join(failed...)
}

// Select keeps one component and closes the others.
func (w *Weights) Select(name string) error {
	i := slices.IndexFunc(w.Components, func(c *ComponentWeights) bool { return c.Name == name })
	if i < 0 {
		var names []string
		for _, c := range w.Components {
			names = append(names, c.Name)
		}
		return noComponent(name, names)
	}
	keep := w.Components[i]
	w.Components = slices.Delete(w.Components, i, i+1)
	err := w.Close()
	w.Components = []*ComponentWeights{keep}
	return err
}

// noComponent is the error about a component that is not one of those with weights.
func noComponent(name string, names []string) error {
	return errs.Requestf("no component %q with weights (there are %s)", name, strings.Join(names, ", "))
}
