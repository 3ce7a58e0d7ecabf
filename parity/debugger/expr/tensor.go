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
	"github.com/gomflux/gomflux/parity/debug"
)

// firstValues is the number of first values in a tensor's description.
const firstValues = 10

// hostElements is the size of a tensor of whole numbers whose statistics the host computes exactly.
const hostElements = 1 << 20

// errFreed is the error of a tensor that could not be kept.
var errFreed = errors.New("this tensor is not in memory anymore (it could not be kept)")

// A tensor is an array as a value of an expression. Its elements never change.
type tensor struct {
	a  *mlx.Array
	in *Interpreter

	base           *tensor // the tensor whose elements this one shares
	depth, pending int     // operations and bytes that an evaluation computes
	summary        *summary
}

// A summary has the statistics of a tensor.
type summary struct {
	stats            checkpoint.Stats
	first            []float64
	positive, negate bool // whether an element is +Inf, or -Inf
}

var (
	_ starlark.HasAttrs   = (*tensor)(nil)
	_ starlark.HasUnary   = (*tensor)(nil)
	_ starlark.Mapping    = (*tensor)(nil)
	_ starlark.Sliceable  = (*tensor)(nil)
	_ starlark.Sequence   = (*tensor)(nil)
	_ starlark.Comparable = (*tensor)(nil)
)

func (t *tensor) Type() string { return "tensor" }
func (t *tensor) Freeze()      {}

func (t *tensor) Hash() (uint32, error) {
	return 0, errors.New("a tensor cannot be a key or an element of a set")
}

// Truth is that of the only element. The rewritten source calls truth first, which refuses others.
func (t *tensor) Truth() starlark.Bool {
	v, err := t.item()
	return err == nil && v.Truth()
}

func (t *tensor) CompareSameType(syntax.Token, starlark.Value, int) (bool, error) {
	return false, errors.New("lists of tensors cannot be compared (compare the tensors)")
}

func (t *tensor) String() string {
	text := "tensor(freed)"
	mlx.Try(func() { text = fmt.Sprintf("tensor(%v, %s)", t.dtype(), shapeText(t.shape())) })
	return text
}

func shapeText(shape []int) string {
	values := make(starlark.Tuple, len(shape))
	for i, n := range shape {
		values[i] = starlark.MakeInt(n)
	}
	return values.String()
}

// shape and dtype panic with an *mlx.Error if the tensor is freed.
func (t *tensor) shape() []int {
	if t.a == nil {
		panic(&mlx.Error{Message: errFreed.Error()})
	}
	return t.a.Shape()
}

func (t *tensor) dtype() mlx.Dtype {
	t.shape()
	return t.a.Dtype()
}

// Len is the size of the first axis.
func (t *tensor) Len() int {
	n := -1
	mlx.Try(func() {
		if shape := t.shape(); len(shape) > 0 {
			n = shape[0]
		}
	})
	return n
}

// Index returns an element of the first axis, or None if that fails: the evaluation then ends.
func (t *tensor) Index(i int) starlark.Value {
	v, _, err := t.Get(starlark.MakeInt(i))
	return t.or(v, err)
}

// Slice returns t[start:end:step], for bounds that Starlark has checked.
func (t *tensor) Slice(start, end, step int) starlark.Value {
	var v starlark.Value
	err := t.try(func(r *run) (err error) {
		shape, p := t.shape(), selection{start: start, end: end, step: step}
		if len(shape) == 0 {
			return errors.New("a tensor without axes cannot be sliced")
		}
		shape[0] = p.len()
		if step == 1 {
			v, err = r.part(t, 0, start, end)
		} else {
			v, err = r.op(shape, t.dtype(), func() *mlx.Array { return p.of(t.a, 0) }, t)
		}
		return err
	})
	return t.or(v, err)
}

// part returns [start, end) of an axis.
func (r *run) part(t *tensor, axis, start, end int) (*tensor, error) {
	shape := t.shape()
	shape[axis] = end - start
	return r.view(shape, t, func() *mlx.Array { return t.a.Slice(axis, start, end) })
}

// or returns v, or, where Starlark's interface has no error, fails the evaluation with one.
func (t *tensor) or(v starlark.Value, err error) starlark.Value {
	if err == nil {
		return v
	}
	if r := t.in.running; r != nil {
		r.fail(err)
	}
	return starlark.None
}

func (t *tensor) Iterate() starlark.Iterator { return &rows{t: t, n: t.Len()} }

// rows iterates over the first axis.
type rows struct {
	t    *tensor
	i, n int
}

func (it *rows) Next(p *starlark.Value) bool {
	r := it.t.in.running
	if it.i >= it.n || r == nil || r.stopped() != nil {
		return false
	}
	*p = it.t.Index(it.i)
	it.i++
	return true
}

func (it *rows) Done() {}

// try calls f with the running evaluation, and returns the error of an operation of MLX too.
func (t *tensor) try(f func(r *run) error) (err error) {
	r := t.in.running
	if r == nil {
		return errFreed
	}
	if failed := mlx.Try(func() { err = f(r) }); failed != nil {
		return bare(failed)
	}
	return err
}

// bare returns an error without the place in this program where MLX failed.
func bare(err error) error {
	var e *mlx.Error
	if errors.As(err, &e) {
		return errors.New(e.Message)
	}
	return err
}

// item returns the only element.
func (t *tensor) item() (v starlark.Value, err error) {
	err = t.try(func(r *run) error {
		if t.a.Size() != 1 {
			return fmt.Errorf("a tensor with shape %s has no single element", shapeText(t.shape()))
		}
		values, err := r.firstOf(t, 1)
		if err == nil {
			v = values[0]
		}
		return err
	})
	return v, err
}

// firstOf returns the first n elements in row-major order.
func (r *run) firstOf(t *tensor, n int) ([]starlark.Value, error) {
	if err := r.reserve(64 * min(n, t.a.Size())); err != nil {
		return nil, err
	}
	var values []float64
	var err error
	mlx.WithScope(func() {
		var x *checkpoint.Array
		if x, err = debug.FromArray("", t.a.Reshape(-1).Slice(0, 0, min(n, t.a.Size()))); err == nil {
			values = x.First(n)
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]starlark.Value, len(values))
	for i, v := range values {
		out[i] = numberOf(v, t.a.Dtype())
	}
	return out, nil
}

// numberOf returns an element of a tensor as a number of Starlark.
func numberOf(v float64, d mlx.Dtype) starlark.Value {
	switch {
	case d == mlx.Bool:
		return starlark.Bool(v != 0)
	case d.IsFloat():
		return starlark.Float(v)
	}
	return starlark.MakeInt64(int64(v))
}

// summarize returns the statistics, which are computed once.
func (t *tensor) summarize() (*summary, error) {
	if t.summary != nil {
		return t.summary, nil
	}
	s := &summary{}
	err := t.try(func(r *run) (err error) {
		if err := r.stopped(); err != nil {
			return err
		}
		t.shape() // fails if the tensor is freed
		x := t.a
		if !x.Dtype().IsFloat() && x.Size() > hostElements {
			x = x.AsType(mlx.Float32) // the host would need 8 bytes for each element
		}
		if s.stats, s.first, err = debug.Summarize(x, firstValues); err != nil || s.stats.Inf == 0 {
			return err
		}
		mlx.WithScope(func() {
			has := func(v float64) bool { return !t.a.Equal(mlx.Scalar(v, t.a.Dtype())).Not().All() }
			s.positive, s.negate = has(math.Inf(1)), has(math.Inf(-1))
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.summary = s
	return s, nil
}

// statistic returns one of min, max, mean, std and sum of all elements, as PyTorch does if they are
// not finite.
func (t *tensor) statistic(name string) (starlark.Value, error) {
	if exact := wholeReductions[name]; exact != nil && !t.dtype().IsFloat() && t.a.Size() > 0 {
		return t.whole(exact)
	}
	s, err := t.summarize()
	if err != nil {
		return nil, err
	}
	n := t.a.Size()
	if n == 0 && name != "sum" {
		return nil, fmt.Errorf("%s of a tensor without elements", name)
	}
	nan, inf := math.NaN(), math.Inf(1)
	signed := func(v float64) float64 { // of a sum
		switch {
		case s.positive && s.negate:
			return nan
		case s.positive:
			return inf
		case s.negate:
			return -inf
		}
		return v
	}
	var v float64
	switch low, high := float64(s.stats.Min), float64(s.stats.Max); {
	case s.stats.NaN > 0:
		v = nan
	case n == 0:
	case name == "min" && s.negate:
		v = -inf
	case name == "min" && s.stats.Inf == n, name == "max" && s.positive:
		v = inf
	case name == "max" && s.stats.Inf == n:
		v = -inf
	case name == "min":
		v = low
	case name == "max":
		v = high
	case name == "std" && s.stats.Inf > 0:
		v = nan
	case name == "std":
		v = float64(s.stats.Std)
	case name == "mean":
		v = signed(float64(s.stats.Mean))
	default:
		v = signed(float64(s.stats.Mean) * float64(n))
	}
	if !t.a.Dtype().IsFloat() && n == 0 {
		return starlark.MakeInt(0), nil
	}
	return starlark.Float(float32(v)), nil
}

var wholeReductions = map[string]func(x *mlx.Array, axis int) *mlx.Array{
	"min": (*mlx.Array).Min, "max": (*mlx.Array).Max,
	"sum": func(x *mlx.Array, axis int) *mlx.Array {
		if x.Dtype() != mlx.Bool {
			x = x.AsType(mlx.Int64)
		}
		return x.Sum(axis)
	},
}

// whole reduces a tensor of whole numbers or booleans exactly.
func (t *tensor) whole(reduce func(x *mlx.Array, axis int) *mlx.Array) (v starlark.Value, err error) {
	err = t.try(func(r *run) error {
		x, err := r.op(nil, mlx.Int64, func() *mlx.Array {
			x := t.a
			for axis := range x.Ndim() {
				x = reduce(x, axis)
			}
			return x.Reshape()
		}, t)
		if err == nil {
			v, err = x.item()
		}
		return err
	})
	return v, err
}

// Unary returns -t, +t or ~t.
func (t *tensor) Unary(op syntax.Token) (v starlark.Value, err error) {
	err = t.try(func(r *run) (err error) {
		shape, d := t.shape(), t.dtype()
		switch {
		case op == syntax.PLUS:
			v = t
		case op == syntax.TILDE && d == mlx.Bool:
			v, err = r.op(shape, d, t.a.Not, t)
		case op == syntax.MINUS && d != mlx.Bool:
			v, err = r.op(shape, d, t.a.Neg, t)
		default:
			err = fmt.Errorf("%v of a tensor of dtype %v", op, d)
		}
		return err
	})
	return v, err
}

// Attr returns an attribute or a method.
func (t *tensor) Attr(name string) (v starlark.Value, err error) {
	if m, ok := methods[name]; ok {
		f := func(th *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (v starlark.Value, err error) {
			t := b.Receiver().(*tensor)
			err = t.try(func(r *run) (err error) {
				t.shape() // fails if the tensor is freed
				v, err = m(r, t, b, args, kw)
				return err
			})
			return v, err
		}
		return starlark.NewBuiltin(name, f).BindReceiver(t), nil
	}
	err = t.try(func(*run) error {
		switch shape := t.shape(); name {
		case "shape":
			v = ints(shape)
		case "dtype":
			v = starlark.String(t.dtype().String())
		case "ndim":
			v = starlark.MakeInt(len(shape))
		case "size":
			v = starlark.MakeInt(t.a.Size())
		case "nbytes":
			v = starlark.MakeInt(t.a.Nbytes())
		}
		return nil
	})
	return v, err
}

func (t *tensor) AttrNames() []string {
	names := slices.Collect(maps.Keys(methods))
	names = append(names, "shape", "dtype", "ndim", "size", "nbytes")
	slices.Sort(names)
	return names
}

func ints(values []int) starlark.Tuple {
	out := make(starlark.Tuple, len(values))
	for i, n := range values {
		out[i] = starlark.MakeInt(n)
	}
	return out
}
