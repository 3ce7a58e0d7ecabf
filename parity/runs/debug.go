package runs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// current is the process's run, which the first [Save] begins, and the tree that it is in.
var current struct {
	sync.Mutex
	run  *Run
	tree *Tree
}

func (r *Run) makeCurrent() {
	current.Lock()
	defer current.Unlock()
	current.run, current.tree = r, r.Tree
}

// MakeCurrent makes a tree the one in which the first [Save] begins a run, unless there is a run
// already.
func (t *Tree) MakeCurrent() {
	current.Lock()
	defer current.Unlock()
	if current.run == nil {
		current.tree = t
	}
}

// TakeCurrent undoes MakeCurrent. It returns the run that was begun in the tree in the meantime, by a [Save] or a
// [Session], or nil.
func (t *Tree) TakeCurrent() *Run {
	current.Lock()
	defer current.Unlock()
	if current.tree != t {
		return nil
	}
	r := current.run
	current.run, current.tree = nil, nil
	return r
}

// theTree returns the tree of the process's run, or else the default one.
func theTree() (*Tree, error) {
	current.Lock()
	defer current.Unlock()
	if current.tree != nil {
		return current.tree, nil
	}
	return Open("")
}

// theRun returns the process's run, and begins it if necessary.
func theRun() (*Run, error) {
	t, err := theTree()
	if err != nil {
		return nil, err
	}
	current.Lock()
	defer current.Unlock()
	if current.run == nil {
		current.tree = t
		current.run, err = t.Start(Gomflux)
	}
	return current.run, err
}

// An Option changes what [Save] or [Checkpoint] does.
type Option int

const (
	// Exit ends the MLX job after the tensor is saved: its Do returns an error that is [ErrExit].
	Exit Option = iota + 1
	// Skip makes [Checkpoint] not stop a run under the debugger.
	Skip
)

// ErrExit is wrapped by errors of runs that ended on request, after a tensor was saved or passed.
var ErrExit = errors.New("ended as requested")

// Save saves an array under a name in the latest run of gomflux's side, which the first call
// begins. Like the operations of package mlx it must run on the MLX thread, and ends the job if it
// fails.
func Save(name string, x *mlx.Array, options ...Option) {
	if _, err := SaveAs(name, x, UserCode()); err != nil {
		mlx.Throw(err)
	}
	for _, o := range options {
		if o == Exit {
			mlx.Throw(fmt.Errorf("%w after %s was saved", ErrExit, name))
		}
	}
}

// SaveAs saves an array as [Save] does, with the place where it was computed, and returns the file.
func SaveAs(name string, x *mlx.Array, at Location) (file string, err error) {
	r, err := theRun()
	if err != nil {
		return "", err
	}
	t, err := FromArray(name, x)
	if err != nil {
		return "", err
	}
	return r.Save(t, at)
}

// Load reads the tensor that either side saved under a name; see [Tree.Find]. Like Save it must run
// on the MLX thread, and ends the job if it fails.
func Load(name string) *mlx.Array {
	var t *checkpoint.Array
	tree, err := theTree()
	if err == nil {
		t, err = tree.Load(name)
	}
	var a *mlx.Array
	if err == nil {
		a, err = ToArray(t)
	}
	if err != nil {
		mlx.Throw(err)
	}
	return a
}

// stopAt stops a run under the debugger at a checkpoint. It is nil without a debugger.
var stopAt func(name string, variables map[string]any, at Location) error

// StopAtCheckpoints makes [Checkpoint] call a function, which may stop the run, with its arguments
// and place, after the file is written. It must be called before the run begins; nil undoes it.
func StopAtCheckpoints(f func(name string, variables map[string]any, at Location) error) { stopAt = f }

// Checkpoint writes the values of variables to a JSON file; see [Run.Checkpoint]. Arrays of MLX are
// written as tensors. Under the debugger it then stops the run, except with [Skip]. Like Save it
// must run on the MLX thread, and ends the job if it fails.
func Checkpoint(name string, variables, metadata map[string]any, options ...Option) {
	r, err := theRun()
	values := map[string]any{}
	for key, v := range variables {
		if a, ok := v.(*mlx.Array); ok && err == nil {
			v, err = FromArray(key, a)
		}
		values[key] = v
	}
	if err == nil {
		_, err = r.Checkpoint(name, values, metadata, UserCode())
	}
	if err == nil && stopAt != nil && !slices.Contains(options, Skip) {
		err = stopAt(name, variables, UserCode())
	}
	if err != nil {
		mlx.Throw(err)
	}
}

const module = "github.com/gomflux/gomflux/"

// UserCode returns the nearest caller outside of this package.
func UserCode() Location {
	return caller(func(function string) bool { return strings.HasPrefix(function, module+"parity/runs.") })
}

// ModelCode returns the place in a model that called package hooks. A hook calls it.
func ModelCode() Location {
	passed := false
	return caller(func(function string) bool {
		rest, ok := strings.CutPrefix(function, module)
		if ok && strings.HasPrefix(rest, "mlx/hooks.") {
			passed = true
			return true
		}
		return !passed || ok && strings.HasPrefix(rest, "mlx/nn.(*Module).")
	})
}

// ShortFile returns the name of a source file of this module from the module's folder on, and other
// names as they are.
func ShortFile(file string) string { return strings.TrimPrefix(file, source) }

// source is what the names of this module's source files begin with: the folder that it was built
// in, or the module's path if the build has trimmed it.
var source = strings.TrimSuffix(caller(func(string) bool { return false }).File, "parity/runs/debug.go")
