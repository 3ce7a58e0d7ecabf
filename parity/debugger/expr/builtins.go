package expr

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/mlx"
)

// A builtin is a function of expressions.
type builtin func(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error)

// builtins are the functions of expressions: those that only rewritten source calls, those of
// tensors, and those of Starlark that need limits or have a meaning for tensors.
var builtins map[string]builtin

func init() {
	builtins = map[string]builtin{
		callOperator: func(r *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			op, _ := starlark.AsString(args[0])
			return r.operator(op, args[1], args[2])
		},
		callAugment: func(r *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			op, _ := starlark.AsString(args[0])
			return r.augment(op, args[1], args[2])
		},
		callSetItem: func(r *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			op, _ := starlark.AsString(args[0])
			return starlark.None, r.setItem(op, args[1], args[2], args[3])
		},
		callTruth: checkTruth,
		callTuple: func(_ *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return args[0], checkTuple(args[0])
		},
		callLast: func(_ *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			return args[len(args)-1], nil
		},
		callAttr: func(r *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			name, _ := starlark.AsString(args[1])
			return r.attr(args[0], name)
		},
		callResult: func(r *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			r.result = args[0]
			return starlark.None, nil
		},
		sliceName: func(_ *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
			if len(args) > 3 {
				return nil, errors.New("a slice has at most two colons")
			}
			return &axisSlice{args}, nil
		},
		loadName: load, "keep": keep, "compare": compare,

		"abs": ofTensor("abs", nil), "min": extreme, "max": extreme, "sum": sum, "round": round, "pow": pow,
		"any": anyAll, "all": anyAll, "bool": boolOf, "float": floatOf, "int": intOf,
		"str": textOf, "repr": textOf, "print": printTo, "fail": fail, "getattr": getattr,
		"range": rangeOf, "list": collect, "tuple": collect, "reversed": collect, "sorted": sortedOf,
		"set": hashed, "dict": hashed, "enumerate": pairs, "zip": pairs, "bytes": bytesOf,
	}
}

// call makes a function of Starlark, in which a failed operation of MLX is an error.
func (in *Interpreter) call(f builtin) func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
	return func(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (v starlark.Value, err error) {
		r := in.running
		if err := r.stopped(); err != nil {
			return nil, err
		}
		if failed := mlx.Try(func() { v, err = f(r, b.Name(), args, kw) }); failed != nil {
			return nil, bare(failed)
		}
		if err != nil {
			return nil, err
		}
		return v, nil
	}
}

// universal calls a function of Starlark itself.
func (r *run) universal(name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	return starlark.Universe[name].(*starlark.Builtin).CallInternal(r.thread, args, kw)
}

// checkTruth returns its argument, which must have a truth value: a tensor must have one element.
func checkTruth(_ *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	t, ok := args[0].(*tensor)
	if !ok {
		return args[0], nil
	}
	if n := t.shape(); t.a.Size() != 1 {
		return nil, fmt.Errorf("a tensor with shape %s is neither true nor false (use any() or all())", shapeText(n))
	}
	return t.item()
}

func load(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var what string
	if err := starlark.UnpackArgs(name, args, kw, "name", &what); err != nil {
		return nil, err
	}
	if r.env.Load == nil {
		return nil, errors.New("load: there are no saved tensors here")
	}
	bytes := 0
	return r.loaded(func() (*mlx.Array, error) {
		a, err := r.env.Load(what)
		if err == nil {
			bytes = a.Nbytes()
		}
		return a, err
	}, &bytes)
}

// loaded returns a tensor that f reads, whose size is known afterwards.
func (r *run) loaded(f func() (*mlx.Array, error), bytes *int) (starlark.Value, error) {
	t, err := r.alias(0, f)
	if err != nil {
		return nil, err
	}
	r.made[len(r.made)-1].bytes = *bytes
	r.bytes += *bytes
	return t, nil
}

// keep defines a variable and returns its value, also inside an expression.
func keep(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var variable string
	var v starlark.Value
	if err := starlark.UnpackArgs(name, args, kw, "name", &variable, "value", &v); err != nil {
		return nil, err
	}
	if !isName(variable) || slices.Contains(stopNames, variable) || slices.Contains(reserved, variable) {
		return nil, fmt.Errorf("keep: %s cannot be the name of a variable", brief(starlark.String(variable)))
	}
	r.in.define(variable, v)
	return v, nil
}

func isName(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && !slices.Contains(keywords, s) && s != "None" && s != "True" && s != "False"
}

// compare measures a tensor against a reference, as the parity harness does.
func compare(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var got, want *tensor
	if err := starlark.UnpackArgs(name, args, kw, "a", &got, "b", &want); err != nil {
		return nil, err
	}
	if a, b := got.shape(), want.shape(); !slices.Equal(a, b) {
		return nil, fmt.Errorf("compare: shape %s and %s", shapeText(a), shapeText(b))
	}
	if err := r.reserve(3 * 4 * got.a.Size()); err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	return &difference{r.in.Compare(got.a.Floats(), want.a.Floats())}, r.stopped()
}

// ofTensor returns a function that is a method of tensors, and otherwise Starlark's.
func ofTensor(method string, check func(r *run, args starlark.Tuple) error) builtin {
	return func(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		if len(args) > 0 {
			if t, ok := args[0].(*tensor); ok {
				f, err := t.Attr(method)
				if err != nil {
					return nil, err
				}
				return starlark.Call(r.thread, f, args[1:], kw)
			}
		}
		if check != nil {
			if err := check(r, args); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		return r.universal(name, args, kw)
	}
}

// extreme is min or max.
func extreme(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 1 {
		for _, x := range args {
			if _, ok := x.(*tensor); ok {
				return nil, fmt.Errorf("%s of a tensor and other values (%s(t) and t.%s(axis=N) are possible)", name, name, name)
			}
		}
	}
	return ofTensor(name, func(_ *run, args starlark.Tuple) error { return noTensors(args...) })(r, name, args, kw)
}

// noTensors measures values that are compared with each other, which tensors cannot be.
func noTensors(values ...starlark.Value) error {
	_, err := weigh(values...)
	return err
}

// sum adds the elements of a tensor, list, or other iterable value.
func sum(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 0 {
		if _, ok := args[0].(*tensor); ok {
			return ofTensor(name, nil)(r, name, args, kw)
		}
	}
	var values starlark.Iterable
	var total starlark.Value = starlark.MakeInt(0)
	if err := starlark.UnpackArgs(name, args, kw, "values", &values, "start?", &total); err != nil {
		return nil, err
	}
	for v := range starlark.Elements(values) {
		if err := r.stopped(); err != nil {
			return nil, err
		}
		var err error
		if total, err = r.operator("+", total, v); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// round rounds half to even, to a number of digits, as Python does.
func round(_ *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var x starlark.Value
	var digits starlark.Value = starlark.None
	if err := starlark.UnpackArgs(name, args, kw, "x", &x, "digits?", &digits); err != nil {
		return nil, err
	}
	if t, ok := x.(*tensor); ok {
		v, err := t.item()
		if err != nil {
			return nil, err
		}
		x = v
	}
	f, ok := starlark.AsFloat(x)
	if !ok {
		return nil, fmt.Errorf("round: %s: expected a number", brief(x))
	}
	if n, ok := x.(starlark.Int); ok {
		return n, nil
	}
	if digits == starlark.None {
		return starlark.NumberToInt(starlark.Float(math.RoundToEven(f)))
	}
	n, err := starlark.AsInt32(digits)
	if err != nil || n < -300 || n > 300 {
		return nil, fmt.Errorf("round: %s digits", brief(digits))
	}
	scale := math.Pow10(n)
	if v := math.RoundToEven(f*scale) / scale; !math.IsNaN(v) && !math.IsInf(v, 0) {
		f = v
	}
	return starlark.Float(f), nil
}

func pow(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var x, y starlark.Value
	if err := starlark.UnpackArgs(name, args, kw, "x", &x, "y", &y); err != nil {
		return nil, err
	}
	return r.operator("**", x, y)
}

// anyAll is any or all of a tensor's elements, or of values.
func anyAll(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var x starlark.Iterable
	if err := starlark.UnpackArgs(name, args, kw, "values", &x); err != nil {
		return nil, err
	}
	if t, ok := x.(*tensor); ok {
		return r.truthOf(t, name == "all")
	}
	for v := range starlark.Elements(x) {
		if err := r.stopped(); err != nil {
			return nil, err
		}
		v, err := checkTruth(r, name, starlark.Tuple{v}, nil)
		if err != nil {
			return nil, err
		}
		if bool(v.Truth()) == (name == "any") {
			return starlark.Bool(name == "any"), nil
		}
	}
	return starlark.Bool(name == "all"), nil
}

func boolOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) == 1 {
		v, err := checkTruth(r, name, args, nil)
		if err != nil {
			return nil, err
		}
		args = starlark.Tuple{v}
	}
	return r.universal(name, args, kw)
}

func floatOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	return ofItem(r, name, args, kw)
}

// ofItem is a function of Starlark for a number, or for the only element of a tensor.
func ofItem(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 0 {
		if t, ok := args[0].(*tensor); ok {
			v, err := t.item()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			args = append(starlark.Tuple{v}, args[1:]...)
		}
	}
	return r.universal(name, args, kw)
}

func intOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	const bitsPerDigit = 4
	if len(args) > 0 {
		if s, ok := args[0].(starlark.String); ok {
			if err := checkInt(len(s) * bitsPerDigit); err != nil {
				return nil, err
			}
		}
	}
	return ofItem(r, name, args, kw)
}

// textOf is str or repr.
func textOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	var x starlark.Value
	if err := starlark.UnpackPositionalArgs(name, args, kw, 1, &x); err != nil {
		return nil, err
	}
	write := repr
	if name == "str" {
		write = str
	}
	text, err := write(x, maxText)
	if err != nil {
		return nil, err
	}
	return starlark.String(text), r.reserve(len(text))
}

// printTo adds a line to the output of the evaluation.
func printTo(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	sep := " "
	if err := starlark.UnpackArgs(name, nil, kw, "sep?", &sep); err != nil {
		return nil, err
	}
	text, err := joined(args, sep)
	if err != nil {
		return nil, fmt.Errorf("print: %w", err)
	}
	return starlark.None, r.output.add(text)
}

func joined(args starlark.Tuple, sep string) (string, error) {
	var out strings.Builder
	for i, v := range args {
		text, err := str(v, maxOutput)
		if err != nil {
			return "", err
		}
		if i > 0 {
			text = sep + text
		}
		if out.Len()+len(text) > maxOutput {
			return "", fmt.Errorf("more than %s of text", size(maxOutput))
		}
		out.WriteString(text)
	}
	return out.String(), nil
}

// fail ends the evaluation with a message.
func fail(_ *run, _ string, args starlark.Tuple, _ []starlark.Tuple) (starlark.Value, error) {
	text, err := joined(args, " ")
	if err != nil {
		return nil, err
	}
	return nil, errors.New("fail: " + text)
}

func getattr(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) >= 2 {
		if method, ok := starlark.AsString(args[1]); ok && guarded[method] {
			return r.attr(args[0], method)
		}
	}
	return r.universal(name, args, kw)
}

func rangeOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	v, err := r.universal(name, args, kw)
	if err != nil {
		return nil, err
	}
	return v, r.checkCount(starlark.Len(v), 0)
}

// collect is list, tuple or reversed.
func collect(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 0 {
		if err := r.checkCount(count(args[0]), 48); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	v, err := r.universal(name, args, kw)
	if err == nil {
		err = checkTuple(v)
	}
	return v, err
}

func sortedOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 0 {
		if n := count(args[0]); n > maxSorted {
			return nil, fmt.Errorf("sorted: %d values, at most %d are possible", n, maxSorted)
		}
		if err := noTensors(args[0]); err != nil {
			return nil, fmt.Errorf("sorted: %w", err)
		}
	}
	return r.universal(name, args, kw)
}

// hashed is set or dict, which compute hashes of all elements.
func hashed(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if err := r.checkHashed(args); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r.universal(name, args, kw)
}

// checkHashed measures values whose elements become keys.
func (r *run) checkHashed(args starlark.Tuple) error {
	n := 0
	for _, x := range args {
		n += max(0, count(x))
	}
	if n > maxKeys {
		return fmt.Errorf("%d elements: at most %d are possible", n, maxKeys)
	}
	if err := r.checkCount(n, 200); err != nil {
		return err
	}
	_, err := weigh(args...)
	return err
}

// pairs is enumerate or zip, which make tuples.
func pairs(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	n := math.MaxInt
	for _, x := range args {
		if _, ok := x.(starlark.Iterable); ok {
			n = min(n, count(x))
		}
	}
	if n < math.MaxInt {
		if err := r.checkCount(n*(len(args)+1), 48); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	v, err := r.universal(name, args, kw)
	if err != nil {
		return nil, err
	}
	return v, r.checkTuples(v)
}

// checkTuples checks the tuples in a list.
func (r *run) checkTuples(v starlark.Value) error {
	list, ok := v.(*starlark.List)
	if !ok {
		return checkTuple(v)
	}
	for x := range list.Elements() {
		if err := checkTuple(x); err != nil {
			return err
		}
		if err := r.stopped(); err != nil {
			return err
		}
	}
	return nil
}

func bytesOf(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
	if len(args) > 0 {
		if err := r.checkText(max(0, starlark.Len(args[0]))); err != nil {
			return nil, fmt.Errorf("bytes: %w", err)
		}
	}
	return r.universal(name, args, kw)
}

// guarded are the methods of strings, lists, dicts and sets that make large results or read
// large values. [run.attr] checks their arguments.
var guarded = map[string]bool{
	"join": true, "replace": true, "format": true, "split": true, "rsplit": true, "splitlines": true,
	"extend": true, "index": true, "remove": true, "items": true, "popitem": true, "update": true,
	"union": true, "difference": true, "intersection": true, "symmetric_difference": true,
	"issubset": true, "issuperset": true, "item": true, "strip": true, "lstrip": true, "rstrip": true,
}

// attr returns an attribute. The methods in guarded check their arguments before, and their
// results after the call.
//
// Numbers have the method item, since in other frameworks the reductions return tensors.
func (r *run) attr(x starlark.Value, name string) (starlark.Value, error) {
	switch x.(type) {
	case starlark.Int, starlark.Float, starlark.Bool:
		if name == "item" {
			return starlark.NewBuiltin(name, func(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kw []starlark.Tuple) (
				starlark.Value, error) {
				return x, starlark.UnpackArgs(b.Name(), args, kw)
			}), nil
		}
	}
	v, err := r.universal("getattr", starlark.Tuple{x, starlark.String(name)}, nil)
	if err != nil {
		return nil, err
	}
	method, ok := v.(*starlark.Builtin)
	if _, own := x.(*tensor); own || !ok {
		return v, nil
	}
	in := r.in
	f := in.call(func(r *run, name string, args starlark.Tuple, kw []starlark.Tuple) (starlark.Value, error) {
		if err := r.checkMethod(x, name, args, kw); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		v, err := method.CallInternal(r.thread, args, kw)
		if err == nil && (name == "items" || name == "popitem") {
			err = r.checkTuples(v)
		}
		return v, err
	})
	return starlark.NewBuiltin(name, f).BindReceiver(x), nil
}

func (r *run) checkMethod(x starlark.Value, name string, args starlark.Tuple, kw []starlark.Tuple) error {
	s, isString := x.(starlark.String)
	switch {
	case name == "extend" && len(args) == 1:
		return r.checkCount(starlark.Len(x)+count(args[0]), 16)
	case name == "items":
		return r.checkCount(starlark.Len(x), 100)
	case !isString:
		return r.checkHashed(append(starlark.Tuple{x}, args...))
	case name == "join" && len(args) == 1:
		w, err := weigh(args[0])
		if err != nil {
			return err
		}
		return r.checkText(w.bytes + count(args[0])*len(s))
	case name == "replace" && len(args) >= 2:
		old, _ := starlark.AsString(args[0])
		by, _ := starlark.AsString(args[1])
		return r.checkText(len(s) + strings.Count(string(s), old)*max(0, len(by)-len(old)))
	case name == "format":
		all := slices.Clone(args)
		for _, k := range kw {
			all = append(all, k[1])
		}
		w, err := weigh(all...)
		if err != nil {
			return err
		}
		return r.checkText(len(s) + strings.Count(string(s), "{")*w.bytes)
	case name == "split" || name == "rsplit" || name == "splitlines":
		pieces := len(s)/2 + 1
		if len(args) > 0 {
			sep, _ := starlark.AsString(args[0])
			pieces = strings.Count(string(s), sep) + 1
		}
		if name == "splitlines" {
			pieces = strings.Count(string(s), "\n") + 1
		}
		return r.checkCount(pieces, 48)
	case strings.HasSuffix(name, "strip") && len(args) > 0:
		const maxChars = 1000 // each of which is compared with each of the string
		if chars, _ := starlark.AsString(args[0]); len(chars) > maxChars {
			return fmt.Errorf("%d characters to remove: at most %d are possible", len(chars), maxChars)
		}
	}
	return nil
}

// difference is the result of compare.
type difference struct{ measures Difference }

func (d *difference) Type() string          { return "difference" }
func (d *difference) Freeze()               {}
func (d *difference) Truth() starlark.Bool  { return true }
func (d *difference) Hash() (uint32, error) { return 0, errors.New("a difference cannot be a key") }

func (d *difference) String() string {
	var words []string
	for _, m := range d.measures {
		words = append(words, m.Name+"="+brief(m.value()))
	}
	return "difference(" + strings.Join(words, ", ") + ")"
}

func (m Measure) value() starlark.Value {
	switch v := m.Value.(type) {
	case bool:
		return starlark.Bool(v)
	case int:
		return starlark.MakeInt(v)
	case float64:
		return starlark.Float(v)
	}
	return starlark.None
}

func (d *difference) Attr(name string) (starlark.Value, error) {
	for _, m := range d.measures {
		if m.Name == name {
			return m.value(), nil
		}
	}
	return nil, nil
}

func (d *difference) AttrNames() (out []string) {
	for _, m := range d.measures {
		out = append(out, m.Name)
	}
	return out
}
