// Package parity compares what this program computes with what a reference
// dumped (scripts/reference): tensor by tensor, under the names that diffusers'
// modules have. [Replay] runs a dump's settings again and finds the first
// module that computes something else.
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

// Settings is settings.json of a dump: what was run, and where its tensors are.
type Settings struct {
	Model             string            `json:"model"` // its folder, seen from that of all goldens
	Prompt            string            `json:"prompt"`
	NegativePrompt    *string           `json:"negative_prompt"`
	Seed              uint64            `json:"seed"` // of the initial noise
	RNG               string            `json:"rng"`  // who draws that; "" is torch
	Steps             int               `json:"steps"`
	Guidance          float64           `json:"guidance"`
	Height            int               `json:"height"`
	Width             int               `json:"width"`
	MaxSequenceLength int               `json:"max_sequence_length"`
	Scheduler         string            `json:"scheduler"`      // "" is the model's own
	Picture           string            `json:"picture"`        // what it was made from, beside the dump's folder; "" is nothing
	ImageStrength     float64           `json:"image_strength"` // how much of that is kept
	References        []string          `json:"references"`     // pictures that the model was shown, found as Picture is
	FirstStep         int               `json:"first_step"`     // that ran
	Compute           string            `json:"compute"`        // the dtype that it ran in
	Passes            string            `json:"passes"`         // "calls": prompt and negative prompt are no batch
	Files             []string          `json:"files"`
	Shapes            map[string][]int  `json:"shapes"`
	Aliases           map[string]string `json:"aliases"`
}

// A Run is a folder with settings.json and tensors: a reference's dump, or what
// was saved of a run of this program. Its methods must be called on the MLX
// thread.
type Run struct {
	Settings
	arrays map[string]*mlx.Array
	dtypes map[string]string // as stored
}

// OpenRun reads the dump in a folder. Tensors are read when they are first
// looked at, and live until the job ends. Where the settings list no files, all
// safetensors files in the folder and its folder tensors count.
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
			return nil, fmt.Errorf("%s: %s is said to be stored as %s, which is in none of the files", checkpoint.FullName(fsys, "settings.json"), name, at)
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
			return fmt.Errorf("%s: tensor %s is in another file too", checkpoint.FullName(fsys, name), tensor)
		}
		mlx.Eval(a) // while the file is open
		r.arrays[tensor] = a
		r.dtypes[tensor] = a.Dtype().String()
	}
	return nil
}

// add adds what another record of the same run has.
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
		const another = "%s: this is another run than the first one (%v): was the reference changed, or its model?"
		if !slices.Equal(x.Shape(), have.Shape()) {
			return fmt.Errorf(another, name, x.Shape())
		}
		const most = 0.05 // devices may round differently, but no more than that
		if d := Compare(x.Floats(), have.Floats()); !(d.L2 <= most) {
			return fmt.Errorf(another, name, d)
		}
	}
	return nil
}

// Array is a tensor of the dump, or nil.
func (r *Run) Array(name string) *mlx.Array { return r.arrays[r.stored(name)] }

// stored is the name under which a tensor is in the files.
func (r *Run) stored(name string) string { return cmp.Or(r.Aliases[name], name) }

// Names lists every tensor of the dump.
func (r *Run) Names() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.arrays)), maps.Keys(r.Aliases))
	slices.Sort(names)
	return slices.Compact(names)
}

// has says whether some tensor's name begins with prefix.
func (r *Run) has(prefix string) bool {
	begins := func(name string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(r.Names(), begins)
}

// ErrRun is wrapped by errors about a dump that cannot be replayed.
var ErrRun = errors.New("cannot be replayed")
