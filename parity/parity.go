// Package parity compares what this program computes with what a reference
// dumped (scripts/reference): tensor by tensor, under the names that diffusers'
// modules have.
package parity

import (
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/weights"
)

// Settings is settings.json of a dump: what was run, and where its tensors are.
type Settings struct {
	Model             string            `json:"model"` // its folder, seen from that of all goldens
	Prompt            string            `json:"prompt"`
	NegativePrompt    *string           `json:"negative_prompt"`
	Seed              uint64            `json:"seed"` // of the initial noise, drawn by PyTorch
	Steps             int               `json:"steps"`
	Guidance          float64           `json:"guidance"`
	Height            int               `json:"height"`
	Width             int               `json:"width"`
	MaxSequenceLength int               `json:"max_sequence_length"`
	Scheduler         string            `json:"scheduler"`      // "" is the model's own
	Picture           string            `json:"picture"`        // what it was made from, beside the dump's folder; "" is nothing
	ImageStrength     float64           `json:"image_strength"` // how much of that is kept
	FirstStep         int               `json:"first_step"`     // that ran
	Files             []string          `json:"files"`
	Shapes            map[string][]int  `json:"shapes"`
	Aliases           map[string]string `json:"aliases"`
}

// A Run is a reference's dump. Its methods must be called on the MLX thread.
type Run struct {
	Settings
	arrays map[string]*mlx.Array
}

// OpenRun reads the dump in a folder. Its arrays live until the job ends.
func OpenRun(fsys fs.FS) (*Run, error) {
	r := &Run{arrays: map[string]*mlx.Array{}}
	if err := weights.ReadJSON(fsys, "settings.json", &r.Settings); err != nil {
		return nil, err
	}
	for _, name := range r.Files {
		if err := r.read(fsys, name); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Run) read(fsys fs.FS, name string) error {
	f, err := weights.Open(fsys, name)
	if err != nil {
		return err
	}
	defer f.Close()
	path, err := f.Path()
	if err != nil {
		return err
	}
	names := make([]string, 0, len(f.Header.Tensors))
	for name := range f.Header.Tensors {
		names = append(names, name)
	}
	arrays, err := mlx.LoadSafetensors(path, names)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for name, a := range arrays {
		mlx.Eval(a)
		r.arrays[name] = a
	}
	return nil
}

// Array is a tensor of the dump, or nil.
func (r *Run) Array(name string) *mlx.Array {
	if alias, ok := r.Aliases[name]; ok {
		name = alias
	}
	return r.arrays[name]
}

// Names lists every tensor of the dump.
func (r *Run) Names() []string {
	var names []string
	for name := range r.arrays {
		names = append(names, name)
	}
	for name := range r.Aliases {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A Tolerance is how far a tensor may be off, for one device, dtype and stage.
type Tolerance struct {
	Max float64 // largest error over the largest reference value
	L2  float64 // norm of the error over the reference's norm
}

// absoluteFloor is what two implementations may differ by around zero.
const absoluteFloor = 1e-7

// Float32 is what a module computed in float32 on a CPU must hold, given the
// reference's inputs. Looser hides real bugs: the wrong GELU is off by 7e-5.
var Float32 = Tolerance{Max: 2e-5, L2: 1e-5}

// A Difference is what lies between a tensor and its reference.
type Difference struct {
	Max    float64 // largest absolute error
	MaxRef float64 // largest absolute reference value
	L2     float64 // norm of the error over the reference's norm
	At     int     // where the largest error is, in row-major order
	Finite bool    // both are finite everywhere
}

// Compare measures got against want, which must be of one length.
func Compare(got, want []float32) Difference {
	d := Difference{Finite: true}
	var errors, norm float64
	for i, w := range want {
		g, w := float64(got[i]), float64(w)
		e := math.Abs(g - w)
		if math.IsNaN(e) || math.IsInf(e, 0) {
			d.Finite, d.At = false, i
			continue
		}
		errors += e * e
		norm += w * w
		if e > d.Max {
			d.Max, d.At = e, i
		}
		d.MaxRef = max(d.MaxRef, math.Abs(w))
	}
	d.L2 = ratio(math.Sqrt(errors), math.Sqrt(norm))
	return d
}

// Relative is the largest error over the largest reference value.
func (d Difference) Relative() float64 { return ratio(d.Max, d.MaxRef) }

// ratio is an error over its reference, 0 where there is no error.
func ratio(e, ref float64) float64 {
	if e == 0 {
		return 0
	}
	return e / ref
}

// Within says whether the difference is one of rounding.
func (d Difference) Within(t Tolerance) bool {
	return d.Finite && (d.Max <= absoluteFloor || d.Relative() <= t.Max && d.L2 <= t.L2)
}

func (d Difference) String() string {
	if !d.Finite {
		return fmt.Sprintf("not finite at %d", d.At)
	}
	return fmt.Sprintf("max %.2e of %.3g (%.2e) at %d, L2 %.2e", d.Max, d.MaxRef, d.Relative(), d.At, d.L2)
}
