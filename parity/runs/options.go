package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// Options configure what a [Session] does with the tensors of a run.
type Options struct {
	// Save lists globs of the names to save, in which * matches anything. A glob that begins
	// with ! excludes names. A glob without a step matches every step.
	Save []string
	// Stats lists globs, as in Save, of the names whose statistics are recorded in [StatsFile].
	Stats []string
	// Load lists tensors that replace those of the run.
	Load []Replacement
	// ExitAfter is the name of the tensor after which the run ends with [ErrExit]; "" runs to the
	// end. A name without a step is that of the first step.
	ExitAfter string
	// CheckFinite ends the run at the first tensor with NaN or infinite values.
	CheckFinite bool
	// BoundsCheck evaluates every tensor at once, so that errors of MLX, such as an index out of
	// bounds, name the module.
	BoundsCheck bool
}

// Records reports whether the options write a run. Loading alone writes nothing.
func (o *Options) Records() bool { return len(o.Save)+len(o.Stats) > 0 }

// UsesTree reports whether the options read from a tree or write to one.
func (o *Options) UsesTree() bool { return o.Records() || len(o.Load) > 0 }

// Any reports whether any option is set.
func (o *Options) Any() bool {
	return o.UsesTree() || o.ExitAfter != "" || o.CheckFinite || o.BoundsCheck
}

// A Replacement is a tensor that replaces one of the run's.
type Replacement struct {
	Name  hooks.Name           // of the run's tensor; without a step it is that of every step
	From  checkpoint.Reference // where to read it; without a file it is the tree
	Saved string               // its name in the tree
}

// ParseReplacement parses NAME=FILE[:KEY][@CAST], NAME=SAVED[@CAST] with the name of a tensor that
// either side has saved, or NAME[@CAST] for the one saved under the same name. Text that names no
// existing file is a saved name, unless it contains a folder or has an extension of tensor files.
func ParseReplacement(s string) (Replacement, error) {
	name, from, given := strings.Cut(s, "=")
	r := Replacement{}
	if at := strings.LastIndexByte(name, '@'); !given && at >= 0 {
		if cast, err := checkpoint.ParseDtype(name[at+1:]); err == nil {
			r.From.Cast, name = cast, name[:at]
		}
	}
	var err error
	if r.Name, err = hooks.ParseName(name); err != nil {
		return Replacement{}, err
	}
	switch {
	case r.Name.Point.Kind == hooks.Input:
		return Replacement{}, fmt.Errorf("%s: an input cannot be replaced (replace the output that it comes from)", name)
	case r.Name.Point.OnRequest():
		return Replacement{}, fmt.Errorf("%s: nothing is computed from it, so it cannot be replaced (q, k and v can)", name)
	case !given:
		r.Saved = name
		return r, nil
	}
	if r.From, err = checkpoint.ParseReference(from); err == nil && r.From.Key == "" && isName(r.From.File) {
		r.From.File, r.Saved = "", r.From.File
	}
	return r, err
}

// isName reports whether text can only be the name of a saved tensor.
func isName(s string) bool {
	extensions := []string{".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin"}
	if strings.ContainsAny(s, `/\`) || slices.Contains(extensions, filepath.Ext(s)) {
		return false
	}
	_, err := os.Stat(s)
	return err != nil
}

// matches reports whether a name is the wanted one. A wanted name without a step matches every
// step.
func matches(want, name hooks.Name) bool {
	return want.Module == name.Module && want.Call == name.Call && want.Point == name.Point &&
		(want.Step < 0 || want.Step == name.Step)
}

func checkExit(name string) error {
	n, err := hooks.ParseName(name)
	switch {
	case err != nil:
	case n.Point.Kind == hooks.Input:
		err = fmt.Errorf("%s: a run cannot end at an input (name the output that it comes from)", name)
	case n.Point.Key == hooks.Entropy:
		err = fmt.Errorf("%s: a run cannot end at the entropy (name the weights)", name)
	}
	return err
}

// Check validates the options before anything runs: names, and that files and tensors exist.
func (o *Options) Check() error {
	for _, glob := range slices.Concat(o.Save, o.Stats) {
		if err := CheckGlob(glob); err != nil {
			return err
		}
	}
	if o.ExitAfter != "" {
		if err := checkExit(o.ExitAfter); err != nil {
			return err
		}
	}
	seen := map[hooks.Name]bool{}
	for _, r := range o.Load {
		if seen[r.Name] {
			return fmt.Errorf("%s is replaced twice", r.Name)
		}
		seen[r.Name] = true
		if r.From.File == "" {
			continue
		}
		f, info, err := r.From.Open(r.Name.String())
		if err != nil {
			return err
		}
		f.Close()
		if !info.Dtype.IsNumeric() {
			return fmt.Errorf("%s: dtype %s cannot be read as numbers", r.From, info.Dtype)
		}
	}
	return nil
}
