// Package inspect looks at the weights of model folders without running them: what
// there is of a model and what is wrong with it ([Model]), the tensors of its
// components and their statistics ([OpenWeights]), how those of two models differ
// ([Compare]), and what its parameters are in memory ([Loaded]).
package inspect

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
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// An Info is what can be told of a model without loading it.
type Info struct {
	// Class is the pipeline class, "" where model_index.json does not tell.
	Class string
	// Size is that of all files together, in bytes.
	Size int64
	// Quantization is how most of the quantized layers are, as
	// [component.ParseQuantization] takes it; "" if none is.
	Quantization string
	// Incomplete says which files are missing or damaged, on one line; nil for
	// none.
	Incomplete error
	// Unsupported says what this version cannot run, and wraps
	// [errs.ErrUnsupported]; nil for a model that it can run.
	Unsupported error
}

// Model judges a model folder in diffusers' layout by its configs and by the
// headers of its safetensors files, which have to fit the files' sizes and, of a
// class that this version runs, to have the tensors that the configs ask for.
// It reads no tensors, needs no MLX, and finds all that is wrong at once.
func Model(fsys fs.FS) Info {
	i := inspection{fsys: fsys, layers: map[string]int{}}
	info := Info{}
	var err error
	info.Size, err = sizeOf(fsys)
	i.add(err)
	x, err := index.Read(fsys)
	i.add(err)
	if err == nil {
		info.Class = x.Class
		i.components(x)
		info.Quantization = i.quantization()
	} else {
		i.parts()
	}
	info.Incomplete, info.Unsupported = i.damage.Err(), i.unsupported
	return info
}

// An inspection gathers what is wrong with a model folder.
type inspection struct {
	fsys        fs.FS
	damage      errs.List
	unsupported error
	layers      map[string]int // that are quantized, by their quantization
}

func (i *inspection) add(err error) {
	if errors.Is(err, errs.ErrUnsupported) {
		i.unsupported = err
	} else if err != nil {
		i.damage = append(i.damage, err)
	}
}

// parts looks at what there is of weights in a folder that is no whole model: all
// files of one component, or of several in folders.
func (i *inspection) parts() {
	dirs, err := checkpoint.WeightFolders(i.fsys)
	if err != nil {
		return // said before
	}
	for _, dir := range dirs {
		files, _ := fs.Glob(i.fsys, path.Join(dir, "*.safetensors"))
		indexes, _ := fs.Glob(i.fsys, path.Join(dir, "*.safetensors.index.json"))
		if len(files) != 1 && len(indexes) != 1 {
			continue // of which none is meant by itself
		}
		ck, err := checkpoint.OpenCheckpoint(i.fsys, dir)
		if err == nil {
			err = ck.Close()
		}
		i.add(err)
	}
}

// components looks at the components that an index names.
func (i *inspection) components(x index.Index) {
	class, err := family.Of(i.fsys, x)
	i.add(err)
	missing := x.Missing(i.fsys, class != nil)
	i.add(index.MissingError(i.fsys, missing))
	parts := map[string]component.Component{} // of other classes nothing but the folder is known
	for _, dir := range x.Models() {
		if !slices.ContainsFunc(missing, func(file string) bool { return strings.HasPrefix(file, dir+"/") }) {
			parts[dir] = component.Component{Dir: dir}
		}
	}
	if class != nil && len(missing) == 0 {
		components, err := declare(i.fsys, x)
		i.add(err)
		for _, c := range components {
			parts[c.Dir] = c
		}
		for _, dir := range slices.Sorted(maps.Keys(x.Components)) {
			if index.IsTokenizer(x.Components[dir]) {
				i.add(checkTokenizer(i.fsys, dir))
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		i.add(i.component(parts[dir]))
	}
}

// component looks at a component's files and, if it is declared, at their tensors,
// of which it counts the quantized ones.
func (i *inspection) component(c component.Component) error {
	ck, err := c.Open(i.fsys)
	if err != nil {
		return err
	}
	defer ck.Close()
	if c.Model == nil {
		return nil
	}
	found, m := c.Match(ck)
	for _, f := range found {
		if f.Quantized != nil {
			i.layers[component.QuantizationName(*f.Quantized)]++
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

// quantization is how most of the quantized layers are, "" if there are none.
func (i *inspection) quantization() (most string) {
	for _, name := range component.Quantizations {
		if i.layers[name] > i.layers[most] {
			most = name
		}
	}
	return most
}

// checkTokenizer makes sure that the file with a tokenizer's vocabulary is whole.
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
