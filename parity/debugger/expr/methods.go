package expr

import (
	"fmt"
	"math"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// maxFirst is the number of elements that first returns at most.
const maxFirst = 1_000_000

// A method is called in [tensor.try], so operations may fail in it.
type method func(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error)

// methods are the methods of tensors.
var methods map[string]method

func init() {
	methods = map[string]method{
		"min": reduction, "max": reduction, "mean": reduction, "std": reduction, "sum": reduction,
		"abs":       unary((*mlx.Array).Abs, false),
		"sqrt":      unary((*mlx.Array).Sqrt, true),
		"exp":       unary((*mlx.Array).Exp, true),
		"log":       unary((*mlx.Array).Log, true),
		"square":    unary((*mlx.Array).Square, false),
		"any":       truth,
		"all":       truth,
		"isfinite":  finite,
		"isnan":     finite,
		"slice":     slice,
		"reshape":   reshape,
		"flatten":   reshape,
		"transpose": transpose,
		"first":     first,
		"item":      item,
		"astype":    astype,
		"argmax":    argmax,
		"numel":     numel,
		"norm":      norm,
		"float":     toFloat,
	}
}

// reduction is min, max, mean, std or sum over all elements or an axis.
func reduction(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var axis starlark.Value = starlark.None
	if err := starlark.UnpackArgs(b.Name(), args, kw, "axis?", &axis); err != nil {
		return nil, err
	}
	if axis == starlark.None {
		return t.statistic(b.Name())
	}
	axes := starlark.Tuple{axis}
	if several, ok := axis.(starlark.Tuple); ok {
		axes = several
	}
	shape := t.shape()
	reduced := make([]bool, len(shape))
	for _, x := range axes {
		i, err := axisOf(x, shape)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name(), err)
		}
		if shape[i] == 0 && b.Name() != "sum" {
			return nil, fmt.Errorf("%s: axis %d has no elements", b.Name(), i)
		}
		reduced[i] = true
	}
	var rest []int
	for i, n := range shape {
		if !reduced[i] {
			rest = append(rest, n)
		}
	}
	d := mlx.Float32
	if (b.Name() == "min" || b.Name() == "max") && t.dtype() != mlx.Bool {
		d = t.dtype()
	}
	if _, err := tensorSize(shape, d); err != nil { // for its copy in float32
		return nil, err
	}
	return r.op(rest, d, func() *mlx.Array { return reduceAxes(b.Name(), t.a.AsType(d), reduced) }, t)
}

// reduceAxes reduces one axis after the other, which stay as size 1.
func reduceAxes(name string, x *mlx.Array, reduced []bool) *mlx.Array {
	each := func(x *mlx.Array, f func(x *mlx.Array, axis int) *mlx.Array) *mlx.Array {
		for axis, yes := range reduced {
			if yes {
				x = f(x, axis)
			}
		}
		return x
	}
	switch name {
	case "min":
		return each(x, (*mlx.Array).Min)
	case "max":
		return each(x, (*mlx.Array).Max)
	case "sum":
		return each(x, (*mlx.Array).Sum)
	case "mean":
		return each(x, (*mlx.Array).Mean)
	}
	return each(x.Sub(each(x, (*mlx.Array).Mean)).Square(), (*mlx.Array).Mean).Sqrt() // std
}

// axisOf reads an axis, which counts from the end if it is negative.
func axisOf(x starlark.Value, shape []int) (int, error) {
	i, err := starlark.AsInt32(x)
	if err != nil {
		return 0, fmt.Errorf("axis %s: expected a whole number", brief(x))
	}
	if i < -len(shape) || i >= len(shape) {
		return 0, fmt.Errorf("axis %d of a tensor with shape %s", i, shapeText(shape))
	}
	if i < 0 {
		i += len(shape)
	}
	return i, nil
}

// unary returns a method without arguments. A float method converts whole numbers to float32.
func unary(f func(x *mlx.Array) *mlx.Array, float bool) method {
	return func(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
			return nil, err
		}
		d := t.dtype()
		if float && !d.IsFloat() {
			d = mlx.Float32
		}
		return r.op(t.shape(), d, func() *mlx.Array { return f(t.a.AsType(d)) }, t)
	}
}

// truth is any or all.
func truth(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	return r.truthOf(t, b.Name() == "all")
}

// truthOf reports whether all, or any, elements are not zero.
func (r *run) truthOf(t *tensor, all bool) (v starlark.Bool, err error) {
	if t.a.Size() == 0 {
		return starlark.Bool(all), r.stopped()
	}
	mlx.WithScope(func() {
		zero := t.a.Equal(mlx.Scalar(0, t.a.Dtype()))
		if all {
			v = starlark.Bool(zero.Not().All())
		} else {
			v = starlark.Bool(!zero.All())
		}
	})
	return v, r.stopped()
}

// finite is isfinite or isnan.
func finite(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	return r.op(t.shape(), mlx.Bool, func() *mlx.Array {
		if b.Name() == "isfinite" {
			return t.a.IsFinite()
		}
		return t.a.Equal(t.a).Not()
	}, t)
}

func slice(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var axis, from starlark.Value
	var to starlark.Value = starlark.None
	if err := starlark.UnpackArgs(b.Name(), args, kw, "axis", &axis, "a", &from, "b?", &to); err != nil {
		return nil, err
	}
	shape := t.shape()
	i, err := axisOf(axis, shape)
	if err != nil {
		return nil, fmt.Errorf("slice: %w", err)
	}
	bound := func(x starlark.Value, none int) (int, error) {
		if x == starlark.None {
			return none, nil
		}
		n, err := starlark.AsInt32(x)
		if err != nil {
			return 0, fmt.Errorf("slice: bound %s: expected a whole number", brief(x))
		}
		if n < 0 {
			n += shape[i]
		}
		return min(max(n, 0), shape[i]), nil
	}
	start, err := bound(from, 0)
	if err != nil {
		return nil, err
	}
	end, err := bound(to, shape[i])
	if err != nil {
		return nil, err
	}
	return r.part(t, i, start, max(start, end))
}

// reshape is reshape or flatten.
func reshape(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if b.Name() == "flatten" {
		if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
			return nil, err
		}
		args = starlark.Tuple{starlark.MakeInt(-1)}
	}
	sizes, err := intArgs(b.Name(), args, kw)
	if err != nil {
		return nil, err
	}
	count, infer, known := t.a.Size(), -1, 1
	for i, n := range sizes {
		switch {
		case n == -1 && infer < 0:
			infer = i
		case n < 0 || n > 0 && known > count/n && count > 0:
			return nil, fmt.Errorf("reshape to %s of a tensor with shape %s", shapeText(sizes), shapeText(t.shape()))
		default:
			known *= n
		}
	}
	if infer >= 0 && known > 0 {
		sizes[infer] = count / known
		known *= sizes[infer]
	}
	if known != count {
		return nil, fmt.Errorf("reshape to %s of a tensor with shape %s", shapeText(sizes), shapeText(t.shape()))
	}
	return r.op(sizes, t.dtype(), func() *mlx.Array { return t.a.Reshape(sizes...) }, t)
}

func transpose(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	axes, err := intArgs(b.Name(), args, kw)
	if err != nil {
		return nil, err
	}
	shape := t.shape()
	if len(args) == 0 {
		for i := range shape {
			axes = append(axes, len(shape)-1-i)
		}
	}
	if len(axes) != len(shape) {
		return nil, fmt.Errorf("transpose: %d axes for a tensor with shape %s", len(axes), shapeText(shape))
	}
	seen, out := make([]bool, len(shape)), make([]int, len(shape))
	for i := range axes {
		axis, err := axisOf(starlark.MakeInt(axes[i]), shape)
		if err != nil {
			return nil, fmt.Errorf("transpose: %w", err)
		}
		if seen[axis] {
			return nil, fmt.Errorf("transpose: axis %d twice", axes[i])
		}
		axes[i], seen[axis], out[i] = axis, true, shape[axis]
	}
	return r.view(out, t, func() *mlx.Array { return t.a.Transpose(axes...) })
}

// intArgs reads whole numbers, which may also be in a tuple or list.
func intArgs(name string, args starlark.Tuple, kw []starlark.Tuple) ([]int, error) {
	if len(kw) > 0 {
		return nil, fmt.Errorf("%s: unexpected argument %s", name, brief(kw[0][0]))
	}
	if len(args) == 1 {
		switch x := args[0].(type) {
		case starlark.Tuple:
			args = x
		case *starlark.List:
			args = nil
			for v := range x.Elements() {
				args = append(args, v)
			}
		}
	}
	const maxAxes = 32
	if len(args) > maxAxes {
		return nil, fmt.Errorf("%s: %d numbers, expected at most %d", name, len(args), maxAxes)
	}
	out := []int{}
	for _, x := range args {
		n, err := starlark.AsInt32(x)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: expected a whole number", name, brief(x))
		}
		out = append(out, n)
	}
	return out, nil
}

func first(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	n := firstValues
	if err := starlark.UnpackArgs(b.Name(), args, kw, "n?", &n); err != nil {
		return nil, err
	}
	if n < 0 || n > maxFirst {
		return nil, fmt.Errorf("first(%d): expected 0 to %d", n, maxFirst)
	}
	values, err := r.firstOf(t, n)
	if err != nil {
		return nil, err
	}
	return starlark.NewList(values), r.stopped()
}

func item(_ *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	return t.item()
}

func astype(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := starlark.UnpackArgs(b.Name(), args, kw, "dtype", &name); err != nil {
		return nil, err
	}
	d, err := mlx.ParseDtype(name)
	if err != nil || d == mlx.Complex64 || d == mlx.Float64 {
		return nil, fmt.Errorf("dtype %s (%s)", brief(starlark.String(name)), checkpoint.Hint(name, dtypeNames))
	}
	return r.op(t.shape(), d, func() *mlx.Array { return t.a.AsType(d) }, t)
}

// dtypeNames are the dtypes to which tensors can be converted. MLX's GPUs have no float64.
var dtypeNames = []string{"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
	"float16", "float32", "bfloat16"}

// toFloat is astype("float32").
func toFloat(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	return astype(r, t, b, starlark.Tuple{starlark.String("float32")}, nil)
}

// argmax returns the index of the largest element in row-major order.
func argmax(r *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	if t.a.Size() == 0 {
		return nil, fmt.Errorf("argmax of a tensor without elements")
	}
	x, err := r.op(nil, mlx.Uint32, func() *mlx.Array { return t.a.Reshape(-1).Argmax(0).Reshape() }, t)
	if err != nil {
		return nil, err
	}
	return x.item()
}

func numel(_ *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	return starlark.MakeInt(t.a.Size()), nil
}

// norm is the square root of the sum of all squares, computed as the statistics are.
func norm(_ *run, t *tensor, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kw); err != nil {
		return nil, err
	}
	s, err := t.summarize()
	if err != nil {
		return nil, err
	}
	mean, std := float64(s.stats.Mean), float64(s.stats.Std)
	switch n := float64(t.a.Size()); {
	case s.stats.NaN > 0:
		return starlark.Float(math.NaN()), nil
	case s.stats.Inf > 0:
		return starlark.Float(math.Inf(1)), nil
	case n == 0:
		return starlark.Float(0), nil
	default:
		return starlark.Float(float32(math.Sqrt(n * (mean*mean + std*std)))), nil
	}
}
