package expr

import (
	"math"
	"slices"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/runs"
)

// maxFirst is the number of elements that first returns at most.
const maxFirst = 1_000_000

// methods are the methods of tensors.
var methods map[string]func(c *call, t *tensor) starlark.Value

func init() {
	methods = map[string]func(c *call, t *tensor) starlark.Value{
		"min": reduction, "max": reduction, "mean": reduction, "std": reduction, "sum": reduction,
		"abs":       unary((*mlx.Array).Abs, false),
		"sqrt":      unary((*mlx.Array).Sqrt, true),
		"exp":       unary((*mlx.Array).Exp, true),
		"log":       unary((*mlx.Array).Log, true),
		"square":    unary((*mlx.Array).Square, false),
		"isfinite":  unary((*mlx.Array).IsFinite, false),
		"isnan":     unary(func(x *mlx.Array) *mlx.Array { return x.Equal(x).Not() }, false),
		"any":       anyAll,
		"all":       anyAll,
		"slice":     slice,
		"reshape":   reshape,
		"flatten":   func(c *call, t *tensor) starlark.Value { c.unpack(); return t.reshape([]int{-1}) },
		"transpose": transpose,
		"first":     first,
		"item":      func(c *call, t *tensor) starlark.Value { c.unpack(); return t.item() },
		"astype":    astype,
		"float":     func(c *call, t *tensor) starlark.Value { c.unpack(); return t.astype(mlx.Float32) },
		"argmax":    argmax,
		"numel":     func(c *call, t *tensor) starlark.Value { c.unpack(); return starlark.MakeInt(t.a.Size()) },
		"norm":      norm,
	}
}

// reduction is min, max, mean, std or sum over all elements or axes.
func reduction(c *call, t *tensor) starlark.Value {
	var axis starlark.Value = starlark.None
	c.unpack("axis?", &axis)
	if axis == starlark.None {
		return t.statistic(c.name)
	}
	axes := starlark.Tuple{axis}
	if several, ok := axis.(starlark.Tuple); ok {
		axes = several
	}
	shape := t.a.Shape()
	reduced := make([]bool, len(shape))
	for _, x := range axes {
		i := c.axis(x, shape)
		if shape[i] == 0 && c.name != "sum" {
			fail("%s: axis %d has no elements", c.name, i)
		}
		reduced[i] = true
	}
	rest := []int{}
	for i, n := range shape {
		if !reduced[i] {
			rest = append(rest, n)
		}
	}
	d := mlx.Float32
	if (c.name == "min" || c.name == "max") && t.a.Dtype() != mlx.Bool {
		d = t.a.Dtype()
	}
	return c.op(func() *mlx.Array { return reduceAxes(c.name, t.a.AsType(d), reduced).Reshape(rest...) })
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

// axis reads an axis, which counts from the end if it is negative.
func (c *call) axis(x starlark.Value, shape []int) int {
	i, err := starlark.AsInt32(x)
	if err != nil {
		fail("%s: axis %s: expected a whole number", c.name, brief(x))
	}
	if i < -len(shape) || i >= len(shape) {
		fail("%s: axis %d of a tensor with shape %s", c.name, i, shapeText(shape))
	}
	if i < 0 {
		i += len(shape)
	}
	return i
}

// unary returns a method without arguments. A float method converts whole numbers to float32.
func unary(f func(x *mlx.Array) *mlx.Array, float bool) func(c *call, t *tensor) starlark.Value {
	return func(c *call, t *tensor) starlark.Value {
		c.unpack()
		return c.op(func() *mlx.Array {
			if float && !t.a.Dtype().IsFloat() {
				return f(t.a.AsType(mlx.Float32))
			}
			return f(t.a)
		})
	}
}

// anyAll reports whether any, or all, elements are not zero.
func anyAll(c *call, t *tensor) (v starlark.Value) {
	c.unpack()
	if t.a.Size() == 0 {
		return starlark.Bool(c.name == "all")
	}
	mlx.WithScope(func() {
		zero := t.a.Equal(mlx.Scalar(0, t.a.Dtype()))
		if c.name == "all" {
			v = starlark.Bool(zero.Not().All())
		} else {
			v = starlark.Bool(!zero.All())
		}
	})
	return v
}

// slice returns elements a to b of an axis.
func slice(c *call, t *tensor) starlark.Value {
	var axis, from starlark.Value
	var to starlark.Value = starlark.None
	c.unpack("axis", &axis, "a", &from, "b?", &to)
	shape := t.a.Shape()
	i := c.axis(axis, shape)
	var parts []selection
	for j := range i {
		parts = append(parts, selection{0, shape[j], 1, false})
	}
	return t.pick(append(parts, axisSlice{starlark.Tuple{from, to}}.of(i, shape[i])))
}

func reshape(c *call, t *tensor) starlark.Value { return t.reshape(c.ints()) }

// reshape returns the elements in another shape, of which one size can be -1.
func (t *tensor) reshape(sizes []int) *tensor {
	return t.in.running.op(func() (a *mlx.Array) {
		err := mlx.Try(func() { a = t.a.Reshape(sizes...) })
		if err != nil || len(sizes) > 0 && slices.Min(sizes) < -1 {
			fail("reshape to %s of a tensor with shape %s", shapeText(sizes), shapeText(t.a.Shape()))
		}
		return a
	})
}

func transpose(c *call, t *tensor) starlark.Value {
	axes, shape := c.ints(), t.a.Shape()
	if len(c.args) == 0 {
		for i := range shape {
			axes = append(axes, len(shape)-1-i)
		}
	}
	if len(axes) != len(shape) {
		fail("transpose: %d axes for a tensor with shape %s", len(axes), shapeText(shape))
	}
	seen := make([]bool, len(shape))
	for i := range axes {
		axis := c.axis(starlark.MakeInt(axes[i]), shape)
		if seen[axis] {
			fail("transpose: axis %d twice", axes[i])
		}
		axes[i], seen[axis] = axis, true
	}
	return c.view(func() *mlx.Array { return t.a.Transpose(axes...) })
}

// ints reads whole numbers, which may also be in a tuple or list.
func (c *call) ints() []int {
	if len(c.kw) > 0 {
		fail("%s: unexpected argument %s", c.name, brief(c.kw[0][0]))
	}
	args := c.args
	if len(args) == 1 {
		if x, ok := args[0].(starlark.Sequence); ok {
			args = nil
			for v := range starlark.Elements(x) {
				args = append(args, v)
			}
		}
	}
	out := []int{}
	for _, x := range args {
		n, err := starlark.AsInt32(x)
		if err != nil {
			fail("%s: %s: expected a whole number", c.name, brief(x))
		}
		out = append(out, n)
	}
	return out
}

func first(c *call, t *tensor) starlark.Value {
	n := runs.Previewed
	c.unpack("n?", &n)
	if n < 0 || n > maxFirst {
		fail("first(%d): expected 0 to %d", n, maxFirst)
	}
	return starlark.NewList(t.firstOf(n))
}

func astype(c *call, t *tensor) starlark.Value {
	var name string
	c.unpack("dtype", &name)
	d, err := mlx.ParseDtype(name)
	if err != nil || d == mlx.Complex64 || d == mlx.Float64 {
		fail("dtype %s (%s)", brief(starlark.String(name)), checkpoint.Hint(name, dtypeNames))
	}
	return t.astype(d)
}

func (t *tensor) astype(d mlx.Dtype) *tensor {
	return t.in.running.op(func() *mlx.Array { return t.a.AsType(d) })
}

// dtypeNames are the dtypes to which tensors can be converted. MLX's GPUs have no float64.
var dtypeNames = []string{"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
	"float16", "float32", "bfloat16"}

// argmax returns the index of the largest element in row-major order.
func argmax(c *call, t *tensor) starlark.Value {
	c.unpack()
	if t.a.Size() == 0 {
		fail("argmax of a tensor without elements")
	}
	return c.op(func() *mlx.Array { return t.a.Reshape(-1).Argmax(0).Reshape() }).item()
}

// norm is the square root of the sum of all squares, computed as the statistics are.
func norm(c *call, t *tensor) starlark.Value {
	c.unpack()
	s := t.summarize()
	mean, std := float64(s.Mean), float64(s.Std)
	switch n := float64(t.a.Size()); {
	case s.NaN > 0:
		return starlark.Float(math.NaN())
	case s.Inf > 0:
		return starlark.Float(math.Inf(1))
	case n == 0:
		return starlark.Float(0)
	default:
		return starlark.Float(float32(math.Sqrt(n * (mean*mean + std*std))))
	}
}
