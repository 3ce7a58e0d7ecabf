package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
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
	expected := map[string]expectation{}
	var dirs []string
	if _, err := fs.Lstat(fsys, indexFile); errors.Is(err, fs.ErrNotExist) {
		if dirs, err = foldersWithWeights(fsys); err != nil {
			return nil, err
		}
		if len(dirs) == 0 {
			return nil, fmt.Errorf("model folder %s: has no safetensors files, and neither have the folders in it", checkpoint.FullName(fsys, ""))
		}
		for _, dir := range dirs {
			expected[dir] = expectAlone(fsys, dir, errors.New("without a model_index.json it is not known what the component is"))
		}
	} else {
		index, err := readIndex(fsys)
		if err != nil {
			return nil, err
		}
		w.Class = index.class
		for name, class := range index.components {
			if configOf(class) == modelConfig {
				dirs = append(dirs, name)
			}
		}
		if len(dirs) == 0 {
			return nil, fmt.Errorf("%s: names no components with weights", checkpoint.FullName(fsys, indexFile))
		}
		expected = index.expect(fsys, dirs)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		c := &ComponentWeights{Name: dir}
		e := expected[dir]
		e.dir = dir
		if c.ck, c.Err = e.open(fsys); c.Err == nil {
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

// Close closes the files.
func (w *Weights) Close() error {
	var errs []error
	for _, c := range w.Components {
		if c.ck != nil {
			errs = append(errs, c.ck.Close())
		}
	}
	return errors.Join(errs...)
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

func noComponent(name string, names []string) error {
	return requestErrorf("no component %q with weights (there are %s)", name, strings.Join(names, ", "))
}

// foldersWithWeights lists the folders in a model folder that have safetensors
// files, or only "." if it has some itself and no folder has.
func foldersWithWeights(fsys fs.FS) (dirs []string, err error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", checkpoint.FullName(fsys, ""), err)
	}
	has := func(dir string) bool {
		found, _ := fs.Glob(fsys, filepath.ToSlash(filepath.Join(dir, "*.safetensors*")))
		return len(found) > 0
	}
	for _, e := range entries {
		if info, err := fs.Stat(fsys, e.Name()); err == nil && info.IsDir() && !strings.ContainsAny(e.Name(), `*?[\`) && has(e.Name()) {
			dirs = append(dirs, e.Name())
		}
	}
	if len(dirs) == 0 && has(".") {
		dirs = []string{"."}
	}
	return dirs, nil
}

// An expectation is what a config says of a component's tensors.
type expectation struct {
	component
	unknown error // why there is none
	damaged bool  // which is the fault of the files
}

// expect declares the components of an index.
func (x index) expect(fsys fs.FS, dirs []string) map[string]expectation {
	expected := map[string]expectation{}
	if _, err := x.family(fsys); err != nil {
		for _, dir := range dirs {
			expected[dir] = expectation{unknown: fmt.Errorf("what the components of pipeline class %q have is not known to this version", x.class)}
			if strings.HasPrefix(x.components[dir], "AutoencoderKL") {
				expected[dir] = expectAlone(fsys, dir, nil)
			}
		}
		return expected
	}
	_, components, err := x.declare(fsys)
	for _, dir := range dirs {
		expected[dir] = expectation{unknown: err, damaged: !errors.Is(err, ErrUnsupported)}
		if err == nil {
			expected[dir] = expectation{unknown: fmt.Errorf("the pipeline class %s has no component of that name here", x.class)}
		}
	}
	for _, c := range components {
		expected[c.dir] = expectation{component: c}
	}
	return expected
}

// expectAlone declares an autoencoder, which can be told by its config alone.
// Otherwise there is no expectation, for the reason that is given or found.
func expectAlone(fsys fs.FS, dir string, unknown error) expectation {
	a := &Autoencoder{}
	c, err := a.configure(&loader{fsys: fsys, points: &a.points}, dir)
	var class struct {
		Name string `json:"_class_name"`
	}
	if unknown != nil && (checkpoint.ReadJSON(fsys, filepath.ToSlash(filepath.Join(dir, modelConfig)), &class) != nil || class.Name != "AutoencoderKL") {
		return expectation{unknown: unknown}
	}
	return expectation{component: c, unknown: err, damaged: err != nil && !errors.Is(err, ErrUnsupported)}
}

// list makes the list of tensors and holds it against what is expected.
func (c *ComponentWeights) list(e expectation) {
	used := map[string]bool{}
	if c.Unchecked, c.damaged = e.unknown, e.damaged; e.unknown == nil {
		c.prefixes = e.prefixes
		var found []nn.Found
		found, c.mismatch = e.match(c.ck)
		c.columns = map[string]int{}
		for i, p := range nn.Parameters(e.model) {
			for _, t := range found[i].Tensors() {
				used[identity(t)] = true
			}
			if p.Kind() != nn.OtherParam {
				c.columns[p.Name] = p.Stored()[1]
			}
		}
		if c.mismatch != nil {
			for _, m := range c.mismatch.Unexpected {
				used[identity(c.ck.Tensors[m.Name])] = true // a flag says more
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.ck.Tensors), checkpoint.CompareNames) {
		t := &TensorWeights{Tensor: c.ck.Tensors[name], Unused: e.unknown == nil && !used[identity(c.ck.Tensors[name])]}
		t.Name = name // diffusers' where it has another one in its file
		c.Tensors = append(c.Tensors, t)
	}
}

// Read sums up every tensor. It holds a few megabytes of them at a time, whatever
// their size, and reads with as many threads as Go runs.
func (w *Weights) Read(ctx context.Context, progress func(Progress)) error {
	for _, c := range w.Components {
		if c.ck == nil {
			continue
		}
		r, err := checkpoint.OpenReader(c.ck)
		if err != nil {
			return err
		}
		err = each(ctx, c.Name, c.Tensors, progress, func(t *TensorWeights, done func(int64)) error {
			return t.read(ctx, r, done)
		})
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *TensorWeights) read(ctx context.Context, r *checkpoint.Reader, done func(int64)) error {
	if !t.Dtype.IsReadable() {
		done(t.Bytes())
		return nil
	}
	var sum checkpoint.Summary
	for part, err := range r.Parts(ctx, t.Tensor, checkpoint.PartLen) {
		if err != nil {
			return err
		}
		sum.Join(part.Stats(), part.Len())
		done(int64(part.Len() * t.Dtype.Size()))
	}
	stats := sum.Stats()
	t.Stats = &stats
	return nil
}

// each calls f with every tensor, from several goroutines, and reports how many
// bytes are done.
func each(ctx context.Context, component string, list []*TensorWeights, progress func(Progress), f func(*TensorWeights, func(int64)) error) error {
	var mu sync.Mutex
	report := Progress{Phase: PhaseLoad, Component: component}
	for _, t := range list {
		report.TotalBytes += t.Bytes()
	}
	done := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if report.Bytes += n; progress != nil {
			progress(report)
		}
	}
	queue := make(chan *TensorWeights)
	failed := make(chan error, 1)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 16, len(list)) {
		workers.Go(func() {
			for t := range queue {
				err := f(t, done)
				if err == nil {
					continue
				}
				select {
				case failed <- err:
					stop(err)
				default:
				}
			}
		})
	}
	for _, t := range list {
		if ctx.Err() == nil {
			queue <- t
		}
	}
	close(queue)
	workers.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return context.Cause(ctx)
	}
}
