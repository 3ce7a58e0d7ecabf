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
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Weights has the tensors of a model's components as they are in the files. Opening
// them reads the headers; [Weights.Read] and [Compare] read the elements. MLX is not
// needed.
type Weights struct {
	// Class is the pipeline class, "" if there is no model_index.json.
	Class string
	// Components lists the components with weights by name.
	Components []*ComponentWeights

	fsys       fs.FS    // the model folder
	tokenizers []string // folders of tokenizers that Read checks
}

// ComponentWeights has the tensors of one component.
type ComponentWeights struct {
	// Name is the name of the component's folder, "." for the model folder itself, or
	// the name of a single file.
	Name string
	// Err is the reason why the files cannot be read; nil if they can.
	Err error
	// Unchecked is the reason why the names and shapes of the tensors could not be
	// checked against a config; nil if they were.
	Unchecked error
	// Tensors lists the tensors by name.
	Tensors []*TensorWeights

	ck       *checkpoint.Checkpoint
	names    map[string]string // parameters' names by those of tensors
	columns  map[string]int    // the columns of expected matrices, by the parameter's name
	mismatch *nn.MismatchError
	damaged  bool     // whether Unchecked is because of damaged files
	prefixes []string // prefixes that names may have
}

// TensorWeights is one tensor.
type TensorWeights struct {
	checkpoint.Tensor
	// Unused marks an expected tensor that gomflux does not need, such as a language
	// model's head.
	Unused bool
	// Stats is set by [Weights.Read], except for a dtype that cannot be read as numbers.
	Stats *checkpoint.Stats
}

// OpenWeights opens the components of a model folder: those that model_index.json
// names or, without that file, the folders with safetensors files, or the safetensors
// files of the folder itself. A component whose files cannot be read has an Err. The
// tensors of supported classes are checked against the configs.
func OpenWeights(fsys fs.FS) (*Weights, error) {
	w := &Weights{fsys: fsys}
	var expected []expectation
	if index.Exists(fsys) {
		x, err := index.Read(fsys)
		if err != nil {
			return nil, err
		}
		w.Class = x.Class
		if class := family.Find(x.Class); class != nil {
			w.tokenizers = class.Tokenizers()
		}
		if expected = expect(fsys, x); len(expected) == 0 {
			return nil, fmt.Errorf("%s: expected components with weights, found none", checkpoint.FullName(fsys, index.Name(fsys)))
		}
	} else {
		dirs, err := checkpoint.WeightFolders(fsys)
		if err != nil {
			return nil, err
		}
		if len(dirs) == 0 {
			return nil, fmt.Errorf("model folder %s: contains no safetensors files, nor do its subfolders", checkpoint.FullName(fsys, ""))
		}
		for _, dir := range dirs {
			expected = append(expected, expectLone(fsys, dir))
		}
	}
	for _, e := range expected {
		c := &ComponentWeights{Name: e.Dir}
		if c.ck, c.Err = e.Open(fsys); c.Err == nil {
			c.listTensors(e)
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
	e := expectation{unknown: errors.New("there is no config for a single file")}
	if _, err := checkpoint.NewCheckpoint(f); err != nil {
		e = expectation{unknown: err, damaged: true}
	}
	c.listTensors(e)
	return &Weights{Components: []*ComponentWeights{c}}, nil
}

// listTensors lists the tensors and checks them against the expected ones.
func (c *ComponentWeights) listTensors(e expectation) {
	used := map[string]bool{}
	if c.Unchecked, c.damaged = e.unknown, e.damaged; e.unknown == nil {
		c.prefixes, c.names, c.columns = e.Prefixes, map[string]string{}, map[string]int{}
		parameters := map[string]string{} // names by the tensor's ID
		var found []nn.Found
		found, c.mismatch = e.Match(c.ck)
		for i, p := range nn.Parameters(e.Model) {
			for _, t := range found[i].Tensors() {
				used[t.ID()] = true
			}
			if found[i].Name != "" {
				parameters[found[i].ID()] = p.Name
			}
			if p.Kind() != nn.OtherParam {
				c.columns[p.Name] = p.Stored()[1]
			}
		}
		for name, t := range c.ck.Tensors {
			if own := parameters[t.ID()]; own != "" {
				c.names[name] = own
			}
		}
		if c.mismatch != nil {
			for _, m := range c.mismatch.Unexpected {
				used[c.ck.Tensors[m.Name].ID()] = true // there is a flag for it
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.ck.Tensors), checkpoint.CompareNames) {
		t := &TensorWeights{Tensor: c.ck.Tensors[name], Unused: e.unknown == nil && !used[c.ck.Tensors[name].ID()]}
		t.Name = name // diffusers' name, whatever the name in the file
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
	i, err := findComponent(w.Components, name, func(c *ComponentWeights) string { return c.Name })
	if err != nil {
		return err
	}
	keep := w.Components[i]
	w.Components = slices.Delete(w.Components, i, i+1)
	err = w.Close()
	w.Components, w.tokenizers = []*ComponentWeights{keep}, nil
	return err
}

// findComponent returns the index of the component with a name.
func findComponent[C any](components []C, name string, nameOf func(C) string) (int, error) {
	var names []string
	for i, c := range components {
		if nameOf(c) == name {
			return i, nil
		}
		names = append(names, nameOf(c))
	}
	return 0, errs.Requestf("no component %q with weights (expected one of %s)", name, strings.Join(names, ", "))
}
