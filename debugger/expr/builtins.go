package expr

import (
	"errors"
	"math"
	"slices"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/report"
)

// A call is a call of a function by an expression.
type call struct {
	*run
	name string
	args starlark.Tuple
	kw   []starlark.Tuple
}

// function makes a function of Starlark. f fails as operations of MLX do.
func (in *Interpreter) function(name string, f func(c *call) starlark.Value) *starlark.Builtin {
	run := func(_ *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		return in.running.try(func() starlark.Value { return f(&call{in.running, name, args, kw}) })
	}
	return starlark.NewBuiltin(name, run)
}

// unpack reads the arguments, as [starlark.UnpackArgs] does.
func (c *call) unpack(pairs ...any) { must(starlark.UnpackArgs(c.name, c.args, c.kw, pairs...)) }

// universal calls the function of Starlark that has the same name.
func (c *call) universal() starlark.Value {
	v, err := starlark.Universe[c.name].(*starlark.Builtin).CallInternal(c.thread, c.args, c.kw)
	must(err)
	return v
}

// functions are the functions of expressions, besides those of Starlark.
var functions map[string]func(c *call) starlark.Value

func init() {
	functions = map[string]func(c *call) starlark.Value{
		leftName: func(c *call) starlark.Value {
			op, _ := starlark.AsInt32(c.args[0])
			return left{c.args[1], syntax.Token(op), c.run}
		},
		itemName: item,
		resultName: func(c *call) starlark.Value {
			c.result = c.args[0]
			return starlark.None
		},
		sliceName: func(c *call) starlark.Value {
			if len(c.args) > 3 {
				fail("a slice has at most two colons")
			}
			return axisSlice{c.args}
		},
		powName: pow, "pow": pow, loadName: load, "keep": keep, "compare": compare,
		"min": extreme, "max": extreme, "abs": ofTensor, "any": ofTensor, "all": ofTensor,
		"sum": sum, "round": round, "float": ofItem, "int": ofItem,
		"str": text, "repr": text, "print": printLine,
	}
}

func isTensor(x starlark.Value) bool {
	_, ok := x.(*tensor)
	return ok
}

// ofTensor is a method of a tensor, or a function of Starlark.
func ofTensor(c *call) starlark.Value {
	if len(c.args) > 0 {
		if t, ok := c.args[0].(*tensor); ok {
			return methods[c.name](&call{c.run, c.name, c.args[1:], c.kw}, t)
		}
	}
	return c.universal()
}

// extreme is min or max.
func extreme(c *call) starlark.Value {
	if len(c.args) > 1 && slices.ContainsFunc(c.args, isTensor) {
		fail("%[1]s of a tensor and other values (%[1]s(t) and t.%[1]s(axis=N) are possible)", c.name)
	}
	return ofTensor(c)
}

// number returns the only element of a tensor, and other values as they are.
func number(x starlark.Value) starlark.Value {
	if t, ok := x.(*tensor); ok {
		return t.item()
	}
	return x
}

// item is x.item() of a number or tensor.
func item(c *call) starlark.Value {
	switch x := number(c.args[0]).(type) {
	case starlark.Int, starlark.Float, starlark.Bool:
		return x
	default:
		fail("%s has no .item field or method", x.Type())
		return nil
	}
}

// ofItem is float or int.
func ofItem(c *call) starlark.Value {
	if len(c.args) > 0 {
		c.args[0] = number(c.args[0])
	}
	return c.universal()
}

func pow(c *call) starlark.Value {
	var x, y starlark.Value
	c.unpack("x", &x, "y", &y)
	return power(x, y)
}

func load(c *call) starlark.Value {
	var name string
	c.unpack("name", &name)
	if c.env.Load == nil {
		fail("load: there are no saved tensors here")
	}
	return c.op(func() *mlx.Array {
		a, err := c.env.Load(name)
		must(err)
		return a
	})
}

// keep defines a variable and returns its value, also inside an expression.
func keep(c *call) starlark.Value {
	var name string
	var v starlark.Value
	c.unpack("name", &name, "value", &v)
	f, err := options.ParseExpr("", name, 0)
	if _, ok := f.(*syntax.Ident); err != nil || !ok || slices.Contains(stopNames, name) || slices.Contains(reserved, name) {
		fail("keep: %s cannot be the name of a variable", brief(starlark.String(name)))
	}
	c.in.names[name] = v
	return v
}

// compare measures a tensor against a reference, as the parity harness does.
func compare(c *call) starlark.Value {
	var got, want *tensor
	c.unpack("a", &got, "b", &want)
	if a, b := got.a.Shape(), want.a.Shape(); !slices.Equal(a, b) {
		fail("compare: shape %s and %s", shapeText(a), shapeText(b))
	}
	d := report.Compare(got.a.Floats(), want.a.Floats())
	return &difference{[]starlark.Value{
		starlark.Float(d.L2), starlark.Float(d.Max), starlark.Float(d.MaxRef), starlark.Float(d.Mean), starlark.Float(d.Cosine),
		starlark.MakeInt(d.At), starlark.MakeInt(d.Count), starlark.Bool(d.Finite),
	}}
}

// sum adds the elements of a tensor, list, or other iterable value.
func sum(c *call) starlark.Value {
	if len(c.args) > 0 && isTensor(c.args[0]) {
		return ofTensor(c)
	}
	var values starlark.Iterable
	var total starlark.Value = starlark.MakeInt(0)
	c.unpack("values", &values, "start?", &total)
	for v := range starlark.Elements(values) {
		c.check()
		var err error
		total, err = starlark.Binary(syntax.PLUS, total, v)
		must(err)
	}
	return total
}

// round rounds half to even, to a number of digits, as Python does.
func round(c *call) starlark.Value {
	var x starlark.Value
	var digits starlark.Value = starlark.None
	c.unpack("x", &x, "digits?", &digits)
	x = number(x)
	f, ok := starlark.AsFloat(x)
	if !ok {
		fail("round: %s: expected a number", brief(x))
	}
	if _, ok := x.(starlark.Int); ok {
		return x
	}
	if digits == starlark.None {
		n, err := starlark.NumberToInt(starlark.Float(math.RoundToEven(f)))
		must(err)
		return n
	}
	n, err := starlark.AsInt32(digits)
	if err != nil {
		fail("round: %s digits", brief(digits))
	}
	scale := math.Pow10(n)
	if v := math.RoundToEven(f*scale) / scale; !math.IsNaN(v) && !math.IsInf(v, 0) {
		f = v
	}
	return starlark.Float(f)
}

// text is str or repr.
func text(c *call) starlark.Value {
	var x starlark.Value
	must(starlark.UnpackPositionalArgs(c.name, c.args, c.kw, 1, &x))
	if c.name == "str" {
		return starlark.String(str(x))
	}
	return starlark.String(repr(x))
}

// printLine adds a line to the output of the evaluation.
func printLine(c *call) starlark.Value {
	sep := " "
	must(starlark.UnpackArgs(c.name, nil, c.kw, "sep?", &sep))
	words := make([]string, len(c.args))
	for i, v := range c.args {
		words[i] = str(v)
	}
	line := strings.Join(words, sep)
	if c.printed += len(line); c.printed > maxText {
		fail("print: more than %s of text", size(maxText))
	}
	c.output = append(c.output, line)
	return starlark.None
}

// difference is the result of compare.
type difference struct{ values []starlark.Value } // of measures

// measures are the attributes of a difference, in the order in which they are printed.
var measures = []string{"l2", "max", "max_ref", "mean", "cosine", "at", "count", "finite"}

func (d *difference) Type() string          { return "difference" }
func (d *difference) Freeze()               {}
func (d *difference) Truth() starlark.Bool  { return true }
func (d *difference) Hash() (uint32, error) { return 0, errors.New("a difference cannot be a key") }
func (d *difference) AttrNames() []string   { return measures }

func (d *difference) String() string {
	var words []string
	for i, name := range measures {
		words = append(words, name+"="+repr(d.values[i]))
	}
	return "difference(" + strings.Join(words, ", ") + ")"
}

func (d *difference) Attr(name string) (starlark.Value, error) {
	if i := slices.Index(measures, name); i >= 0 {
		return d.values[i], nil
	}
	return nil, nil
}
