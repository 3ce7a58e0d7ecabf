package expr

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// testEnv returns a stop with small tensors.
func testEnv() Env {
	sigma, timestep := 0.75, 950.0
	out := mlx.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	return Env{
		Out:    out,
		Inputs: []hooks.Arg{{Key: "0", Array: out.Times(10)}, {Key: "temb", Array: mlx.FromFloat32([]float32{-1, 0.5}, 1, 2)}},
		Inner: []hooks.Arg{{Key: "q", Array: mlx.FromFloat32([]float32{1, nan, -2}, 3)},
			{Key: "k", Array: mlx.FromFloat32([]float32{1, inf, -inf}, 3)}},
		Outputs: []hooks.Arg{{Key: "1", Array: mlx.FromInt32([]int32{7, 8, 9}, 3)}},
		Parameters: func() []hooks.Parameter {
			return []hooks.Parameter{
				{Path: "to_q.weight", Shape: []int{2, 2}, Dtype: mlx.BFloat16, Array: func() *mlx.Array {
					return mlx.FromFloat32([]float32{1, 2, 3, 4}, 2, 2).AsType(mlx.BFloat16)
				}},
				{Path: "to_q.bias", Shape: []int{2}, Dtype: mlx.Float32},
			}
		},
		Load: func(name string) (*mlx.Array, error) {
			if name != "saved" {
				return nil, errors.New("tensor " + name + " is not saved")
			}
			return mlx.FromFloat32([]float32{1, 1}, 2), nil
		},
		Step: 2, Call: 1, Hit: 3, Negative: true, Sigma: &sigma, Timestep: &timestep,
	}
}

// eval evaluates source at the stop of testEnv.
func eval(t testing.TB, in *Interpreter, source string) (r Result, err error) {
	t.Helper()
	mlxtest.Do(t, func() { r, err = in.Eval(context.Background(), testEnv(), source) })
	return r, err
}

func newInterpreter() *Interpreter {
	in := New()
	return in
}

// values are expressions with the texts of their values.
var values = [][2]string{
	// numbers, as Python writes them
	{"1 + 2", "3"},
	{"7 / 2", "3.5"},
	{"7 // 2", "3"},
	{"1e20", "1e+20"},
	{"0.1", "0.1"},
	{"1e-5", "1e-05"},
	{"100.0", "100.0"},
	{"2 ** 10", "1024"},
	{"-2 ** 2", "-4"},
	{"2 ** -1", "0.5"},
	{"2 ** 3 ** 2", "512"},
	{"2 * 3 ** 2 * 2", "36"},
	{"(-2) ** 2", "4"},
	{"-1 ** 10**12 + 0 ** 0", "0"},
	{"7 // 2 ** 1 // 3", "1"},
	{"10 - 2 ** 2", "6"},
	{"pow(2, 5)", "32"},
	{"2**-2**2", "0.0625"},
	{"(2 # c\n ** 3)\n", "8"},
	{"1e-3 ** 2 * 1e6", "1.0"},
	{"'a**b' + \"\"\"c\n** d\"\"\"", `"a**bc\n** d"`},
	{"x = [2]; x[0] **= 3 # c\nx", "[8]"},
	{"'%s' % out + ' %.1f' % out[0, 0]", `"tensor(float32, (2, 3)) 1.0"`},
	{"[x ** 2 for x in range(4)]", "[0, 1, 4, 9]"},
	{"(lambda *a, **k: (a, k))(1, *[2], **{'b': 3})", `((1, 2), {"b": 3})`},
	{"math.sqrt(16)", "4.0"},
	{"round(2.567, 1)", "2.6"},
	{"round(2.5)", "2"},
	{"sum([1, 2, 3])", "6"},
	{"abs(-3)", "3"},
	{"float('nan') > 3", "False"},
	{"float('nan') == float('nan')", "False"},
	{"float('nan') != 1", "True"},
	{"float('inf')", "inf"},
	// text
	{`"a" + "b" * 3`, `"abbb"`},
	{`"%.3f|%5d|%-4s|%d%%" % (2.0 / 3, 42, "x", 7)`, `"0.667|   42|x   |7%"`},
	{`"%(a)s" % {"a": 1}`, `"1"`},
	{`",".join(["a", "b"])`, `"a,b"`},
	{`"a-b".replace("-", "+")`, `"a+b"`},
	{`"{} {x}".format(1, x=2)`, `"1 2"`},
	{`"%s" % out.mean()`, `"3.5"`},
	{`"**" + '\'**\'' # ** `, `"**'**'"`},
	{"str(0.1) + repr('x')", `"0.1\"x\""`},
	{`"%g" % 0.5`, `"0.5"`},
	// scalars of the stop
	{"step", "2"},
	{"(call, hit, negative)", "(1, 3, True)"},
	{"timestep > 900", "True"},
	{"sigma", "0.75"},
	// tensors
	{"out.shape", "(2, 3)"},
	{"out.dtype", `"float32"`},
	{"(out.ndim, out.size, out.numel(), len(out))", "(2, 6, 6, 2)"},
	{"(out.mean(), out.std())", "(3.5, 1.7078252)"},
	{"(out.min(), out.max(), out.sum())", "(1.0, 6.0, 21.0)"},
	{"min(out)", "1.0"},
	{"out.first(2)", "[1.0, 2.0]"},
	{"(out * 2 + 1).first(3)", "[3.0, 5.0, 7.0]"},
	{"(1 - out).first(3)", "[0.0, -1.0, -2.0]"},
	{"(out ** 2).first(3)", "[1.0, 4.0, 9.0]"},
	{"(-out).first(1)", "[-1.0]"},
	{"(2 / out).first(2)", "[2.0, 1.0]"},
	{"abs(-out).sum()", "21.0"},
	{"(out // 2).first(4)", "[0.0, 1.0, 1.0, 2.0]"},
	{"(out % 2).first(3)", "[1.0, 0.0, 1.0]"},
	{"out[0].first(9)", "[1.0, 2.0, 3.0]"},
	{"out[-1, 2].item()", "6.0"},
	{"out[1:].shape", "(1, 3)"},
	{"out[::-1].first(3)", "[4.0, 5.0, 6.0]"},
	{"(outs['1'] // 2).first(3)", "[3, 4, 4]"},
	{"(-outs['1'] // 2).first(3)", "[-4, -4, -5]"},
	{"(outs['1'] // -2).first(3)", "[-4, -4, -5]"},
	{"(-outs['1'] % 4).first(3)", "[1, 0, 3]"},
	{"(outs['1'] % -4).first(3)", "[-1, 0, -3]"},
	{"(outs['1'] // -1).first(3) + (outs['1'] % -1).first(1)", "[-7, -8, -9, 0]"},
	{"m = (outs['1'] * 0 + 1) * -2147483648\n((m // -1).first(1), (m % -1).first(1))", "([-2147483648], [0])"},
	{"(outs['1'].astype('uint8') // 2).first(1) + (outs['1'] ** 2).first(1)", "[3, 49]"},
	{"(outs['1'] ** -1).first(1)", "[0.14285715]"},
	{"(out // 0).first(1)", "[inf]"},
	{"((out > 3) + (out > 3)).sum()", "6"},
	{"d = {1: 2}\ne = d\nd |= {3: 4}\ne", "{1: 2, 3: 4}"},
	{"'xxaxx'.strip('x') + 'a b'.split()[1] + 'a,b'.split(',')[0]", `"aba"`},
	{"out[:, 1].first(2)", "[2.0, 5.0]"},
	{"out[0, 1:].first(2)", "[2.0, 3.0]"},
	{"out[..., -1].first(2)", "[3.0, 6.0]"},
	{"out[...].shape", "(2, 3)"},
	{"out[0:1, ::2].first(4)", "[1.0, 3.0]"},
	{"out[:, ::-1].first(3)", "[3.0, 2.0, 1.0]"},
	{"out[:, 2:0:-2].shape", "(2, 1)"},
	{"out[:, 5:1].shape", "(2, 0)"},
	{"out.reshape(1, 2, 3)[0, :, [0, 1][1]:][1, {'a': 0}['a'] : 1 ].first(1)", "[5.0]"},
	{"x = {1: [1, 2, 3]}\nx[1][1:], 'a[0, 1:2]', out[1, (lambda: 0)():1].item()", `([2, 3], "a[0, 1:2]", 4.0)`},
	{"(out.mean().item(), out.std().item())", "(3.5, 1.7078252)"},
	{"out.norm() ** 2 - 91 < 1e-4", "True"},
	{"out.astype('float16').float().dtype", `"float32"`},
	{"out.slice(1, 1, 3).first(4)", "[2.0, 3.0, 5.0, 6.0]"},
	{"out.slice(-1, -1).first(4)", "[3.0, 6.0]"},
	{"out.reshape(3, 2)[2].first(2)", "[5.0, 6.0]"},
	{"out.reshape(3, -1).shape", "(3, 2)"},
	{"out.transpose(1, 0).first(3)", "[1.0, 4.0, 2.0]"},
	{"out.transpose().shape", "(3, 2)"},
	{"out.mean(axis=0).first(3)", "[2.5, 3.5, 4.5]"},
	{"out.max(axis=-1).first(2)", "[3.0, 6.0]"},
	{"out.sum(axis=(0, 1)).item()", "21.0"},
	{"out.std(axis=1).first(1)", "[0.8164966]"},
	{"out.astype('bfloat16').dtype", `"bfloat16"`},
	{"(out.astype('bfloat16') * 0.5).dtype", `"bfloat16"`},
	{"(out > 3).dtype", `"bool"`},
	{"(out > 3).sum()", "3"},
	{"(3 < out).first(6)", "[False, False, False, True, True, True]"},
	{"(out == 2).first(3)", "[False, True, False]"},
	{"(out != 2).sum()", "5"},
	{"(out >= 3).sum() + (out <= 3).sum()", "7"},
	{"out.max() > 3", "True"},
	{"out.sum() == 21", "True"},
	{"(out > 0).all()", "True"},
	{"any(out > 6)", "False"},
	{"all(out > 0)", "True"},
	{"((out > 2) & (out < 5)).sum()", "2"},
	{"((out < 2) | (out > 5)).sum()", "2"},
	{"(~(out > 2)).sum()", "2"},
	{"float(out[0, 0]) + int(out[0, 1])", "3.0"},
	{"bool(out[0, 0] > 0)", "True"},
	{"out.argmax()", "5"},
	{"out.sqrt().first(1)", "[1.0]"},
	{"out.log().exp().sum() - 21 < 1e-5", "True"},
	{"[r.sum() for r in out]", "[6.0, 15.0]"},
	{"sum([r for r in out]).first(3)", "[5.0, 7.0, 9.0]"},
	{"list(out)", "[tensor(float32, (3,)), tensor(float32, (3,))]"},
	{"out.flatten().shape", "(6,)"},
	{"out == None", "False"},
	{"'yes' if out[0, 0] > 0 else 'no'", `"yes"`},
	{"not (out[0, 0] > 1)", "True"},
	{"out[0, 0] > 0 and 5", "5"},
	{"inp['0'].max()", "60.0"},
	{"inp.keys()", `["0", "temb"]`},
	{"'temb' in inp", "True"},
	{"'x' not in inp", "True"},
	{"[k for k in outs]", `["1"]`},
	{"outs['1'].sum()", "24"},
	{"outs['1'].max()", "9"},
	{"outs['1'].first(1)", "[7]"},
	{"(outs['1'] / 2).first(1)", "[3.5]"},
	{"(outs['1'] + 0.5).dtype", `"float32"`},
	{"inner['q'].max()", "nan"},
	{"inner['q'].isnan().sum()", "1"},
	{"inner['k'].max()", "inf"},
	{"inner['k'].min()", "-inf"},
	{"inner['k'].mean()", "nan"},
	{"inner['k'].isfinite().first(3)", "[True, False, False]"},
	{"inner['k'].slice(0, 0, 2).min()", "1.0"},
	{"inner['q'].max() > 0", "False"},
	{"w['to_q.weight'].sum()", "10.0"},
	{"len(w)", "2"},
	{"load('saved').sum()", "2.0"},
	{"out.reshape(6).slice(0, 0, 0).sum()", "0.0"},
	{"compare(out, out * 2).max", "6.0"},
	{"compare(out, out)", "difference(l2=0.0, max=0.0, max_ref=6.0, mean=0.0, cosine=1.0, at=0, count=6, finite=True)"},
	{"out", "tensor float32 (2, 3): min 1, max 6, mean 3.5, std 1.70783; first 1, 2, 3, 4, 5, 6"},
	{"(1, out)", "(1, tensor(float32, (2, 3)))"},
	{"[]", "[]"},
	{"{}", "{}"},
	{"(1,)", "(1,)"},
	{"set([1])", "set([1])"},
	{"None", ""},
	// statements
	{"x = 1\nx += 2\nx", "3"},
	{"x = [1]\nx += [2]\nx[0] += 5\nx", "[6, 2]"},
	{"d = {'a': 1}\nd['a'] *= 4\nd", `{"a": 4}`},
	{"x = 3\nx **= 2\nx", "9"},
	{"def f(n, *rest):\n  total = 0\n  for i in range(n):\n    total += i\n  return total, rest\nf(4, 5)", "(6, (5,))"},
	{"total = 0\nfor i, r in enumerate(out):\n  if r.max() > 3:\n    total += i + 1\ntotal", "2"},
	{"i = 0\nwhile i < 5:\n  i += 1\ni", "5"},
	{"if step == 2:\n  'two'\nelse:\n  'other'", `"two"`},
	{"a, (b, c) = 1, [2, 3]\n(c, b, a)", "(3, 2, 1)"},
	{"x = 5\nx", "5"},
	{"out.shape\ny = 1", "(2, 3)"},
	{"keep('z', out.sum()) + z", "42.0"},
	{"f = lambda x: x * k1\nk1 = 3\nf(2)", "6"},
	{"[i for i in [1, 2] if out[0, 0] > 0]", "[1, 2]"},
	{"def f():\n  def g():\n    return 1\n  return g\nf()()", "1"},
	{"x = {}\nx['a'] = out\nx['a'].max()", "6.0"},
	{"sum = 4\nsum", "4"},
}

func TestValues(t *testing.T) {
	for _, c := range values {
		in := newInterpreter()
		r, err := eval(t, in, c[0])
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
		} else if r.Text != c[1] {
			t.Errorf("%s: found %s, expected %s", c[0], r.Text, c[1])
		}
		if _, err := json.Marshal(r.Value); err != nil {
			t.Errorf("%s: JSON: %v", c[0], err)
		}
		mlxtest.Do(t, in.Close)
	}
}

// failures are expressions with parts of their errors.
var failures = [][]string{
	{"", "empty"},
	{"# nothing", "empty"},
	{"out.", "line 1, column 5: "},
	{"1 +", "line 1, column 4: got end of file, want primary expression"},
	{"x = 1\n  y = 2", "line 2"},
	{"ouut.mean()", "line 1, column 1: name ouut is not defined (similar: out"},
	{"def f():\n  return ut", "line 2, column 10: name ut"},
	{"want.mean()", "want: there is no tensor of the reference here"},
	{"def f():\n  return want\nf()", "line 2: want: "},
	{"print(zz)\nzz = 1", "line 1: name zz is used before it is assigned"},
	{"out.meen()", "line 1: ", "mean"},
	{"out = 3", "out belongs to the stop"},
	{"for step in [1]:\n  pass", "step belongs to the stop"},
	{"load('a', 'b')", "load: got 2 arguments"},
	{"load = 1", "cannot be assigned"},
	{"lload", "similar: load"},
	{"load('x')", "tensor x is not saved"},
	{"import os", "nothing to import"},
	{"out is 1", "== compares"},
	{"f'{out}'", "no f-strings"},
	{"open('x')", "name open is not defined"},
	{"inp['1']", "inp has no \"1\" (there are 0, temb)"},
	{"inp[0]", `inp["0"]`},
	{"w['to_q.wieght']", "there are to_q.weight, to_q.bias"},
	{"w['to_q.bias']", "not loaded"},
	{"out + inp['temb']", "cannot broadcast shapes (2, 3) and (1, 2)"},
	{"out[2]", "index 2 of axis 0"},
	{"out[0, 0, 0]", "3 indices"},
	{"out['a']", "whole number"},
	{"outs['1'] // 0", "division of whole numbers by zero"},
	{"1 % (outs['1'] - 8)", "division of whole numbers by zero"},
	{"out[0, 'a':]", "slice of axis 1"},
	{"out[0, ::0]", "step 0"},
	{"out[..., ...]", "more than one ... in an index"},
	{"out[0, 1:2:3:4]", "at most two colons"},
	{"out[0, 1:2] + nme", "line 1: name nme"},
	{"out[0:1, 0, 0]", "3 indices for a tensor with shape (2, 3)"},
	{"[1, 2][0, 1:]", "list index"},
	{"\n\n1 / 0", "line 3: "},
	{"out.reshape(4)", "reshape to (4,)"},
	{"out.transpose(0, 0)", "axis 0 twice"},
	{"out.mean(axis=2)", "axis 2"},
	{"out.astype('flot32')", "similar: float32"},
	{"out.item()", "no single element"},
	{"float(out)", "no single element"},
	{"if out > 3:\n  pass", "line 1: a tensor with shape (2, 3) is neither true nor false"},
	{"out > 3 and 1", "neither"},
	{"not (out > 3)", "neither"},
	{"bool(out)", "neither"},
	{"out + 'x'", "expected a tensor or a number"},
	{"out @ out", "line 1, column 5"},
	{"{out: 1}", "cannot be a key"},
	{"[out] == [out]", "compare the tensors"},
	{"out in [out, 1]", "compare the tensors"},
	{"1 in out", "any()"},
	{"~out", "dtype float32"},
	{"out & out", "dtype bool"},
	{"max(out, 3)", "t.max(axis=N)"},
	{"timestep2 = None\ntimestep2 > 3", "line 2: None > 3"},
	{"fail('no', 1)", "line 1: fail: no 1"},
	{"x = 1\ny = 2\nx / 0", "line 3: "},
	{"keep('out', 1)", "cannot be the name"},
	{"keep('a b', 1)", "cannot be the name"},
	{"def f():\n  return f()\nf()", "function f called recursively"},
	{"a = lambda: b()\nb = lambda: a()\na()", "recursively"},
	{"compare(out, inp['temb'])", "shape (2, 3) and (1, 2)"},
	{"$x", "line 1"},
	{"math.sqr(1)", "sqr"},
	{"'%d' % 'x'", "%d"},
	{"'%s %s' % 1", "not enough"},
	{"'%s' % (1, 2)", "too many"},
	{"out.shape[0] += 1", "item assignment"},
	{"out.y = 1", "can't assign to .y field of tensor"},
	{"out.first(-1)", "first(-1)"},
	{"inner['q'].slice(0, 0, 0).max()", "without elements"},
	{"range(1, 2, 0)", "step"},
	{"return 1", "return"},
	{"load('a', x='b')", "load"},
	{"f(", "line 1"},
	{"'abc", "line 1"},
	{"1 if", "line 1"},
}

func TestFailures(t *testing.T) {
	for _, c := range failures {
		in := newInterpreter()
		r, err := eval(t, in, c[0])
		if err == nil {
			t.Errorf("%s: found %s, expected an error with %q", c[0], r.Text, c[1:])
			continue
		}
		if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "$") && c[0][0] != '$' {
			t.Errorf("%s: error %q", c[0], err)
		}
		for _, part := range c[1:] {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: found error %q, expected it to contain %q", c[0], err, part)
			}
		}
	}
}
