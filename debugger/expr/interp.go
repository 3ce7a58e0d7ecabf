package expr

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	starlarkmath "go.starlark.net/lib/math"
	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
)

// An Interpreter evaluates the expressions of a session. It must be used inside [mlx.Do], except
// Compile. Its methods can be called from several goroutines; one waits for the other.
type Interpreter struct {
	mu sync.Mutex
	// names has what names stand for: functions, global variables, and the names of the stop.
	// Functions look up names here when they are called, so that they see the latest values.
	names    starlark.StringDict
	kept     map[*tensor]bool // tensors that global variables hold
	running  *run             // the running evaluation, or nil
	compiled int              // number of compiled sources
	promised map[string]bool  // variables that conditions keep
}

// New returns an interpreter without definitions.
func New() *Interpreter {
	in := &Interpreter{promised: map[string]bool{}}
	in.reset()
	return in
}

// reset deletes all variables.
func (in *Interpreter) reset() {
	for t := range in.kept {
		t.a.Free()
	}
	in.kept = map[*tensor]bool{}
	in.names = starlark.StringDict{"math": starlarkmath.Module, globalsName: globals{in}, ellipsisName: ellipsis{}}
	for name, f := range functions {
		in.names[name] = in.function(name, f)
	}
}

// Close frees the tensors that variables hold.
func (in *Interpreter) Close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reset()
}

// Limits of an evaluation. Tests change them.
var (
	maxTime             = 5 * time.Second
	maxSteps     uint64 = 10_000_000
	maxTensor           = int(1e9) // bytes of a tensor
	maxTemporary        = int(4e9) // bytes of all tensors that an evaluation makes
)

// A run is a running evaluation.
type run struct {
	in     *Interpreter
	thread *starlark.Thread
	env    Env
	reason atomic.Pointer[string] // for which it must end
	result starlark.Value         // of the last expression statement
	bytes  int                    // size of the tensors that it made

	output  []string // lines that were printed
	printed int      // their bytes
}

// end stops the evaluation at its next step. The first reason counts.
func (r *run) end(reason string) {
	r.reason.CompareAndSwap(nil, &reason)
	r.thread.Cancel(reason)
}

// check fails if the evaluation must end.
func (r *run) check() {
	if reason := r.reason.Load(); reason != nil {
		fail("%s", *reason)
	}
}

// fail ends an operation, as a failed operation of MLX does. [run.try] returns the error.
func fail(format string, args ...any) {
	panic(&mlx.Error{Message: fmt.Sprintf(format, args...)})
}

// must fails if there is an error.
func must(err error) {
	if err != nil {
		fail("%s", err)
	}
}

// try returns the value of f, or the error with which it failed.
func (r *run) try(f func() starlark.Value) (v starlark.Value, err error) {
	if err := mlx.Try(func() { r.check(); v = f() }); err != nil {
		return nil, bare(err)
	}
	return v, nil
}

// bare returns an error without the place in this program where MLX failed.
func bare(err error) error {
	if e, ok := errors.AsType[*mlx.Error](err); ok {
		return errors.New(e.Message)
	}
	return err
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
	r, err := in.execute(ctx, env, p, func(r *run) { out = r.describe(r.result) })
	out.Output = r.output
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
func (c *Condition) Holds(ctx context.Context, env Env) (holds bool, err error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	_, err = c.in.execute(ctx, env, c.p, func(r *run) {
		b, ok := r.result.(starlark.Bool)
		if !ok {
			hint := ""
			if _, ok := r.result.(*tensor); ok {
				hint = " (any() and all() of a tensor are)"
			}
			fail("the condition is %s, expected True or False%s", kindOf(r.result), hint)
		}
		holds = bool(b)
	})
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

// execute runs a program and calls f in the end, while its tensors are in memory.
func (in *Interpreter) execute(ctx context.Context, env Env, p *program, f func(r *run)) (*run, error) {
	r := &run{in: in, env: env, thread: &starlark.Thread{Name: "eval"}}
	r.thread.SetMaxExecutionSteps(maxSteps)
	r.thread.OnMaxSteps = func(*starlark.Thread) { r.end(fmt.Sprintf("the expression takes more than %d steps", maxSteps)) }
	late := time.AfterFunc(maxTime, func() { r.end(fmt.Sprintf("the expression takes longer than %v", maxTime)) })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { r.end(context.Cause(ctx).Error()) })()
	in.running = r
	defer func() { in.running = nil }()
	var err error
	failed := mlx.Try(func() {
		defer bug()
		mlx.WithScope(func() {
			r.bind()
			if _, err = p.program.Init(r.thread, in.names); err == nil {
				_, err = r.try(func() starlark.Value { f(r); return nil })
			}
			err = r.explain(p, err)
			in.keep()
		})
	})
	if failed != nil {
		in.reset()
		err = fmt.Errorf("%w (all variables are deleted)", bare(failed))
	}
	return r, err
}

// bug, when deferred, turns a bug of this package into an error, so that it does not end the run.
func bug() {
	p := recover()
	if e, ok := p.(runtime.Error); ok {
		fail("internal error: %v", e)
	}
	if p != nil {
		panic(p)
	}
}

// known lists all names that a program may use.
func (in *Interpreter) known() []string {
	names := slices.Concat(in.names.Keys(), starlark.Universe.Keys(), stopNames, []string{"load"})
	hidden := []string{loadName, powName, sliceName, ellipsisName}
	names = slices.DeleteFunc(names, func(name string) bool {
		return name[0] == '$' || slices.Contains(hidden, name)
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// globals is the dictionary of global variables, to whose keys the rewritten source assigns.
type globals struct{ in *Interpreter }

func (globals) String() string        { return "globals" }
func (globals) Type() string          { return "globals" }
func (globals) Freeze()               {}
func (globals) Truth() starlark.Bool  { return true }
func (globals) Hash() (uint32, error) { return 0, errors.New("globals have no hash") }

// Get returns the value of x in x += y.
func (g globals) Get(k starlark.Value) (starlark.Value, bool, error) {
	name := string(k.(starlark.String))
	v, ok := g.in.names[name]
	if !ok {
		return nil, false, g.in.running.missing(name)
	}
	return v, true, nil
}

// SetKey sets a global variable.
func (g globals) SetKey(k, v starlark.Value) error {
	g.in.names[string(k.(starlark.String))] = v
	return nil
}

// explain turns an error of Starlark into one line with the line of the source.
func (r *run) explain(p *program, err error) error {
	e, ok := errors.AsType[*starlark.EvalError](err)
	if !ok {
		return oneLine("", err)
	}
	at := ""
	for i := range e.CallStack {
		if frame := e.CallStack.At(i); frame.Pos.Filename() == p.name {
			at = fmt.Sprintf("line %d: ", frame.Pos.Line)
			break
		}
	}
	if reason := r.reason.Load(); reason != nil {
		return oneLine(at, errors.New(*reason)) // and not the error of the step at which it ended
	}
	const unset = "internal error: predeclared variable "
	if name, ok := strings.CutPrefix(e.Msg, unset); ok {
		return oneLine(at, r.missing(strings.TrimSuffix(name, " is uninitialized")))
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

// size formats a number of bytes.
func size(bytes int) string { return units.Bytes(int64(bytes)) }
