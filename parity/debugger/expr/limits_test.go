package expr

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// endless are expressions that would take too long or too much memory, with parts of their errors.
var endless = [][2]string{
	{"while True:\n  pass", "line 1: the expression takes"},
	{"[0] * (1 << 29)", "at most 10000000"},
	{"(0,) * 10**9", "at most 10000000"},
	{"list(range(10**12))", "at most 10000000"},
	{"range(10**18)", "at most 10000000"},
	{`"a" * 10**12`, "a string of"},
	{`"aa".replace("", "x" * 10**7)`, "a string of"},
	{`("x" * 10**6).join(["y"] * 10**5)`, "a string of"},
	{"x = 'ab'\nwhile True:\n  x = x + x", "line 3: a string of"},
	{"x = 'ab'\nwhile True:\n  x += x", "a string of"},
	{"x = [1]\nwhile True:\n  x += x", "at most 10000000"},
	{"x = [1]\nwhile True:\n  x.extend(x)", "at most 10000000"},
	{"x = [1]\nfor i in range(40):\n  x = x + x", "at most 10000000"},
	{`("é" * 10**6).strip("x" * 10**6 + "é")`, "characters to remove"},
	{`("," * 15000000).split(",")`, "at most 10000000"},
	{"10 ** 10 ** 8", "a whole number of"},
	{"1 << 10 ** 9", "a whole number of"},
	{"x = 3\nwhile True:\n  x = x * x", "a whole number of"},
	{"x = 3\nwhile True:\n  x *= x", "a whole number of"},
	{"x = 3\nwhile True:\n  x = x << 500", "a whole number of"},
	{`int("9" * 10**7)`, "a whole number of"},
	{`"%s" % ("x" * 10**7) + "%s" % ("x" * 10**7)`, "a string of"},
	{`("%s" * 100) % (("x" * 10**6,) * 100)`, "more than"},
	{`"{0}{0}{0}{0}".format("x" * 10**7)`, "a string of"},
	{`"%999999d" % 1`, "at most 200"},
	{"sorted(range(10**7))", "sorted: 10000000 values"},
	{"set(range(10**7))", "at most 1000000"},
	{"x = [1]\nfor i in range(60):\n  x = [x, x]\nstr(x)", "longer than"},
	{"x = []\nfor i in range(60):\n  x = [x]\n  x = [x, x]\nx", "nested more than"},
	{"x = [1]\nfor i in range(60):\n  x = [x, x]\nx == [x]", "values at once"},
	{"x = (1,)\nfor i in range(60):\n  x = (x, x)\n{x: 1}", "a tuple with more than"},
	{"x = (1,)\nfor i in range(60):\n  x = tuple([x, x])", "a tuple with more than"},
	{"x = (1,)\nfor i in range(60):\n  x = x + (x,)", "a tuple with more than"},
	{"x = (1,)\nfor i in range(60):\n  x = zip([x], [x])[0]", "a tuple with more than"},
	{"x = (1,)\nfor i in range(60):\n  x = {x: x}.items()[0]", "a tuple with more than"},
	{"f = lambda *a: a\nx = (1,)\nfor i in range(60):\n  x = f(x, x)", "a tuple with more than"},
	{"def f(*a):\n  return a\nx = (1,)\nfor i in range(60):\n  x = f(x, x)", "a tuple with more than"},
	{"x = (1,)\nwhile True:\n  x = (x,)", "nested more than"},
	{"x = (1,)\nwhile True:\n  x = list(enumerate([x]))[0]", "nested more than"},
	{"x = []\nfor i in range(10**5):\n  x = [x]\nrepr(x)", "nested more than"},
	{"x = []\nx.append(x)\nx", "nested more than"},
	{"x = [[0] * 10**6 for i in range(10**6)]", "the expression"},
	{"x = ['a' * 10**6 + str(i) for i in range(10**6)]", "the expression"},
	{"x = {}\nfor i in range(10**5):\n  x[i] = list(range(10**5))", "the expression"},
	{"zip(*[range(10**6)] * 100)", "at most"},
	{"enumerate(range(10**7))", "at most"},
	{"print('x' * 10**7)", "more than 1.0 MB"},
	{"while True:\n  print('xxxxxxxxxxxxxxxxxxx')", "print: more than 1.0 MB"},
	{"set([(1, 2, 3)] * 9000000)", "at most 1000000"},
	{"x = (1,) * 5000\nset([x] * 10**5)", "values at once"},
	{"'x' * 10**7 in ['x' * 10**7] * 10**5", "at once"},
	{"'a b ' * 4000000 + ''", "the result"},
	{"list(range(20000))", "the result: more than 10000 values"},
	{"fail('x' * 10**7)", "more than 1.0 MB"},
	{"','.join(['x' * 10**6] * 10**4)", "at once"},
	{"x = [1]\nwhile True:\n  x = sorted(x + x)", "sorted: "},
	{"max([[x] for x in range(10)], key = lambda x: [0] * 10**9)", "at most"},
	// tensors
	{"t = out\nwhile True:\n  t = t * 1.0", "the expression takes"},
	{"t = out.reshape(6, 1)\nu = t + t.reshape(1, 6)\n" +
		"for i in range(12):\n  u = u.flatten()\n  u = u.reshape(u.size, 1) + u.reshape(1, u.size)", "is larger than 1.00 GB"},
	{"t = big\nx = []\nwhile True:\n  x.append(t * 2)", "the expression"},
	{"t = big\nwhile True:\n  t = (t * 2).transpose()", "takes longer than"},
	{"big.astype('float32') + big.reshape(1, 4096, 4096).astype('int64') * 2 ** 40", ""},
	{"[big[i % 4096].mean() for i in range(10**7)]", "takes longer than"},
	{"list(big.reshape(-1))", "at most"},
	{"while True:\n  load('saved')", "the expression takes"},
	{"t = big\nfor i in range(5000):\n  t = t * 1.01\nt.sum()", "takes longer than"},
	{"x = 0\nwhile True:\n  x = x + big.mean(axis=0)", "takes longer than"},
	{"while True:\n  (big > 0).any()", "takes longer than"},
}

// TestLimits evaluates expressions that would never end or take all memory.
func TestLimits(t *testing.T) {
	const most = 2 << 30 // bytes by which an expression may increase the heap
	set(t, &maxTime, 400*time.Millisecond)
	for _, c := range endless {
		in := newInterpreter()
		stop, peak := make(chan struct{}), make(chan int)
		runtime.GC()
		base := heap().all
		go func() {
			top := 0
			for {
				select {
				case <-stop:
					peak <- top
					return
				case <-time.After(2 * time.Millisecond):
					top = max(top, heap().all)
				}
			}
		}()
		mlxtest.Do(t, mlx.ResetPeakMemory)
		start := time.Now()
		var r Result
		var err error
		mlxtest.Do(t, func() {
			env := testEnv()
			if strings.Contains(c[0], "big") {
				if _, err := in.Eval(context.Background(), bigEnv(), "big = out"); err != nil {
					t.Fatal(err)
				}
			}
			r, err = in.Eval(context.Background(), env, c[0])
		})
		took := time.Since(start)
		close(stop)
		top, used := <-peak, 0
		mlxtest.Do(t, func() { used = mlx.PeakMemory() })
		switch {
		case err == nil && c[1] != "":
			t.Errorf("%s: found %.100s, expected an error", c[0], r.Text())
		case err != nil && !strings.Contains(err.Error(), c[1]):
			// on a slow machine, values may take too long to make
			if strings.Contains(c[1], "tuple") || !strings.Contains(err.Error(), "the expression takes longer than") {
				t.Errorf("%s: found error %q, expected it to contain %q", c[0], err, c[1])
			}
		}
		if took > maxTime+3*time.Second {
			t.Errorf("%s: took %v", c[0], took)
		}
		if top > base+most {
			t.Errorf("%s: the heap grew by %s", c[0], size(top-base))
		}
		if testing.Verbose() {
			t.Logf("%q: %v, heap %s, MLX %s: %v", c[0], took.Round(time.Millisecond), size(max(0, top-base)), size(used), err)
		}
		if took > 100*time.Millisecond {
			mlxtest.Do(t, func() { in.Close(); mlx.ClearCache() })
		}
	}
}

// set changes a limit until the test ends.
func set[T any](t testing.TB, limit *T, to T) {
	before := *limit
	*limit = to
	t.Cleanup(func() { *limit = before })
}

// bigEnv returns a stop with a tensor of 67 MB.
func bigEnv() Env { return Env{Out: mlx.Full(1, mlx.Float32, 4096, 4096)} }

// TestNesting parses source whose nesting could exhaust the stack.
func TestNesting(t *testing.T) {
	for _, c := range []struct{ open, middle, end string }{
		{"(", "1", ")"}, {"[", "1", "]"}, {"-", "1", ""}, {"not ", "1", ""}, {"lambda: ", "1", ""}, {"1 if 1 else ", "1", ""},
		{"1 + ", "1", ""}, {"1 ** ", "1", ""}, {"", "1", " ** 1"}, {"1 and ", "1", ""},
		{"f(", "1", ")"}, {"", "f", "()"}, {"", "f", "[0]"}, {"", "f", ".x"},
		{"{1: ", "1", "}"}, {"[x for x in ", "1", "]"}, {"-2 ** ", "1", ""},
	} {
		n := (maxSource - 10) / (len(c.open) + len(c.end))
		source := strings.Repeat(c.open, n) + c.middle + strings.Repeat(c.end, n)
		start := time.Now()
		if _, err := eval(t, newInterpreter(), source); err != nil && len(err.Error()) > 500 {
			t.Errorf("%q: error %v", c.open, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%q: took %v", c.open+c.end, took)
		}
	}
	indent := ""
	var lines []string
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("%sif %d:", indent, i+1))
		indent += " "
	}
	if _, err := eval(t, newInterpreter(), strings.Join(lines, "\n")+"\n"+indent+"1"); err != nil {
		t.Error(err)
	}
	if _, err := eval(t, newInterpreter(), strings.Repeat("1\n", maxSource)); err == nil {
		t.Error("long source: expected an error")
	}
}

func TestSteps(t *testing.T) {
	set(t, &maxSteps, 10000)
	in := newInterpreter()
	_, err := eval(t, in, "x = 0\nwhile True:\n  x += 1")
	if err == nil || !strings.Contains(err.Error(), "the expression takes more than 10000 steps") {
		t.Errorf("found %v, expected an error about the number of steps", err)
	}
	if r, err := eval(t, in, "x > 100"); err != nil || r.Text() != "True" {
		t.Errorf("found %v, %v after the steps", r, err)
	}
}

// TestTemporary limits the tensors that an evaluation holds, and frees those that it does not.
func TestTemporary(t *testing.T) {
	set(t, &maxTemporary, 300_000_000)
	big := func(source string) (used int, err error) {
		mlxtest.Do(t, func() {
			before := mlx.ActiveMemory()
			mlx.ResetPeakMemory()
			in := New()
			_, err = in.Eval(context.Background(), bigEnv(), source)
			used = mlx.PeakMemory() - before
			in.Close()
			if after := mlx.ActiveMemory(); after > before+70_000_000 {
				t.Errorf("%s: %s are in memory", source, size(after-before))
			}
		})
		return used, err
	}
	if _, err := big("x = [out * i for i in range(10)]"); err == nil || !strings.Contains(err.Error(), "tensors take more than 300.0 MB") {
		t.Errorf("found %v, expected an error about the size of tensors", err)
	}
	used, err := big("t = out\nfor i in range(30):\n  t = t * 1.01\nt[0, 0]")
	if err != nil || used > 900_000_000 {
		t.Errorf("%s in use, error %v", size(used), err)
	}
}

// TestContext ends an expression when its context is done.
func TestContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	mlxtest.Do(t, func() {
		_, err := New().Eval(ctx, testEnv(), "for i in range(10**7):\n  [j for j in range(100)]")
		if err == nil || !strings.Contains(err.Error(), "deadline") {
			t.Errorf("found %v, expected the context's error", err)
		}
	})
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}
