package expr

import (
	"errors"
	"fmt"
	"math"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/mlx"
)

// tokens are the operators of [callOperator] that Starlark has.
var tokens = map[string]syntax.Token{}

func init() {
	for op := syntax.PLUS; op <= syntax.STARSTAR; op++ {
		tokens[op.String()] = op
	}
	for _, op := range []syntax.Token{syntax.IN, syntax.NOT_IN} {
		tokens[op.String()] = op
	}
}

// operator returns x op y.
func (r *run) operator(op string, x, y starlark.Value) (starlark.Value, error) {
	a, isA := x.(*tensor)
	b, isB := y.(*tensor)
	switch {
	case op == "in" || op == "not in":
		return r.in_(op, x, y)
	case (op == "==" || op == "!=") && (x == starlark.None || y == starlark.None):
		return starlark.Bool((x == y) == (op == "==")), nil
	case isA && isB:
		return r.tensorOp(op, a, b)
	case isA:
		b, err := r.like(y, a, op)
		if err != nil {
			return nil, err
		}
		return r.tensorOp(op, a, b)
	case isB:
		a, err := r.like(x, b, op)
		if err != nil {
			return nil, err
		}
		return r.tensorOp(op, a, b)
	}
	switch op {
	case "==", "!=", "<", "<=", ">", ">=":
		return r.order(tokens[op], x, y)
	case "**":
		return r.power(x, y)
	}
	return r.plain(tokens[op], x, y)
}

// like returns a number as a tensor that an operation with t can use.
func (r *run) like(v starlark.Value, t *tensor, op string) (*tensor, error) {
	d := t.dtype()
	var f float64
	switch v := v.(type) {
	case starlark.Bool:
		if d = mlx.Bool; bool(v) {
			f = 1
		}
	case starlark.Int:
		n, ok := v.Int64()
		if !ok {
			return nil, fmt.Errorf("tensor %s a whole number of more than 64 bits", op)
		}
		if f = float64(n); !d.IsFloat() {
			if d = mlx.Int32; int64(int32(n)) != n {
				d = mlx.Int64
			}
		}
	case starlark.Float:
		if f = float64(v); !d.IsFloat() {
			d = mlx.Float32
		}
	default:
		if op == "==" || op == "!=" {
			return nil, fmt.Errorf("tensor %s %s: a tensor is never that", op, kindOf(v))
		}
		return nil, fmt.Errorf("tensor %s %s: expected a tensor or a number", op, kindOf(v))
	}
	return r.op(nil, d, func() *mlx.Array { return mlx.Scalar(f, d).Reshape() })
}

// An arrayOp computes an operator. Its result has the dtype of the operands, or another one.
type arrayOp struct {
	compute func(x, y *mlx.Array) *mlx.Array
	result  func(x, y mlx.Dtype) mlx.Dtype
}

func swapped(f func(x, y *mlx.Array) *mlx.Array) func(x, y *mlx.Array) *mlx.Array {
	return func(x, y *mlx.Array) *mlx.Array { return f(y, x) }
}

var arrayOps = map[string]arrayOp{
	"+":  {(*mlx.Array).Add, promote},
	"-":  {(*mlx.Array).Sub, promote},
	"*":  {(*mlx.Array).Mul, promote},
	"/":  {(*mlx.Array).Div, promoteFloat},
	"//": {(*mlx.Array).FloorDivide, promote},
	"%":  {(*mlx.Array).Remainder, promote},
	"**": {(*mlx.Array).Power, promote},
	"==": {(*mlx.Array).Equal, boolean},
	"!=": {func(x, y *mlx.Array) *mlx.Array { return x.Equal(y).Not() }, boolean},
	"<":  {(*mlx.Array).Less, boolean},
	">":  {swapped((*mlx.Array).Less), boolean},
	">=": {(*mlx.Array).GreaterEqual, boolean},
	"<=": {swapped((*mlx.Array).GreaterEqual), boolean},
	"&":  {(*mlx.Array).And, boolean},
	"|":  {(*mlx.Array).Or, boolean},
}

func boolean(_, _ mlx.Dtype) mlx.Dtype { return mlx.Bool }

// promote returns the dtype of a sum, as MLX computes it.
func promote(x, y mlx.Dtype) mlx.Dtype {
	signed := func(d mlx.Dtype) bool { return d >= mlx.Int8 && d <= mlx.Int64 }
	switch {
	case x == y:
		return x
	case x.IsFloat() && y.IsFloat():
		return mlx.Float32 // float16 and bfloat16 have no common dtype but this
	case x.IsFloat() || y == mlx.Bool:
		return x
	case y.IsFloat() || x == mlx.Bool:
		return y
	case signed(x) == signed(y):
		return max(x, y)
	}
	u, s := min(x, y), max(x, y) // the unsigned ones come first
	for s.ItemSize() <= u.ItemSize() && s < mlx.Int64 {
		s++
	}
	if u == mlx.Uint64 {
		return mlx.Float32
	}
	return s
}

func promoteFloat(x, y mlx.Dtype) mlx.Dtype {
	if d := promote(x, y); d.IsFloat() {
		return d
	}
	return mlx.Float32
}

// tensorOp returns x op y, broadcast.
func (r *run) tensorOp(op string, x, y *tensor) (starlark.Value, error) {
	f, ok := arrayOps[op]
	if !ok {
		return nil, fmt.Errorf("tensors have no operator %s", op)
	}
	if dx, dy := x.dtype(), y.dtype(); (op == "&" || op == "|") && (dx != mlx.Bool || dy != mlx.Bool) {
		return nil, fmt.Errorf("tensor %s tensor: expected tensors of dtype bool, found %v and %v", op, dx, dy)
	}
	shape, err := broadcast(op, x.shape(), y.shape())
	if err != nil {
		return nil, err
	}
	common, err := r.common(op, x, y)
	if err != nil {
		return nil, err
	}
	compute, d := f.compute, f.result(common, common)
	if isArithmetic(op) {
		d = common
	}
	if (op == "//" || op == "%") && !common.IsFloat() {
		compute = func(x, y *mlx.Array) *mlx.Array { return divideWhole(op, x, y) }
	}
	for _, s := range [][]int{x.shape(), y.shape()} { // their copies in the common dtype
		if _, err := tensorSize(s, common); err != nil {
			return nil, err
		}
	}
	return r.op(shape, d, func() *mlx.Array { return compute(x.a.AsType(common), y.a.AsType(common)).AsType(d) }, x, y)
}

// isArithmetic reports whether booleans are numbers for an operator, as in Python.
func isArithmetic(op string) bool {
	return op == "+" || op == "-" || op == "**" || op == "//" || op == "%"
}

// common returns the dtype in which an operator computes.
func (r *run) common(op string, x, y *tensor) (mlx.Dtype, error) {
	common := promote(x.dtype(), y.dtype())
	if op == "/" {
		common = promoteFloat(x.dtype(), y.dtype())
	}
	if common == mlx.Bool && isArithmetic(op) {
		common = mlx.Int32
	}
	if common.IsFloat() || y.a.Size() == 0 {
		return common, nil
	}
	switch op {
	case "//", "%": // dividing whole numbers by zero would end the process
		nonzero, err := r.truthOf(y, true)
		if err == nil && !bool(nonzero) {
			err = fmt.Errorf("tensor %s tensor: division of whole numbers by zero", op)
		}
		return common, err
	case "**":
		least, err := y.statistic("min")
		if n, ok := least.(starlark.Int); ok && n.Sign() < 0 {
			common = mlx.Float32
		}
		return common, err
	}
	return common, nil
}

// divideWhole returns x // y or x % y, rounded down, for whole numbers. y must not contain 0. MLX
// rounds towards zero, and dividing the smallest number by -1 would end the process.
func divideWhole(op string, x, y *mlx.Array) *mlx.Array {
	number := func(n float64) *mlx.Array { return mlx.Scalar(n, x.Dtype()) }
	signed := x.Dtype() >= mlx.Int8 && x.Dtype() <= mlx.Int64
	divisor := y
	if signed {
		divisor = mlx.Where(y.Equal(number(-1)), number(1), y)
	}
	quotient := x.FloorDivide(divisor)
	rest := x.Sub(quotient.Mul(divisor))
	if signed {
		zero := number(0)
		down := rest.Equal(zero).Not().And(rest.Less(zero).Equal(divisor.Less(zero)).Not())
		quotient = mlx.Where(down, quotient.Sub(number(1)), quotient)
		rest = mlx.Where(down, rest.Add(divisor), rest)
		quotient = mlx.Where(y.Equal(number(-1)), quotient.Neg(), quotient)
	}
	if op == "%" {
		return rest
	}
	return quotient
}

// broadcast returns the shape of an operation of two tensors.
func broadcast(op string, x, y []int) ([]int, error) {
	n := max(len(x), len(y))
	at := func(shape []int, i int) int {
		if i -= n - len(shape); i < 0 {
			return 1
		}
		return shape[i]
	}
	out := make([]int, n)
	for i := range out {
		a, b := at(x, i), at(y, i)
		switch {
		case a == b || b == 1:
			out[i] = a
		case a == 1:
			out[i] = b
		default:
			return nil, fmt.Errorf("tensor %s tensor: cannot broadcast shapes %s and %s", op, shapeText(x), shapeText(y))
		}
	}
	return out, nil
}

// in_ returns x in y, or x not in y.
func (r *run) in_(op string, x, y starlark.Value) (v starlark.Value, err error) {
	if g, ok := y.(*group); ok {
		key, _ := starlark.AsString(x)
		found := false
		for _, k := range g.keys() {
			found = found || k == key
		}
		return starlark.Bool(found == (op == "in")), nil
	}
	if _, ok := y.(*tensor); ok {
		return nil, errors.New("in: a tensor has no elements to find (use (t == x).any())")
	}
	if _, err := weigh(x); err != nil {
		return nil, err
	}
	switch y.(type) {
	case *starlark.List, starlark.Tuple: // compared one by one
		if _, err := weigh(y); err != nil {
			return nil, err
		}
	}
	return starlark.Binary(tokens[op], x, y)
}

// order compares two values that are not tensors. Comparisons with NaN are false, as in Python;
// Starlark orders NaN after all numbers.
func (r *run) order(op syntax.Token, x, y starlark.Value) (starlark.Value, error) {
	for _, v := range []starlark.Value{x, y} {
		if f, ok := v.(starlark.Float); ok && math.IsNaN(float64(f)) {
			return starlark.Bool(op == syntax.NEQ), nil
		}
	}
	if _, err := weigh(x, y); err != nil {
		return nil, err
	}
	if hasNone := x == starlark.None || y == starlark.None; hasNone && op != syntax.EQL && op != syntax.NEQ {
		return nil, fmt.Errorf("%s %v %s: None is neither less nor greater "+
			"(outside of the denoising loop, sigma and timestep have no value)", brief(x), op, brief(y))
	}
	ok, err := starlark.Compare(op, x, y)
	return starlark.Bool(ok), err
}

// power returns x ** y.
func (r *run) power(x, y starlark.Value) (starlark.Value, error) {
	if n, ok := y.(starlark.Int); ok && n.Sign() >= 0 {
		if x, ok := x.(starlark.Int); ok {
			return power(x, n)
		}
	}
	a, isA := starlark.AsFloat(x)
	b, isB := starlark.AsFloat(y)
	if !isA || !isB {
		return nil, fmt.Errorf("unknown binary op: %s ** %s", x.Type(), y.Type())
	}
	return starlark.Float(math.Pow(a, b)), nil
}

// plain returns the result of an arithmetic operator of Starlark, after its size was checked.
func (r *run) plain(op syntax.Token, x, y starlark.Value) (starlark.Value, error) {
	if s, ok := x.(starlark.String); ok && op == syntax.PERCENT {
		return r.interpolate(string(s), y)
	}
	var err error
	switch op {
	case syntax.STAR:
		err = r.checkProduct(x, y)
	case syntax.PLUS:
		err = r.checkSum(x, y)
	case syntax.LTLT:
		if n, ok := y.(starlark.Int); ok {
			if x, ok := x.(starlark.Int); ok {
				by, small := n.Int64()
				if !small || by > maxBits {
					by = maxBits
				}
				err = checkInt(bitLen(x) + int(max(by, 0)))
			}
		}
	case syntax.PIPE, syntax.AMP, syntax.CIRCUMFLEX, syntax.MINUS:
		if n := starlark.Len(x); n > 0 { // of sets and dicts, whose keys are hashed
			if _, err = weigh(x, y); err == nil {
				err = r.checkCount(n+max(0, starlark.Len(y)), 100)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	v, err := starlark.Binary(op, x, y)
	if err == nil {
		err = checkTuple(v)
	}
	return v, err
}

func (r *run) checkProduct(x, y starlark.Value) error {
	a, isA := x.(starlark.Int)
	b, isB := y.(starlark.Int)
	if isA && isB {
		return checkInt(max(a.BigInt().BitLen()+b.BigInt().BitLen(), 1))
	}
	n, sequence := a, y
	if isB {
		n, sequence = b, x
	} else if !isA {
		return nil
	}
	length := starlark.Len(sequence)
	times, ok := n.Int64()
	if length <= 0 || ok && times <= 0 {
		return nil
	}
	if !ok || times > int64(maxText) {
		times = int64(maxText) + 1
	}
	return r.checkLength(sequence, length*int(times))
}

// checkLength checks the length of a string or list that is made of x.
func (r *run) checkLength(x starlark.Value, n int) error {
	switch x.(type) {
	case starlark.String, starlark.Bytes:
		return r.checkText(n)
	}
	return r.checkCount(n, 16)
}

// checkText refuses long strings.
func (g *guard) checkText(n int) error {
	if n > maxText {
		return fmt.Errorf("a string of %d bytes: at most %d are possible", n, int(maxText))
	}
	return g.reserve(n)
}

func (r *run) checkSum(x, y starlark.Value) error {
	a, b := starlark.Len(x), starlark.Len(y)
	if a < 0 || b < 0 {
		if n, ok := x.(starlark.Int); ok {
			return checkInt(n.BigInt().BitLen())
		}
		return nil
	}
	return r.checkLength(x, a+b)
}

// augment returns the value of x after x op= y.
func (r *run) augment(op string, x, y starlark.Value) (starlark.Value, error) {
	if d, ok := x.(*starlark.Dict); ok && op == "|" {
		if other, ok := y.(*starlark.Dict); ok {
			return d, r.update(d, other)
		}
	}
	list, ok := x.(*starlark.List)
	if _, iterable := y.(starlark.Iterable); !ok || op != "+" || !iterable {
		return r.operator(op, x, y)
	}
	return list, r.extend(list, y)
}

// update adds the entries of a dict to another one, as |= does.
func (r *run) update(d, other *starlark.Dict) error {
	if err := r.checkHashed(starlark.Tuple{d, other}); err != nil {
		return err
	}
	for k, v := range other.Entries() {
		if err := d.SetKey(k, v); err != nil {
			return err
		}
	}
	return nil
}

// extend appends the elements of y to a list, as Starlark's += and extend do.
func (r *run) extend(list *starlark.List, y starlark.Value) error {
	if err := r.checkCount(list.Len()+count(y), 16); err != nil {
		return err
	}
	f, err := list.Attr("extend")
	if err != nil {
		return err
	}
	_, err = starlark.Call(r.thread, f, starlark.Tuple{y}, nil)
	return err
}

// setItem sets x[k] to x[k] op y.
func (r *run) setItem(op string, x, k, y starlark.Value) error {
	var old starlark.Value
	set := func(v starlark.Value) error { return fmt.Errorf("%s does not support item assignment", x.Type()) }
	switch x := x.(type) {
	case *starlark.List:
		i, err := starlark.AsInt32(k)
		if err != nil {
			return fmt.Errorf("list index: %w", err)
		}
		if i < 0 {
			i += x.Len()
		}
		if i < 0 || i >= x.Len() {
			return fmt.Errorf("list index %s out of range [%d:%d]", brief(k), -x.Len(), x.Len()-1)
		}
		old, set = x.Index(i), func(v starlark.Value) error { return x.SetIndex(i, v) }
	case *starlark.Dict:
		v, found, err := x.Get(k)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("key %s not in dict", brief(k))
		}
		old, set = v, func(v starlark.Value) error { return x.SetKey(k, v) }
	default:
		return set(nil)
	}
	v, err := r.augment(op, old, y)
	if err != nil {
		return err
	}
	return set(v)
}
