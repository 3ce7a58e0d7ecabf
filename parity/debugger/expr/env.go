package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// An Env has the tensors and numbers of a stop. All tensors may be nil.
type Env struct {
	// Out is the tensor at which the run has stopped: out.
	Out *mlx.Array
	// Want is the reference's tensor in a replay: want.
	Want *mlx.Array
	// Inputs, Inner and Outputs are the other tensors of the call, by their keys: inp["0"],
	// inner["q"], outs["1"].
	Inputs, Inner, Outputs []hooks.Arg
	// Parameters lists the module's parameters: w["to_q.weight"].
	Parameters func() []hooks.Parameter
	// Load returns a saved tensor: load("NAME").
	Load func(name string) (*mlx.Array, error)

	// Step, Call, Negative and Hit are step (-1 outside of the denoising loop), call,
	// negative, and hit: how often the breakpoint has matched.
	Step, Call, Hit int
	Negative        bool
	// Sigma and Timestep are sigma and timestep: None if they are nil.
	Sigma, Timestep *float64
}

// stopNames are the names that only have a meaning at a stop.
var stopNames = []string{"out", "want", "inp", "inner", "outs", "w", "step", "call", "negative", "hit", "sigma", "timestep"}

// bind sets the names of the stop.
func (r *run) bind() error {
	env, names := r.env, r.in.names
	for name, a := range map[string]*mlx.Array{"out": env.Out, "want": env.Want} {
		delete(names, name)
		if a == nil {
			continue
		}
		t, err := r.alias(0, func() (*mlx.Array, error) { return a, nil })
		if err != nil {
			return err
		}
		names[name] = t
	}
	number := func(v *float64) starlark.Value {
		if v == nil {
			return starlark.None
		}
		return starlark.Float(*v)
	}
	names["step"], names["call"], names["hit"] = starlark.MakeInt(env.Step), starlark.MakeInt(env.Call), starlark.MakeInt(env.Hit)
	names["negative"] = starlark.Bool(env.Negative)
	names["sigma"], names["timestep"] = number(env.Sigma), number(env.Timestep)
	for _, name := range []string{"inp", "inner", "outs", "w"} {
		if names[name] == nil {
			names[name] = &group{r.in, name}
		}
	}
	return nil
}

// A group is a dictionary of the stop's tensors: inp, inner, outs or w. It always refers to the
// latest stop.
type group struct {
	in   *Interpreter
	name string
}

var _ starlark.IterableMapping = (*group)(nil)

func (g *group) String() string        { return g.name }
func (g *group) Type() string          { return "tensors" }
func (g *group) Freeze()               {}
func (g *group) Truth() starlark.Bool  { return g.Len() > 0 }
func (g *group) Hash() (uint32, error) { return starlark.String(g.name).Hash() }
func (g *group) Len() int              { return len(g.keys()) }

// args returns the tensors of a group other than w.
func (g *group) args() []hooks.Arg {
	r := g.in.running
	switch {
	case r == nil:
		return nil
	case g.name == "inp":
		return r.env.Inputs
	case g.name == "inner":
		return r.env.Inner
	}
	return r.env.Outputs
}

func (g *group) parameters() []hooks.Parameter {
	if r := g.in.running; r != nil && r.env.Parameters != nil {
		return r.env.Parameters()
	}
	return nil
}

func (g *group) keys() (out []string) {
	if g.name == "w" {
		for _, p := range g.parameters() {
			out = append(out, p.Path)
		}
		return out
	}
	for _, a := range g.args() {
		if a.Array != nil {
			out = append(out, a.Key)
		}
	}
	return out
}

// Get returns the tensor of a key.
func (g *group) Get(k starlark.Value) (starlark.Value, bool, error) {
	r := g.in.running
	if r == nil {
		return nil, false, errFreed
	}
	key, ok := starlark.AsString(k)
	if !ok {
		return nil, false, fmt.Errorf(`%s[%s]: expected a string, such as %s["%s"]`, g.name, brief(k), g.name, g.example(k))
	}
	t, err := g.find(r, key)
	if err == nil && t == nil {
		return nil, false, fmt.Errorf("%s has no %s (%s)", g.name, brief(k), g.hint(key))
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s[%s]: %w", g.name, brief(k), err)
	}
	return t, true, nil
}

// example returns a key for the hint of an error.
func (g *group) example(k starlark.Value) string {
	keys := g.keys()
	if i, ok := k.(starlark.Int); ok {
		return i.String()
	}
	if len(keys) > 0 {
		return keys[0]
	}
	return "0"
}

func (g *group) hint(key string) string {
	const few = 8
	keys := g.keys()
	if len(keys) == 0 {
		return "it is empty here"
	}
	if len(keys) > few {
		return checkpoint.Hint(key, keys)
	}
	for i := range keys {
		keys[i] = quote.Printable(keys[i])
	}
	return "there are " + strings.Join(keys, ", ")
}

// find returns the tensor of a key, or nil if there is no such key.
func (g *group) find(r *run, key string) (*tensor, error) {
	if g.name != "w" {
		for _, a := range g.args() {
			if a.Key == key && a.Array != nil {
				return r.alias(0, func() (*mlx.Array, error) { return a.Array, nil })
			}
		}
		return nil, nil
	}
	all := g.parameters()
	i := slices.IndexFunc(all, func(p hooks.Parameter) bool { return p.Path == key })
	if i < 0 {
		return nil, nil
	}
	p := all[i]
	if p.Array == nil {
		return nil, errors.New("the parameter is not loaded")
	}
	bytes := 0 // it is in memory already
	if p.Quantization != nil {
		var err error
		if bytes, err = tensorSize(p.Shape, mlx.Float32); err != nil {
			return nil, err
		}
	}
	return r.alias(bytes, func() (*mlx.Array, error) { return p.Array(), nil })
}

// Iterate iterates over the keys.
func (g *group) Iterate() starlark.Iterator {
	var keys []starlark.Value
	for _, key := range g.keys() {
		keys = append(keys, starlark.String(key))
	}
	return starlark.NewList(keys).Iterate()
}

// Items returns the keys with their tensors, without those that cannot be read.
func (g *group) Items() (out []starlark.Tuple) {
	for _, key := range g.keys() {
		if v, ok, _ := g.Get(starlark.String(key)); ok {
			out = append(out, starlark.Tuple{starlark.String(key), v})
		}
	}
	return out
}

// Attr returns the method keys.
func (g *group) Attr(name string) (starlark.Value, error) {
	if name != "keys" {
		return nil, nil
	}
	f := func(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
			return nil, err
		}
		list := starlark.NewList(nil)
		for _, key := range g.keys() {
			list.Append(starlark.String(key))
		}
		return list, nil
	}
	return starlark.NewBuiltin(name, f), nil
}

func (g *group) AttrNames() []string { return []string{"keys"} }
