// Package parity compares the tensors of this program with those of a reference's dump
// (scripts/reference), one by one, under the names of diffusers' modules. [Replay] runs a dump's
// settings again and finds the first module that computes something else. [Bisect] has the
// reference record more until that module is known, [Live] compares while the reference runs, and
// [DiffRuns] compares two saved runs. What they find is in package report.
package parity

import (
	"cmp"
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
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
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
	Scheduler         string            `json:"scheduler"` // "" is the model's own
	GuidanceInterval  []float64         `json:"guidance_interval"`
	Sigmas            []float64         `json:"sigmas"`            // that were asked for, nil for the model's
	TrueCFGScale      float64           `json:"true_cfg_scale"`    // 0: without, as the next two
	CFGNormalization  float64           `json:"cfg_normalization"` // 1 is true
	CFGTruncation     float64           `json:"cfg_truncation"`
	StepCache         string            `json:"step_cache"`     // "" is no step cache
	Picture           string            `json:"picture"`        // input of image-to-image, in or next to the dump's folder
	ImageStrength     float64           `json:"image_strength"` // how much of the picture is kept
	Mask              string            `json:"mask"`           // what is inpainted of Picture, found as it is
	MaskCrop          *int              `json:"mask_crop"`      // padding of the crop around the mask; nil: no crop
	MaskBlur          int               `json:"mask_blur"`      // see [inpaint.Options.Feather]
	Pasted            bool              `json:"pasted"`         // in streams: the last value is image.pasted
	Posterior         string            `json:"posterior"`      // "sample" if the latents of Picture were drawn; "" is their mean
	References        []string          `json:"references"`     // reference images of an edit, found as Picture is
	FirstStep         int               `json:"first_step"`     // the first step that ran
	Compute           string            `json:"compute"`        // the dtype of the computation
	Pipeline          string            `json:"pipeline"`       // the class of diffusers
	Passes            string            `json:"passes"`         // "calls" if prompt and negative prompt were two calls, not a batch
	Upscaler          bool              `json:"upscaler"`       // the model enlarges Picture
	ColorCorrection   string            `json:"color_correction"`
	NewTokens         int               `json:"new_tokens"` // what a language model writes; 0 in runs of pipelines
	Never             []int             `json:"never"`      // ids that it must not write
	Files             []string          `json:"files"`
	Shapes            map[string][]int  `json:"shapes"`
	Aliases           map[string]string `json:"aliases"`
}

// A Run is a folder with settings.json and tensors: a reference's dump, or a run that this
// program saved. Its methods must be called on the MLX thread.
type Run struct {
	Settings
	arrays map[string]*mlx.Array
	dtypes map[string]string          // as stored
	given  map[string]json.RawMessage // the keys of settings.json; nil without such a file
	stats  map[string]runs.Record     // by name; nil without traces/stats.jsonl
	live   *stream                    // where the tensors come from while the run goes on; nil if it has ended
}

// OpenRun reads the run in a folder. Its tensors live until the MLX job ends. If the settings list
// no files, or there are no settings, all files of tensors in the folder and its folder tensors
// are read: safetensors, .npy and .npz. Statistics of tensors are read too.
func OpenRun(fsys fs.FS) (*Run, error) {
	r := &Run{arrays: map[string]*mlx.Array{}, dtypes: map[string]string{}}
	if err := r.readSettings(fsys); err != nil {
		return nil, err
	}
	if err := r.readStats(fsys); err != nil {
		return nil, err
	}
	files := r.Files
	if files == nil {
		var err error
		if files, err = runs.ArrayFiles(fsys); err != nil {
			return nil, fmt.Errorf("%s: %w", checkpoint.FullName(fsys, "."), err)
		}
	}
	if r.given == nil && r.stats == nil && len(files) == 0 {
		return nil, fmt.Errorf("%s: not the folder of a run: it has neither settings.json nor tensors (.safetensors, .npy or .npz files)",
			checkpoint.FullName(fsys, "."))
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

// readSettings reads settings.json, if the folder has it.
func (r *Run) readSettings(fsys fs.FS) error {
	err := checkpoint.ReadJSON(fsys, "settings.json", &r.Settings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = checkpoint.ReadJSON(fsys, "settings.json", &r.given)
	}
	return err
}

// checkSettings reports what a folder lacks to be replayed.
func (r *Run) checkSettings(run string) error {
	const instead = "gomflux parity diff compares the tensors of two folders without it"
	if r.given == nil {
		return fmt.Errorf("run %s: %w: it has no settings.json with the run's prompt, size and steps (%s)", run, ErrRun, instead)
	}
	if len(r.arrays) == 0 && len(r.stats) > 0 {
		return fmt.Errorf("run %s: %w: it has only statistics of tensors (gomflux parity diff compares them)", run, ErrRun)
	}
	var missing []string
	keys := []string{"prompt", "height", "width", "steps"}
	switch {
	case r.NewTokens > 0:
		keys = nil
	case r.Upscaler:
		keys = []string{"picture", "height", "width"}
	}
	for _, key := range keys {
		if _, ok := r.given[key]; !ok {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("run %s: %w: its settings.json has no %s (%s)", run, ErrRun, strings.Join(missing, ", "), instead)
	}
	return nil
}

// read reads the tensors of a file. That of a .npy file has the file's name. Values of float64, NumPy's default,
// are rounded to float32, in which everything is compared.
func (r *Run) read(fsys fs.FS, name string) error {
	name = path.Clean(name)
	f, err := checkpoint.OpenArraysFS(fsys, name)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, t := range f.Tensors() {
		if r.arrays[t.Name] != nil {
			return fmt.Errorf("%s: tensor %s is also in another file", checkpoint.FullName(fsys, name), t.Name)
		}
		x, err := f.Read(t.Name)
		if err != nil {
			return err
		}
		if t.Dtype == checkpoint.F64 {
			if x, err = x.Cast(checkpoint.F32); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
		}
		if r.arrays[t.Name], err = runs.ToArray(x); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		r.dtypes[t.Name] = t.Dtype.Long()
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
		if d := report.Compare(x.Floats(), have.Floats()); !(d.L2 <= most) {
			return fmt.Errorf(another, name, d)
		}
	}
	return nil
}

// Array returns a tensor of the run, or nil.
func (r *Run) Array(name string) *mlx.Array {
	x := r.arrays[r.stored(name)]
	if r.live != nil && x != nil {
		return x.Reshape(x.Shape()...) // which lives on where x is freed
	}
	return x
}

// pastes reports whether the result of inpainting is pasted into the picture.
func (r *Run) pastes() bool {
	if r.live != nil {
		return r.Pasted
	}
	return r.Array(report.PastedValue) != nil
}

// stored returns the name that a tensor has in the files.
func (r *Run) stored(name string) string { return cmp.Or(r.Aliases[name], name) }

// Names lists every tensor of the run.
func (r *Run) Names() []string {
	if r.live != nil {
		return slices.Sorted(maps.Keys(r.live.names))
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.arrays)), maps.Keys(r.Aliases))
	slices.Sort(names)
	return slices.Compact(names)
}

// has reports whether some tensor's name begins with prefix.
func (r *Run) has(prefix string) bool {
	begins := func(name string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(r.recorded(), begins)
}

// folder is the file system of a run's folder, which knows its name.
func folder(run string) fs.FS { return checkpoint.Folder{FS: os.DirFS(run), Name: run} }

// ErrRun is wrapped by errors about dumps that cannot be replayed.
var ErrRun = errors.New("cannot be replayed")

// readStats reads the statistics of a run's tensors, if it has any. Of several tensors of one name
// the later ones are further calls, as saved tensors are.
func (r *Run) readStats(fsys fs.FS) error {
	records, err := runs.ReadStats(fsys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", checkpoint.FullName(fsys, "."), err)
	}
	r.stats = map[string]runs.Record{}
	for _, rec := range records {
		name := rec.Name
		if n, err := hooks.ParseName(name); err == nil && rec.HitCount > 1 {
			n.Call += rec.HitCount - 1
			name = n.String()
		}
		r.stats[name] = rec
	}
	return nil
}
