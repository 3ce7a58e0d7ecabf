// Package parity compares the tensors of this program with those of a reference's dump
// (scripts/reference), one by one, under the names of diffusers' modules. [Replay] runs a dump's
// settings again and finds the first module that computes something else. [Bisect] has the
// reference record more until that module is known, and [DiffRuns] compares two saved runs.
package parity

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// Settings is settings.json of a dump: the settings of the run, and where its tensors are.
type Settings struct {
	Model             string            `json:"model"` // a name or a folder, relative to the dump or a folder above it
	Prompt            string            `json:"prompt"`
	NegativePrompt    *string           `json:"negative_prompt"`
	Seed              uint64            `json:"seed"` // of the initial noise
	RNG               string            `json:"rng"`  // generator of the noise; "" is torch
	Steps             int               `json:"steps"`
	Guidance          float64           `json:"guidance"`
	Height            int               `json:"height"`
	Width             int               `json:"width"`
	MaxSequenceLength int               `json:"max_sequence_length"`
	Scheduler         string            `json:"scheduler"`      // "" is the model's own
	Picture           string            `json:"picture"`        // input of image-to-image, in or next to the dump's folder
	ImageStrength     float64           `json:"image_strength"` // how much of the picture is kept
	References        []string          `json:"references"`     // reference images of an edit, found as Picture is
	FirstStep         int               `json:"first_step"`     // the first step that ran
	Compute           string            `json:"compute"`        // the dtype of the computation
	Passes            string            `json:"passes"`         // "calls" if prompt and negative prompt were two calls, not a batch
	Files             []string          `json:"files"`
	Shapes            map[string][]int  `json:"shapes"`
	Aliases           map[string]string `json:"aliases"`
}

// A Run is a folder with settings.json and tensors: a reference's dump, or a run that this
// program saved. Its methods must be called on the MLX thread.
type Run struct {
	Settings
	arrays map[string]*mlx.Array
	dtypes map[string]string // as stored
}

// OpenRun reads the run in a folder. Its tensors live until the MLX job ends. If the settings list
// no files, all safetensors files in the folder and its folder tensors are read.
func OpenRun(fsys fs.FS) (*Run, error) {
	r := &Run{arrays: map[string]*mlx.Array{}, dtypes: map[string]string{}}
	if err := checkpoint.ReadJSON(fsys, "settings.json", &r.Settings); err != nil {
		return nil, err
	}
	files := r.Files
	if files == nil {
		for _, pattern := range []string{"*.safetensors", "tensors/*.safetensors"} {
			names, err := fs.Glob(fsys, pattern)
			if err != nil {
				return nil, err
			}
			files = append(files, names...)
		}
	}
	for _, name := range files {
		if err := r.read(fsys, name); err != nil {
			return nil, err
		}
	}
	for name, at := range r.Aliases {
		if r.arrays[at] == nil {
			return nil, fmt.Errorf("%s: alias %s: no file has the tensor %s", checkpoint.FullName(fsys, "settings.json"), name, at)
		}
	}
	return r, nil
}

func (r *Run) read(fsys fs.FS, name string) error {
	f, err := checkpoint.Open(fsys, path.Clean(name))
	if err != nil {
		return err
	}
	defer f.Close()
	file, err := f.Path()
	if err != nil {
		return err
	}
	arrays, err := mlx.LoadSafetensors(file, slices.Collect(maps.Keys(f.Header.Tensors)))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for tensor, a := range arrays {
		if r.arrays[tensor] != nil {
			return fmt.Errorf("%s: tensor %s is also in another file", checkpoint.FullName(fsys, name), tensor)
		}
		mlx.Eval(a) // while the file is open
		r.arrays[tensor] = a
		r.dtypes[tensor] = a.Dtype().String()
	}
	return nil
}

// add adds the tensors of another recording of the same run.
func (r *Run) add(other *Run) error {
	for _, name := range other.Names() {
		x, have := other.Array(name), r.Array(name)
		if have == nil {
			r.arrays[name], r.dtypes[name] = x, other.dtypes[other.stored(name)]
			if shape, ok := other.Shapes[name]; ok {
				if r.Shapes == nil {
					r.Shapes = map[string][]int{}
				}
				r.Shapes[name] = shape
			}
			continue
		}
		const another = "%s: not a recording of the same run (%v): has the reference or its model changed?"
		if !slices.Equal(x.Shape(), have.Shape()) {
			return fmt.Errorf(another, name, x.Shape())
		}
		const most = 0.05 // devices round differently
		if d := Compare(x.Floats(), have.Floats()); !(d.L2 <= most) {
			return fmt.Errorf(another, name, d)
		}
	}
	return nil
}

// Array returns a tensor of the run, or nil.
func (r *Run) Array(name string) *mlx.Array { return r.arrays[r.stored(name)] }

// stored returns the name that a tensor has in the files.
func (r *Run) stored(name string) string { return cmp.Or(r.Aliases[name], name) }

// Names lists every tensor of the run.
func (r *Run) Names() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.arrays)), maps.Keys(r.Aliases))
	slices.Sort(names)
	return slices.Compact(names)
}

// has reports whether some tensor's name begins with prefix.
func (r *Run) has(prefix string) bool {
	begins := func(name string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(r.Names(), begins)
}

// ErrRun is wrapped by errors about dumps that cannot be replayed.
var ErrRun = errors.New("cannot be replayed")
