// Package inspect examines the weights of models without generating images: it checks
// whether a model is complete and supported ([Model]), lists the tensors of its
// components with statistics ([OpenWeights]), compares the tensors of two models
// ([Compare]), and describes the parameters of a loaded model ([Loaded]).
package inspect

import (
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
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// An Info describes a model without loading it.
type Info struct {
	// Class is the pipeline class, "" if model_index.json does not name one.
	Class string
	// Size is the total size of all files in bytes.
	Size int64
	// Quantization is the quantization of most quantized layers, as accepted by
	// [component.ParseQuantization]; "" if no layer is quantized.
	Quantization string
	// Packed is ComfyUI's format of most layers that are dequantized while they are loaded, such as
	// int8_tensorwise; "" if no layer is.
	Packed string
	// Incomplete lists the missing or damaged files on one line; nil if there are no
	// such files.
	Incomplete error
	// Unsupported is the reason why this version cannot run the model, and wraps
	// [errs.ErrUnsupported]; nil for a supported model.
	Unsupported error
	// Declared is the pipeline that the configs describe, nil if one of them is missing, damaged or
	// not supported.
	Declared *family.Declared
}

// Model checks a model folder in diffusers' layout by its configs, its tokenizers and the headers
// of its safetensors files. Headers must agree with the sizes of the files. For supported
// classes they must also describe the tensors that the configs require. Model does not
// read tensors, does not need MLX, and reports all problems at once.
func Model(fsys fs.FS) Info {
	i := inspection{fsys: fsys, layers: map[string]int{}, packed: map[string]int{}}
	var err error
	i.Size, err = totalSize(fsys)
	i.add(err)
	x, err := index.Read(fsys)
	i.add(err)
	if err == nil {
		i.Class = x.Class
		i.components(x)
		i.Quantization = most(i.layers, component.Quantizations)
		i.Packed = most(i.packed, checkpoint.PackedFormats)
	} else {
		i.weightFolders()
	}
	i.Incomplete = i.damage.Err()
	return i.Info
}

// An inspection collects the problems of a model folder.
type inspection struct {
	Info
	fsys   fs.FS
	damage errs.List
	layers map[string]int // the number of quantized layers by quantization
	packed map[string]int // the number of layers that will be dequantized by format
}

func (i *inspection) add(err error) {
	if errors.Is(err, errs.ErrUnsupported) {
		i.Unsupported = err
	} else if err != nil {
		i.damage = append(i.damage, err)
	}
}

// weightFolders checks the weights in a folder without a model_index.json: the files of
// a component, or folders of several components.
func (i *inspection) weightFolders() {
	dirs, err := checkpoint.WeightFolders(i.fsys)
	if err != nil {
		return // reported by totalSize
	}
	for _, dir := range dirs {
		files, _ := fs.Glob(i.fsys, path.Join(dir, "*.safetensors"))
		indexes, _ := fs.Glob(i.fsys, path.Join(dir, "*.safetensors.index.json"))
		if len(files) != 1 && len(indexes) != 1 {
			continue // alternatives, which are not a component together
		}
		ck, err := checkpoint.OpenCheckpoint(i.fsys, dir)
		if err == nil {
			err = ck.Close()
		}
		i.add(err)
	}
}

// components checks the components that an index names.
func (i *inspection) components(x index.Index) {
	class, err := family.Of(i.fsys, x)
	i.add(err)
	missing := x.Missing(i.fsys, class != nil)
	i.add(index.MissingError(i.fsys, missing))
	parts := map[string]component.Component{} // with nothing but the folder for unsupported classes
	for _, dir := range x.Models() {
		if !slices.ContainsFunc(missing, func(file string) bool { return strings.HasPrefix(file, dir+"/") }) {
			parts[dir] = component.Component{Dir: dir}
		}
	}
	if class != nil && len(missing) == 0 {
		d, components, err := declare(i.fsys, x)
		i.add(err)
		if err == nil {
			i.Declared = d
		}
		for _, c := range components {
			parts[c.Dir] = c
		}
		for _, dir := range class.Tokenizers() {
			i.add(tokenizer.Check(i.fsys, dir))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(parts)) {
		i.add(i.component(parts[dir]))
	}
}

// component checks a component's files and, if it is declared, their tensors. It counts
// the quantized layers.
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
		} else if format := f.PackedFormat(); format != "" {
			i.packed[format]++
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
	return fmt.Errorf("%s %s", m.Title(), strings.Join(parts, ", "))
}

// most returns the one of several quantizations that most layers have, "" if no layer has any.
func most(layers map[string]int, quantizations []string) (most string) {
	for _, name := range quantizations {
		if layers[name] > layers[most] {
			most = name
		}
	}
	return most
}

// totalSize returns the size of all files in bytes. Links are followed, and a file that
// occurs several times is counted once. Hidden folders are those of Git or of
// huggingface_hub, with parts of downloads.
func totalSize(fsys fs.FS) (n int64, err error) {
	var counted []fs.FileInfo
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := fs.Stat(fsys, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a dangling link, which may not be needed
		}
		same := func(other fs.FileInfo) bool { return os.SameFile(other, info) }
		if err == nil && info.Mode().IsRegular() && !slices.ContainsFunc(counted, same) {
			n += info.Size()
			counted = append(counted, info)
		}
		return err
	})
	return n, err
}
