package expr

import (
	"fmt"
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
func (r *run) bind() {
	env, names := r.env, r.in.names
	for name, a := range map[string]*mlx.Array{"out": env.Out, "want": env.Want} {
		delete(names, name)
		if a != nil {
			names[name] = &tensor{in: r.in, a: a}
		}
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
		names[name] = &group{r.in, name}
	}
}

// A group is a dictionary of the stop's tensors: inp, inner, outs or w. It always refers to the
// latest stop.
type group struct {
	in   *Interpreter
	name string
}

var (
	_ starlark.Mapping  = (*group)(nil)
	_ starlark.Sequence = (*group)(nil)
	_ starlark.HasAttrs = (*group)(nil)
)

func (g *group) String() string             { return g.name }
func (g *group) Type() string               { return "tensors" }
func (g *group) Freeze()                    {}
func (g *group) Truth() starlark.Bool       { return g.Len() > 0 }
func (g *group) Hash() (uint32, error)      { return starlark.String(g.name).Hash() }
func (g *group) Len() int                   { return len(g.keys()) }
func (g *group) Iterate() starlark.Iterator { return g.list().Iterate() }
func (g *group) AttrNames() []string        { return []string{"keys"} }

// args returns the tensors of a group other than w.
func (g *group) args() []hooks.Arg {
	switch env := g.in.running.env; g.name {
	case "inp":
		return env.Inputs
	case "inner":
		return env.Inner
	default:
		return env.Outputs
	}
}

func (g *group) parameters() []hooks.Parameter {
	if env := g.in.running.env; env.Parameters != nil {
		return env.Parameters()
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

func (g *group) list() *starlark.List {
	var keys []starlark.Value
	for _, key := range g.keys() {
		keys = append(keys, starlark.String(key))
	}
	return starlark.NewList(keys)
}

// Attr returns the method keys.
func (g *group) Attr(name string) (starlark.Value, error) {
	if name != "keys" {
		return nil, nil
	}
	return g.in.function(name, func(c *call) starlark.Value {
		c.unpack()
		return g.list()
	}), nil
}

// Get returns the tensor of a key.
func (g *group) Get(k starlark.Value) (starlark.Value, bool, error) {
	key, ok := starlark.AsString(k)
	if !ok {
		return nil, false, fmt.Errorf(`%s[%s]: expected a string, such as %s["%s"]`, g.name, brief(k), g.name, brief(k))
	}
	v, err := g.in.running.try(func() starlark.Value { return g.find(key) })
	if err != nil {
		return nil, false, fmt.Errorf("%s[%s]: %w", g.name, brief(k), err)
	}
	if v == nil {
		return nil, false, fmt.Errorf("%s has no %s (%s)", g.name, brief(k), g.hint(key))
	}
	return v, true, nil
}

// find returns the tensor of a key, or nil if there is no such key.
func (g *group) find(key string) starlark.Value {
	if g.name != "w" {
		for _, a := range g.args() {
			if a.Key == key && a.Array != nil {
				return &tensor{in: g.in, a: a.Array}
			}
		}
		return nil
	}
	for _, p := range g.parameters() {
		switch {
		case p.Path != key:
		case p.Array == nil:
			fail("the parameter is not loaded")
		case p.Quantization != nil:
			return g.in.running.op(p.Array)
		default:
			return g.in.running.view(p.Array)
		}
	}
	return nil
}

// hint lists the keys, or those like key if there are many.
func (g *group) hint(key string) string {
	const few = 8
	switch keys := g.keys(); {
	case len(keys) == 0:
		return "it is empty here"
	case len(keys) > few:
		return checkpoint.Hint(key, keys)
	default:
		return "there are " + quote.Printable(strings.Join(keys, ", "))
	}
}
