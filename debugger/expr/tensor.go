package expr

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/runs"
)

// hostElements is the size of a tensor of whole numbers whose statistics the host computes exactly.
const hostElements = 1 << 20

// A tensor is an array as a value of an expression. Its elements never change. Methods that are not
// part of Starlark's interfaces fail as operations of MLX do.
type tensor struct {
	a  *mlx.Array
	in *Interpreter

	stats *checkpoint.Stats // nil until they are known
	first []float64         // with stats
}

var (
	_ starlark.HasAttrs   = (*tensor)(nil)
	_ starlark.HasBinary  = (*tensor)(nil)
	_ starlark.HasUnary   = (*tensor)(nil)
	_ starlark.Mapping    = (*tensor)(nil)
	_ starlark.Sliceable  = (*tensor)(nil)
	_ starlark.Sequence   = (*tensor)(nil)
	_ starlark.Comparable = (*tensor)(nil)
)

// view returns a tensor that f makes of elements that are in memory already. f has a scope of its
// own, so that values inside it are freed.
func (r *run) view(f func() *mlx.Array) *tensor {
	r.check()
	return &tensor{in: r.in, a: mlx.Scope(f)}
}

// op computes a tensor, unless it is too large.
func (r *run) op(f func() *mlx.Array) *tensor {
	t := r.view(f)
	bytes := t.a.Nbytes()
	if bytes > maxTensor {
		fail("a tensor with shape %v and dtype %v: is larger than %s", t.a.Shape(), t.a.Dtype(), size(maxTensor))
	}
	if r.bytes += bytes; r.bytes > maxTemporary {
		fail("the expression's tensors take more than %s (they are freed when it ends)", size(maxTemporary))
	}
	mlx.Eval(t.a)
	return t
}

// keep makes the tensors that global variables hold independent of the stop, and frees those that
// they held before.
func (in *Interpreter) keep() {
	held, seen := map[*tensor]bool{}, map[starlark.Value]bool{}
	for name, v := range in.names {
		if !slices.Contains(stopNames, name) {
			reach(v, held, seen)
		}
	}
	for t := range held {
		if in.kept[t] {
			continue
		}
		t.a = mlx.Scope(func() *mlx.Array { // a copy, if it is a part of a buffer of the model
			if t.a.Size() == 0 { // MLX's CUDA build crashes in Contiguous without elements
				return mlx.Zeros(t.a.Dtype(), t.a.Shape()...)
			}
			return t.a.Contiguous()
		})
		mlx.Eval(t.a)
		mlx.Keep(t.a)
		in.kept[t] = true
	}
	for t := range in.kept {
		if !held[t] {
			t.a.Free()
			delete(in.kept, t)
		}
	}
}

// reach adds the tensors to which a value refers to held.
func reach(v starlark.Value, held map[*tensor]bool, seen map[starlark.Value]bool) {
	switch v.(type) {
	case *starlark.List, *starlark.Dict, *starlark.Set, *starlark.Function, *starlark.Builtin:
		if seen[v] {
			return
		}
		seen[v] = true
	}
	switch v := v.(type) {
	case *tensor:
		held[v] = true
	case starlark.Tuple:
		for _, x := range v {
			reach(x, held, seen)
		}
	case *starlark.List:
		for x := range v.Elements() {
			reach(x, held, seen)
		}
	case *starlark.Dict:
		for _, x := range v.Entries() {
			reach(x, held, seen)
		}
	case *starlark.Builtin:
		reach(v.Receiver(), held, seen)
	case *starlark.Function:
		for i := range v.NumParams() {
			reach(v.ParamDefault(i), held, seen)
		}
		for i := range v.NumFreeVars() {
			_, x := v.FreeVar(i)
			reach(x, held, seen)
		}
	}
}

func (t *tensor) String() string {
	return fmt.Sprintf("tensor(%v, %s)", t.a.Dtype(), shapeText(t.a.Shape()))
}
func (t *tensor) Type() string { return "tensor" }
func (t *tensor) Freeze()      {}

func (t *tensor) Hash() (uint32, error) {
	return 0, errors.New("a tensor cannot be a key or an element of a set")
}

func (t *tensor) CompareSameType(syntax.Token, starlark.Value, int) (bool, error) {
	return false, errors.New("lists of tensors cannot be compared (compare the tensors)")
}

func shapeText(shape []int) string { return ints(shape).String() }

func ints(values []int) starlark.Tuple {
	out := make(starlark.Tuple, len(values))
	for i, n := range values {
		out[i] = starlark.MakeInt(n)
	}
	return out
}

// orEnd returns the value of f. Where Starlark's interface has no error, the evaluation ends with one.
func (t *tensor) orEnd(f func() starlark.Value) starlark.Value {
	v, err := t.in.running.try(f)
	if err != nil {
		t.in.running.end(err.Error())
		return starlark.None
	}
	return v
}

// Truth is that of the only element.
func (t *tensor) Truth() starlark.Bool {
	return t.orEnd(func() starlark.Value {
		if t.a.Size() != 1 {
			fail("a tensor with shape %s is neither true nor false (use any() or all())", shapeText(t.a.Shape()))
		}
		return t.item()
	}).Truth()
}

// Len is the size of the first axis.
func (t *tensor) Len() int {
	if t.a.Ndim() == 0 {
		return -1
	}
	return t.a.Dim(0)
}

// Index returns an element of the first axis.
func (t *tensor) Index(i int) starlark.Value {
	return t.orEnd(func() starlark.Value { return t.pick([]selection{{i, i + 1, 1, true}}) })
}

// Slice returns t[start:end:step], for bounds that Starlark has checked.
func (t *tensor) Slice(start, end, step int) starlark.Value {
	return t.orEnd(func() starlark.Value {
		if t.a.Ndim() == 0 {
			fail("a tensor without axes cannot be sliced")
		}
		return t.pick([]selection{{start, end, step, false}})
	})
}

func (t *tensor) Iterate() starlark.Iterator { return &rows{t: t} }

// rows iterates over the first axis.
type rows struct {
	t *tensor
	i int
}

func (it *rows) Next(p *starlark.Value) bool {
	if it.i >= it.t.Len() || it.t.in.running.reason.Load() != nil {
		return false
	}
	*p = it.t.Index(it.i)
	it.i++
	return true
}

func (it *rows) Done() {}

// item returns the only element.
func (t *tensor) item() starlark.Value {
	if t.a.Size() != 1 {
		fail("a tensor with shape %s has no single element", shapeText(t.a.Shape()))
	}
	return t.firstOf(1)[0]
}

// firstOf returns the first n elements in row-major order.
func (t *tensor) firstOf(n int) []starlark.Value {
	var values []float64
	mlx.WithScope(func() {
		x, err := runs.FromArray("", t.a.Reshape(-1).Slice(0, 0, min(n, t.a.Size())))
		must(err)
		values = x.First(n)
	})
	out := make([]starlark.Value, len(values))
	for i, v := range values {
		switch d := t.a.Dtype(); {
		case d == mlx.Bool:
			out[i] = starlark.Bool(v != 0)
		case d.IsFloat():
			out[i] = starlark.Float(v)
		default:
			out[i] = starlark.MakeInt64(int64(v))
		}
	}
	return out
}

// summarize computes the statistics, once.
func (t *tensor) summarize() checkpoint.Stats {
	if t.stats == nil {
		mlx.WithScope(func() {
			x := t.a
			if !x.Dtype().IsFloat() && x.Size() > hostElements {
				x = x.AsType(mlx.Float32) // the host would need 8 bytes for each element
			}
			stats, first, err := runs.Summarize(x, runs.Previewed)
			must(err)
			t.stats, t.first = &stats, first
		})
	}
	return *t.stats
}

// statistic returns one of min, max, mean, std and sum of all elements.
func (t *tensor) statistic(name string) starlark.Value {
	n, whole := t.a.Size(), !t.a.Dtype().IsFloat()
	switch {
	case n == 0 && name != "sum":
		fail("%s of a tensor without elements", name)
	case n == 0 && !whole:
		return starlark.Float(0)
	case n == 0:
		return starlark.MakeInt(0)
	case whole && (name == "sum" || t.a.Dtype() == mlx.Bool && name != "mean" && name != "std"): // exactly
		return t.reduced(name, mlx.Int64)
	case whole && (name == "min" || name == "max"):
		return t.reduced(name, t.a.Dtype())
	}
	s := t.summarize()
	v := float64(s.Mean)
	switch {
	case s.NaN > 0:
		v = math.NaN()
	case s.Inf > 0: // the statistics leave them out
		return t.reduced(name, mlx.Float32)
	case name == "min":
		v = float64(s.Min)
	case name == "max":
		v = float64(s.Max)
	case name == "std":
		v = float64(s.Std)
	case name == "sum":
		v *= float64(n)
	}
	return starlark.Float(float32(v))
}

// reduced reduces all elements, computed in a dtype.
func (t *tensor) reduced(name string, d mlx.Dtype) starlark.Value {
	return t.in.running.op(func() *mlx.Array {
		return reduceAxes(name, t.a.AsType(d).Reshape(-1), []bool{true}).Reshape()
	}).item()
}

// Unary returns -t, +t or ~t.
func (t *tensor) Unary(op syntax.Token) (starlark.Value, error) {
	r := t.in.running
	return r.try(func() starlark.Value {
		switch d := t.a.Dtype(); {
		case op == syntax.PLUS:
		case op == syntax.TILDE && d == mlx.Bool:
			return r.op(t.a.Not)
		case op == syntax.MINUS && d != mlx.Bool:
			return r.op(t.a.Neg)
		default:
			fail("%v of a tensor of dtype %v", op, d)
		}
		return t
	})
}

// Attr returns an attribute or a method.
func (t *tensor) Attr(name string) (starlark.Value, error) {
	if m, ok := methods[name]; ok {
		return t.in.function(name, func(c *call) starlark.Value { return m(c, t) }).BindReceiver(t), nil
	}
	switch name {
	case "shape":
		return ints(t.a.Shape()), nil
	case "dtype":
		return starlark.String(t.a.Dtype().String()), nil
	case "ndim":
		return starlark.MakeInt(t.a.Ndim()), nil
	case "size":
		return starlark.MakeInt(t.a.Size()), nil
	case "nbytes":
		return starlark.MakeInt(t.a.Nbytes()), nil
	}
	return nil, nil
}

func (t *tensor) AttrNames() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(methods)), "shape", "dtype", "ndim", "size", "nbytes")))
}
