package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
)

// An Info is what can be told of a model without loading it.
type Info struct {
	// Class is the pipeline class, "" where model_index.json does not tell.
	Class string
	// Size is that of all files together, in bytes.
	Size int64
	// Quantization is how most of the quantized layers are, as ParseQuantization takes
	// it; "" if none is.
	Quantization string
	// Incomplete says which files are missing or damaged, on one line; nil for
	// none.
	Incomplete error
	// Unsupported says what this version cannot run, and wraps ErrUnsupported;
	// nil for a model that it can run.
	Unsupported error
}

// Inspect judges a model folder in diffusers' layout by its configs and by the
// headers of its safetensors files, which have to fit the files' sizes and, of a
// class that this version runs, to have the tensors that the configs ask for.
// It reads no tensors, needs no MLX, and finds all that is wrong at once.
func Inspect(fsys fs.FS) Info {
	var info Info
	var found problems
	problem := func(err error) {
		if errors.Is(err, ErrUnsupported) {
			info.Unsupported = err
		} else if err != nil {
			found = append(found, err)
		}
	}
	var err error
	info.Size, err = sizeOf(fsys)
	problem(err)
	index, err := readIndex(fsys)
	problem(err)
	if err == nil {
		info.Class = index.class
		info.Quantization = index.inspect(fsys, problem)
	} else {
		inspectParts(fsys, problem)
	}
	if len(found) > 0 {
		info.Incomplete = found
	}
	return info
}

// inspectParts looks at what there is of weights in a folder that is no whole
// model: all files of one component, or of several in folders.
func inspectParts(fsys fs.FS, problem func(error)) {
	dirs, err := foldersWithWeights(fsys)
	if err != nil {
		return // said before
	}
	for _, dir := range dirs {
		files, _ := fs.Glob(fsys, path.Join(dir, "*.safetensors"))
		indexes, _ := fs.Glob(fsys, path.Join(dir, "*.safetensors.index.json"))
		if len(files) != 1 && len(indexes) != 1 {
			continue // of which none is meant by itself
		}
		ck, err := checkpoint.OpenCheckpoint(fsys, dir)
		if err == nil {
			err = ck.Close()
		}
		problem(err)
	}
}

// problems are errors on one line.
type problems []error

func (p problems) Error() string {
	texts := make([]string, len(p))
	for i, err := range p {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (p problems) Unwrap() []error { return p }

// inspect looks at the components, and returns how most of the quantized layers
// are.
func (x index) inspect(fsys fs.FS, problem func(error)) (quantization string) {
	newFamily, err := x.family(fsys)
	problem(err)
	missing := x.missing(fsys)
	problem(x.incomplete(fsys, missing))
	dirs := map[string]component{} // with weights; of other classes nothing but that is known
	for name, class := range x.components {
		if configOf(class) == modelConfig && !slices.ContainsFunc(missing, func(file string) bool { return strings.HasPrefix(file, name+"/") }) {
			dirs[name] = component{}
		}
	}
	if newFamily != nil && len(missing) == 0 {
		_, components, err := x.declare(fsys)
		problem(err)
		for _, c := range components {
			dirs[c.dir] = c
		}
		for _, name := range slices.Sorted(maps.Keys(x.components)) {
			if configOf(x.components[name]) == "" {
				problem(checkTokenizer(fsys, name))
			}
		}
	}
	layers := map[string]int{}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		problem(dirs[dir].inspect(fsys, dir, layers))
	}
	for _, name := range Quantizations {
		if layers[name] > layers[quantization] {
			quantization = name
		}
	}
	return quantization
}

// inspect looks at the component's files in dir and, if it is declared, at
// their tensors. It counts the quantized ones, by their quantization.
func (c component) inspect(fsys fs.FS, dir string, quantized map[string]int) error {
	c.dir = dir
	ck, err := c.open(fsys)
	if err != nil {
		return err
	}
	defer ck.Close()
	if c.model == nil {
		return nil
	}
	found, m := c.match(ck)
	for _, f := range found {
		if f.Quantized != nil {
			quantized[QuantizationName(*f.Quantized)]++
		}
	}
	if m == nil {
		return nil
	}
	var parts []string
	for _, part := range []struct {
		what    string
		misfits []nn.Misfit
	}{{"missing", m.Missing}, {"unexpected", m.Unexpected}, {"of another shape", m.Misshapen}, {"of another dtype", m.Mistyped}} {
		if n := len(part.misfits); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (such as %s)", n, part.what, part.misfits[0].Name))
		}
	}
	return fmt.Errorf("the tensors in %s are not those of the %s that its config describes: %s", m.Dir, m.Name, strings.Join(parts, ", "))
}

// checkTokenizer finds out whether the file with a tokenizer's vocabulary is
// whole.
func checkTokenizer(fsys fs.FS, dir string) error {
	name := path.Join(dir, "tokenizer.json")
	if _, err := fs.Stat(fsys, name); errors.Is(err, fs.ErrNotExist) {
		name = path.Join(dir, "vocab.json")
	}
	data, err := checkpoint.ReadFile(fsys, name, 256<<20)
	if err == nil && !json.Valid(data) {
		err = fmt.Errorf("%s: is not whole JSON (is the download complete?)", checkpoint.FullName(fsys, name))
	}
	return err
}

// sizeOf is that of all files together, in bytes. Links count as what they lead
// to, and a file that is in several places once.
func sizeOf(fsys fs.FS) (n int64, err error) {
	var counted []fs.FileInfo
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := fs.Stat(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a link to a file that is not there, which may not be needed
		}
		if err == nil && info.Mode().IsRegular() && !slices.ContainsFunc(counted, func(other fs.FileInfo) bool { return os.SameFile(other, info) }) {
			n += info.Size()
			counted = append(counted, info)
		}
		return err
	})
	return n, err
}

// An index is a model_index.json.
type index struct {
	class      string
	components map[string]string // the class of each component that there is, by its folder's name
}

const indexFile = "model_index.json"

func readIndex(fsys fs.FS) (index, error) {
	if _, err := fs.Lstat(fsys, indexFile); errors.Is(err, fs.ErrNotExist) {
		if u, ok := fsys.(unfinished); ok {
			return index{}, u.err
		}
		return index{}, fmt.Errorf("model folder %s: has no model_index.json (gomflux reads the layout of Hugging Face diffusers)", checkpoint.FullName(fsys, ""))
	}
	var members map[string]json.RawMessage
	if err := checkpoint.ReadJSON(fsys, indexFile, &members); err != nil {
		return index{}, err
	}
	x := index{components: map[string]string{}}
	for name, raw := range members {
		if name == "_class_name" {
			json.Unmarshal(raw, &x.class) // of another type it is no class that is known
		}
		// a component is [library, class], [null, null] for one that is left out
		var pair []*string
		if strings.HasPrefix(name, "_") || json.Unmarshal(raw, &pair) != nil || len(pair) != 2 || pair[0] == nil || pair[1] == nil {
			continue
		}
		if !fs.ValidPath(name) || name == "." || strings.Contains(name, "/") {
			return index{}, fmt.Errorf("%s: %q is not the name of a component", checkpoint.FullName(fsys, indexFile), name)
		}
		x.components[name] = *pair[1]
	}
	return x, nil
}

// family returns what makes the family of the index's class.
func (x index) family(fsys fs.FS) (func() family, error) {
	newFamily, ok := classes[x.class]
	if !ok {
		return nil, fmt.Errorf("%w: %s: pipeline class %q; this version runs %s", ErrUnsupported, checkpoint.FullName(fsys, indexFile), x.class, strings.Join(Classes(), ", "))
	}
	return newFamily, nil
}

// declare is the pipeline of an index with the components that it has, of which
// nothing but the configs is read.
func (x index) declare(fsys fs.FS) (*Pipeline, []component, error) {
	newFamily, err := x.family(fsys)
	if err != nil {
		return nil, nil, err
	}
	p := &Pipeline{Autoencoder: &Autoencoder{}, Class: x.class, family: newFamily()}
	p.loader = &loader{fsys: fsys, points: &p.points}
	components, err := p.declare(p.loader)
	return p, components, err
}

// modelConfig is the config of a component that is a model.
const modelConfig = "config.json"

// configOf is the file that a component of some class cannot do without, ""
// where there are several ways.
func configOf(class string) string {
	switch {
	case strings.HasSuffix(class, "Scheduler"):
		return "scheduler_config.json"
	case strings.Contains(class, "Tokenizer"):
		return ""
	case strings.HasSuffix(class, "Processor"), strings.HasSuffix(class, "FeatureExtractor"):
		return "preprocessor_config.json"
	}
	return modelConfig
}

// missing lists the components' folders and configs that are not there.
func (x index) missing(fsys fs.FS) (names []string) {
	_, supported := classes[x.class]
	for _, name := range slices.Sorted(maps.Keys(x.components)) {
		has := func(file string) bool {
			_, err := fs.Stat(fsys, path.Join(name, file))
			return !errors.Is(err, fs.ErrNotExist)
		}
		file := configOf(x.components[name])
		if file == "" && supported && !(has("vocab.json") && has("merges.txt")) {
			file = "tokenizer.json"
		}
		if file == "preprocessor_config.json" && has("processor_config.json") {
			file = "processor_config.json" // as transformers 5 writes it
		}
		if !has("") {
			names = append(names, name+"/")
		} else if !has(file) {
			names = append(names, path.Join(name, file))
		}
	}
	return names
}

// incomplete is the error about files that are missing, nil for none.
func (x index) incomplete(fsys fs.FS, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("model folder %s: is not complete (is the download complete?), missing: %s", checkpoint.FullName(fsys, ""), strings.Join(missing, ", "))
}
