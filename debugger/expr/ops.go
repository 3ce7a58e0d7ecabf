package expr

import (
	"errors"
	"fmt"
	"math"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/gomflux/gomflux/mlx"
)

// A left is the left operand of an operator that Starlark does not ask its operands about. The
// rewritten source has x | y.
type left struct {
	starlark.Value
	op syntax.Token
	r  *run
}

func (l left) Binary(_ syntax.Token, y starlark.Value, _ starlark.Side) (starlark.Value, error) {
	x := l.Value
	t, isTensor := y.(*tensor)
	switch l.op {
	case syntax.IN, syntax.NOT_IN:
		if isTensor {
			return nil, errors.New("in: a tensor has no elements to find (use (t == x).any())")
		}
		return starlark.Binary(l.op, x, y)
	case syntax.PERCENT:
		if s, ok := x.(starlark.String); ok {
			return l.r.try(func() starlark.Value { return interpolate(string(s), y) })
		}
		return starlark.Binary(l.op, x, y)
	}
	if l.op == syntax.EQL || l.op == syntax.NEQ {
		if x == starlark.None || y == starlark.None {
			return starlark.Bool((x == y) == (l.op == syntax.EQL)), nil
		}
	}
	if t, ok := x.(*tensor); ok {
		return t.Binary(l.op, y, starlark.Left)
	}
	if isTensor {
		return t.Binary(l.op, x, starlark.Right)
	}
	for _, v := range []starlark.Value{x, y} { // Starlark orders NaN after all numbers
		if f, ok := v.(starlark.Float); ok && math.IsNaN(float64(f)) {
			return starlark.Bool(l.op == syntax.NEQ), nil
		}
	}
	if hasNone := x == starlark.None || y == starlark.None; hasNone && l.op != syntax.EQL && l.op != syntax.NEQ {
		return nil, fmt.Errorf("%s %v %s: None is neither less nor greater "+
			"(outside of the denoising loop, sigma and timestep have no value)", brief(x), l.op, brief(y))
	}
	ok, err := starlark.Compare(l.op, x, y)
	return starlark.Bool(ok), err
}

// maxBits is the number of bits of a whole number x ** y.
const maxBits = 1 << 17

// power returns x ** y.
func power(x, y starlark.Value) starlark.Value {
	if t, ok := x.(*tensor); ok {
		return t.binary(syntax.STARSTAR, x, y)
	}
	if t, ok := y.(*tensor); ok {
		return t.binary(syntax.STARSTAR, x, y)
	}
	n, isInt := x.(starlark.Int)
	if by, ok := y.(starlark.Int); ok && isInt && by.Sign() >= 0 {
		base, to := n.BigInt(), by.BigInt()
		if bits := base.BitLen(); bits > 1 && (!to.IsInt64() || to.Int64() > int64(maxBits/bits)) {
			fail("a whole number of more than %d bits", maxBits)
		}
		return starlark.MakeBigInt(base.Exp(base, to, nil))
	}
	a, isA := starlark.AsFloat(x)
	b, isB := starlark.AsFloat(y)
	if !isA || !isB {
		fail("unknown binary op: %s ** %s", x.Type(), y.Type())
	}
	return starlark.Float(math.Pow(a, b))
}

// Binary returns t op y, or y op t.
func (t *tensor) Binary(op syntax.Token, y starlark.Value, side starlark.Side) (starlark.Value, error) {
	return t.in.running.try(func() starlark.Value {
		if side == starlark.Right {
			return t.binary(op, y, t)
		}
		return t.binary(op, t, y)
	})
}

// like returns a number as an array that an operation with t can use.
func (t *tensor) like(v starlark.Value, op syntax.Token) *mlx.Array {
	d := t.a.Dtype()
	var f float64
	switch v := v.(type) {
	case *tensor:
		return v.a
	case starlark.Bool:
		if d = mlx.Bool; bool(v) {
			f = 1
		}
	case starlark.Int:
		n, ok := v.Int64()
		if !ok {
			fail("tensor %s a whole number of more than 64 bits", op)
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
		hint := "expected a tensor or a number"
		if op == syntax.EQL || op == syntax.NEQ {
			hint = "a tensor is never that"
		}
		fail("tensor %s %s: %s", op, kindOf(v), hint)
	}
	return mlx.Scalar(f, d).Reshape()
}

func swapped(f func(x, y *mlx.Array) *mlx.Array) func(x, y *mlx.Array) *mlx.Array {
	return func(x, y *mlx.Array) *mlx.Array { return f(y, x) }
}

var arrayOps = map[syntax.Token]func(x, y *mlx.Array) *mlx.Array{
	syntax.PLUS: (*mlx.Array).Add, syntax.MINUS: (*mlx.Array).Sub, syntax.STAR: (*mlx.Array).Mul, syntax.SLASH: (*mlx.Array).Div,
	syntax.SLASHSLASH: (*mlx.Array).FloorDivide, syntax.PERCENT: (*mlx.Array).Remainder, syntax.STARSTAR: (*mlx.Array).Power,
	syntax.EQL: (*mlx.Array).Equal, syntax.NEQ: func(x, y *mlx.Array) *mlx.Array { return x.Equal(y).Not() },
	syntax.LT: (*mlx.Array).Less, syntax.GT: swapped((*mlx.Array).Less),
	syntax.GE: (*mlx.Array).GreaterEqual, syntax.LE: swapped((*mlx.Array).GreaterEqual),
	syntax.AMP: (*mlx.Array).And, syntax.PIPE: (*mlx.Array).Or,
}

// binary returns v op u, of which one is t, broadcast.
func (t *tensor) binary(op syntax.Token, v, u starlark.Value) *tensor {
	compute, ok := arrayOps[op]
	if !ok {
		fail("tensors have no operator %s", op)
	}
	return t.in.running.op(func() *mlx.Array {
		x, y := t.like(v, op), t.like(u, op)
		if dx, dy := x.Dtype(), y.Dtype(); (op == syntax.AMP || op == syntax.PIPE) && (dx != mlx.Bool || dy != mlx.Bool) {
			fail("tensor %s tensor: expected tensors of dtype bool, found %v and %v", op, dx, dy)
		}
		a, b := x.Shape(), y.Shape()
		for i := 1; i <= min(len(a), len(b)); i++ {
			if m, n := a[len(a)-i], b[len(b)-i]; m != n && m != 1 && n != 1 {
				fail("tensor %s tensor: cannot broadcast shapes %s and %s", op, shapeText(a), shapeText(b))
			}
		}
		switch op {
		case syntax.PLUS, syntax.MINUS, syntax.SLASHSLASH, syntax.PERCENT, syntax.STARSTAR: // booleans are numbers, as in Python
			d := x.Add(y).Dtype() // to which MLX promotes both
			if d == mlx.Bool {
				d = mlx.Int32
			}
			if op == syntax.STARSTAR && !d.IsFloat() && y.Size() > 0 && !y.GreaterEqual(mlx.Scalar(0, y.Dtype())).All() {
				d = mlx.Float32
			}
			x, y = x.AsType(d), y.AsType(d)
			if (op == syntax.SLASHSLASH || op == syntax.PERCENT) && !d.IsFloat() {
				return divideWhole(op, x, y)
			}
		}
		return compute(x, y)
	})
}

// divideWhole returns x // y or x % y, rounded down, for whole numbers. MLX rounds towards zero,
// and dividing by zero, or the smallest number by -1, would end the process.
func divideWhole(op syntax.Token, x, y *mlx.Array) *mlx.Array {
	number := func(n float64) *mlx.Array { return mlx.Scalar(n, x.Dtype()) }
	if y.Size() > 0 && !y.Equal(number(0)).Not().All() {
		fail("tensor %s tensor: division of whole numbers by zero", op)
	}
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
	if op == syntax.PERCENT {
		return rest
	}
	return quotient
}
