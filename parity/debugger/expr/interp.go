package expr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	starlarkmath "go.starlark.net/lib/math"
	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// An Interpreter evaluates the expressions of a session. It must be used inside [mlx.Do], except
// Compile. Its methods can be called from several goroutines; one waits for the other.
type Interpreter struct {
	// Compare compares two tensors with the same number of elements, as the parity harness
	// does. Without it, expressions have no function compare.
	Compare func(got, want []float32) Difference

	mu sync.Mutex
	// names has what names stand for: builtins, globals, and the names of the stop. Functions
	// look up names here when they are called, so that they see the latest values.
	names    starlark.StringDict
	globals  starlark.StringDict // what expressions have defined
	kept     map[*tensor]bool    // tensors that globals hold
	bytes    int                 // size of the kept tensors
	running  *run                // the running evaluation, or nil
	compiled int                 // number of compiled sources
	promised map[string]bool     // variables that conditions keep
}

// A Difference has the measures of a comparison, in the order in which they are printed.
type Difference []Measure

// A Measure is an attribute of a comparison's result. The value is a float64, int or bool.
type Measure struct {
	Name  string
	Value any
}

// New returns an interpreter without definitions.
func New() *Interpreter {
	in := &Interpreter{names: starlark.StringDict{}, globals: starlark.StringDict{}, kept: map[*tensor]bool{}, promised: map[string]bool{}}
	for name, f := range builtins {
		in.names[name] = starlark.NewBuiltin(name, in.call(f))
	}
	in.names["math"] = starlarkmath.Module
	in.names[globalsName] = &globals{in}
	in.names[ellipsisName] = ellipsis{}
	return in
}

// Close frees the tensors that variables hold.
func (in *Interpreter) Close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for t := range in.kept {
		in.forget(t)
	}
	clear(in.globals)
}

// A run is a running evaluation.
type run struct {
	*guard
	in     *Interpreter
	env    Env
	result starlark.Value // of the last expression statement
	made   []made
	bytes  int // size of the tensors in made
	output output
}

// output collects what print prints.
type output struct {
	lines []string
	bytes int
}

// maxOutput is the number of bytes that an evaluation prints at most.
const maxOutput = 1e6

func (o *output) add(line string) error {
	if o.bytes += len(line) + 1; o.bytes > maxOutput {
		return fmt.Errorf("print: more than %s of text", size(maxOutput))
	}
	o.lines = append(o.lines, line)
	return nil
}

// Eval evaluates source, one expression or many lines, at a stop. An error is one line that names
// the line of the source. What the source defines and prints before an error stays.
func (in *Interpreter) Eval(ctx context.Context, env Env, source string) (Result, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p, err := in.compile(source, false)
	if err != nil {
		return Result{}, err
	}
	var out Result
	err = in.execute(ctx, env, p, func(r *run) (err error) {
		out, err = r.describe(r.result)
		return err
	}, &out.Output)
	return out, err
}

// A Condition is an expression that is true or false at a stop.
type Condition struct {
	in *Interpreter
	p  *program
}

// Compile checks the syntax and the names of a condition.
func (in *Interpreter) Compile(source string) (*Condition, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	p, err := in.compile(source, true)
	if err != nil {
		return nil, err
	}
	return &Condition{in, p}, nil
}

// Holds reports whether the condition is true. Any value but True and False is an error.
func (c *Condition) Holds(ctx context.Context, env Env) (bool, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	var holds bool
	var output []string
	err := c.in.execute(ctx, env, c.p, func(r *run) error {
		b, ok := r.result.(starlark.Bool)
		if !ok {
			return fmt.Errorf("the condition is %s, expected True or False%s", kindOf(r.result), hintFor(r.result))
		}
		holds = bool(b)
		return nil
	}, &output)
	return holds, err
}

// kindOf describes a value for an error.
func kindOf(v starlark.Value) string {
	switch v := v.(type) {
	case nil, starlark.NoneType:
		return "None"
	case *tensor:
		return v.String()
	case starlark.Int, starlark.Float, starlark.String:
		return "the " + v.Type() + " " + brief(v)
	}
	return "a " + v.Type()
}

func hintFor(v starlark.Value) string {
	if _, ok := v.(*tensor); ok {
		return " (any() and all() of a tensor are)"
	}
	return ""
}

// execute runs a program and calls f in the end, while its tensors are in memory.
func (in *Interpreter) execute(ctx context.Context, env Env, p *program, f func(r *run) error, output *[]string) error {
	thread := &starlark.Thread{Name: "eval"}
	r := &run{guard: startGuard(ctx, thread), in: in, env: env}
	before := maps.Clone(in.globals)
	in.running = r
	defer func() {
		in.running = nil
		r.stop()
		*output = r.output.lines
	}()
	var err error
	failed := mlx.Try(func() {
		defer bug()
		mlx.WithScope(func() {
			if err = r.bind(); err == nil {
				_, err = p.program.Init(thread, in.names)
			}
			if err == nil {
				err = r.stopped()
			}
			if err == nil {
				err = f(r)
			}
			err = in.explain(p, err)
			if full := in.keepOr(r, before); full != nil && err == nil {
				err = full
			}
		})
	})
	if failed != nil {
		return bare(failed)
	}
	return err
}

// bug, when deferred, turns a bug of this package into an error, so that it does not end the run.
func bug() {
	p := recover()
	if e, ok := p.(runtime.Error); ok {
		panic(&mlx.Error{Message: "internal error: " + e.Error()})
	}
	if p != nil {
		panic(p)
	}
}

// keepOr keeps what globals hold. If that is not possible, they get the values that they had
// before.
func (in *Interpreter) keepOr(r *run, before starlark.StringDict) error {
	err := in.keep(r)
	if err == nil {
		return nil
	}
	for name := range in.globals {
		if v, ok := before[name]; ok {
			in.define(name, v)
		} else {
			in.undefine(name)
		}
	}
	if in.keep(r) != nil { // values that existed before have grown
		for name := range in.globals {
			in.undefine(name)
		}
		in.keep(r)
		return fmt.Errorf("%w (all variables are deleted)", err)
	}
	return err
}

// undefine deletes a global variable.
func (in *Interpreter) undefine(name string) {
	delete(in.globals, name)
	delete(in.names, name)
	if f := in.builtin(name); f != nil {
		in.names[name] = f
	}
}

// builtin returns the builtin function that a global variable had replaced, or nil.
func (in *Interpreter) builtin(name string) starlark.Value {
	if f, ok := builtins[name]; ok {
		return starlark.NewBuiltin(name, in.call(f))
	}
	if name == "math" {
		return starlarkmath.Module
	}
	return starlark.Universe[name]
}

// define sets a global variable.
func (in *Interpreter) define(name string, v starlark.Value) {
	in.globals[name] = v
	in.names[name] = v
}

// known lists all names that a program may use.
func (in *Interpreter) known() []string {
	var names []string
	for name := range in.names {
		hidden := strings.HasPrefix(name, "$") || name == sliceName || name == ellipsisName || name == "compare" && in.Compare == nil
		if !hidden {
			names = append(names, name)
		}
	}
	names = slices.AppendSeq(names, maps.Keys(starlark.Universe))
	names = append(names, stopNames...)
	for i, name := range names {
		names[i] = strings.ReplaceAll(name, loadName, "load")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// globalsName is the name of the value to whose keys the rewritten source assigns.
const globalsName = "$globals"

// globals is the dictionary of global variables.
type globals struct{ in *Interpreter }

func (*globals) String() string        { return "globals" }
func (*globals) Type() string          { return "globals" }
func (*globals) Freeze()               {}
func (*globals) Truth() starlark.Bool  { return true }
func (*globals) Hash() (uint32, error) { return 0, errors.New("globals have no hash") }

func (g *globals) Get(k starlark.Value) (starlark.Value, bool, error) {
	name, _ := starlark.AsString(k)
	v, ok := g.in.globals[name]
	return v, ok, nil
}

// SetKey sets a global variable.
func (g *globals) SetKey(k, v starlark.Value) error {
	name, _ := starlark.AsString(k)
	g.in.define(name, v)
	return nil
}

// explain turns an error of Starlark into one line with the line of the source.
func (in *Interpreter) explain(p *program, err error) error {
	var e *starlark.EvalError
	if err == nil || !errors.As(err, &e) {
		return oneLine("", err)
	}
	at := ""
	for i := range e.CallStack {
		if frame := e.CallStack.At(i); frame.Pos.Filename() == p.name {
			at = fmt.Sprintf("line %d: ", frame.Pos.Line)
			break
		}
	}
	if stopped := in.running.stopped(); stopped != nil {
		return oneLine(at, stopped) // and not the error of the step at which it ended
	}
	const unset = "internal error: predeclared variable "
	if name, ok := strings.CutPrefix(e.Msg, unset); ok {
		return oneLine(at, in.running.missing(strings.TrimSuffix(name, " is uninitialized")))
	}
	return oneLine(at, errors.New(strings.ReplaceAll(e.Msg, "function $", "function ")))
}

// oneLine shortens an error to one line.
func oneLine(at string, err error) error {
	if err == nil {
		return nil
	}
	const most = 400
	text := strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), loadName, "load")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return errors.New(at + text)
}

// missing returns the error of a name without a value at this stop.
func (r *run) missing(name string) error {
	switch {
	case name == "want":
		return errors.New("want: there is no tensor of the reference here (only a replay of a dump has one, " +
			"for the tensors that the dump has)")
	case name == "out":
		return errors.New("out: the run has not stopped at a tensor")
	case slices.Contains(stopNames, name):
		return fmt.Errorf("%s has no value here", name)
	}
	return fmt.Errorf("name %s is used before it is assigned (%s)", name, checkpoint.Hint(name, r.in.known()))
}
