package expr

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestKept uses tensors of an earlier job, whose own arrays are freed.
func TestKept(t *testing.T) {
	in := newInterpreter()
	for _, source := range []string{
		"a = out * 2\nb = out\nc = [out[1], {'k': (out + 1,)}, set()]\npart = out.slice(1, 0, 1)",
		"def f(y, z=out * 3):\n  return y + z + hidden\nhidden = out * 10",
		"def make():\n  inner2 = out * 4\n  return lambda: inner2\ng = make()",
		"m = (out * 5).max\nkeep('kept', out * 6).max()",
		"d = {}\nd['x'] = out * 7\nd['x'] *= 2",
	} {
		if _, err := eval(t, in, source); err != nil {
			t.Fatalf("%s: %v", source, err)
		}
	}
	runtime.GC()
	for source, want := range map[string]string{
		"a.sum()": "42.0", "b.sum()": "21.0", "c[0].sum()": "15.0", "c[1]['k'][0].sum()": "27.0", "f(1).sum()": "279.0",
		"g().sum()": "84.0", "m()": "30.0", "kept.sum()": "126.0", "d['x'].sum()": "294.0", "part.sum()": "5.0", "(a + out).sum()": "63.0",
	} {
		if r, err := eval(t, in, source); err != nil || r.Text != want {
			t.Errorf("%s: found %s, %v, expected %s", source, r.Text, err, want)
		}
	}
	mlxtest.Do(t, in.Close)
	if _, err := eval(t, in, "1"); err != nil || len(in.kept) != 0 {
		t.Errorf("after Close: %d tensors, %v", len(in.kept), err)
	}
}

// TestLatest evaluates functions that were defined at an earlier stop.
func TestLatest(t *testing.T) {
	in := newInterpreter()
	at := func(step int, source string) string {
		var text string
		mlxtest.Do(t, func() {
			env := Env{Out: mlx.Full(float64(step), mlx.Float32, 3), Step: step}
			r, err := in.Eval(context.Background(), env, source)
			if err != nil {
				t.Errorf("step %d: %s: %v", step, source, err)
			}
			text = r.Text
		})
		return text
	}
	at(1, "def f(): return (step, out.max(), x)\nx = 'a'")
	at(2, "x = 'b'")
	if found := at(3, "f()"); found != `(3, 3.0, "b")` {
		t.Errorf("found %s, expected the values of the latest stop", found)
	}
	at(3, "i = inp")
	if found := at(4, "len(i)"); found != "0" {
		t.Errorf("found %s", found)
	}
}

// TestFree frees the tensors of variables that are overwritten.
func TestFree(t *testing.T) {
	const bytes = 67_108_864 // of the tensor of bigEnv
	in := newInterpreter()
	var before int
	mlxtest.Do(t, func() { before = mlx.ActiveMemory() })
	for _, c := range []struct {
		source  string
		tensors int
	}{
		{"x = out", 1}, {"x = out * 2", 1}, {"y = [out + 1, {'x': x}]\nz = y", 2}, {"del2 = x[0]\nx = None", 2},
		{"def f(a=y.pop()):\n  return a", 2}, {"f, y, z = 0, 0, 0", 0}, {"x = out * 3\n1 // 0", 1}, {"out.max()", 1},
	} {
		mlxtest.Do(t, func() { in.Eval(context.Background(), bigEnv(), c.source) })
		mlxtest.Do(t, func() {
			if used := mlx.ActiveMemory() - before; used < c.tensors*bytes || used > c.tensors*bytes+1e6 {
				t.Errorf("%s: %d bytes are in memory, expected those of %d tensors", c.source, used, c.tensors)
			}
		})
	}
	mlxtest.Do(t, func() {
		in.Close()
		if used := mlx.ActiveMemory() - before; used > 1e6 {
			t.Errorf("%d bytes are in memory after Close", used)
		}
	})
}

// TestModelParameters checks that an expression does not free the arrays of the model.
func TestModelParameters(t *testing.T) {
	in := newInterpreter()
	mlxtest.Do(t, func() {
		env := testEnv()
		p := env.Parameters()[0]
		array := p.Array()
		p.Array = func() *mlx.Array { return array }
		env.Parameters = func() []hooks.Parameter { return []hooks.Parameter{p} }
		for range 3 {
			if _, err := in.Eval(context.Background(), env, "x = [out, inp['0'], inner['q']]\nx[0].sum()"); err != nil {
				t.Fatal(err)
			}
		}
		in.Close()
		mlxtest.Same(t, "out", env.Out.Floats(), []float32{1, 2, 3, 4, 5, 6})
		mlxtest.Same(t, "parameter", array.Floats(), []float32{1, 2, 3, 4})
	})
}

func TestConditions(t *testing.T) {
	in := newInterpreter()
	if _, err := eval(t, in, "limit = 3"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source, compile, holds string
		want                   bool
	}{
		{source: "timestep > 900", want: true},
		{source: "out.max() > limit and step == 2", want: true},
		{source: "(out > 100).any()"},
		{source: "keep('saved_out', out).max() > 100"},
		{source: "saved_out.max() == 6", want: true},
		{source: "out > 3", holds: "line 1: "},
		{source: "out", holds: "the condition is tensor(float32, (2, 3)), expected True or False"},
		{source: "out.max()", holds: "the condition is the float 6.0, expected True or False"},
		{source: "None", holds: "None"}, {source: "1", holds: "the int 1"}, {source: "[1]", holds: "a list"},
		{source: "wnat.max() > 1", compile: "similar: int, want"},
		{source: "want.max() > 1", holds: "no tensor of the reference"},
		{source: "x = 1", compile: "not a statement"}, {source: "1\n2", compile: "line 2: a condition is a single expression"},
		{source: "", compile: "empty"}, {source: "#", compile: "empty"}, {source: "step ==", compile: "line 1, column 8"},
		{source: "out.shap == 1", holds: "shape"},
	} {
		condition, err := in.Compile(c.source)
		if c.compile != "" || err != nil {
			if err == nil || c.compile == "" || !strings.Contains(err.Error(), c.compile) {
				t.Errorf("%s: found error %v, expected %q", c.source, err, c.compile)
			}
			continue
		}
		mlxtest.Do(t, func() {
			for range 2 {
				holds, err := condition.Holds(context.Background(), testEnv())
				switch {
				case c.holds == "" && (err != nil || holds != c.want):
					t.Errorf("%s: found %v, %v, expected %v", c.source, holds, err, c.want)
				case c.holds != "" && (err == nil || holds || !strings.Contains(err.Error(), c.holds)) && c.source != "out > 3":
					t.Errorf("%s: found error %v, expected %q", c.source, err, c.holds)
				case c.holds != "" && err == nil:
					t.Errorf("%s: found %v, expected an error", c.source, holds)
				}
			}
		})
	}
}

func TestOutput(t *testing.T) {
	r, err := eval(t, newInterpreter(), "print('mean', out.mean(), sep=': ')\nfor r in out:\n  print(r)\nNone")
	want := "mean: 3.5|tensor(float32, (3,))|tensor(float32, (3,))"
	if found := strings.Join(r.Output, "|"); err != nil || found != want || r.Text != "" || r.Value != nil {
		t.Errorf("found %q, %v, expected %q", found, err, want)
	}
}

// unlimited finds sources that may make huge lists and texts, which Starlark itself makes in a step.
var unlimited = regexp.MustCompile(`\d{6}|[eE*]\s*\d\d`)

// FuzzEval evaluates arbitrary source.
func FuzzEval(f *testing.F) {
	for _, c := range values {
		f.Add(c[0])
	}
	for _, c := range failures {
		f.Add(c[0])
	}
	set(f, &maxTime, 200e6)
	set(f, &maxSteps, 20000)
	f.Fuzz(func(t *testing.T, source string) {
		if unlimited.MatchString(source) {
			t.Skip()
		}
		in := newInterpreter()
		_, err := eval(t, in, source)
		if err != nil && (strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "scope ended") ||
			strings.Contains(err.Error(), "internal")) {
			t.Errorf("error %q", err)
		}
		if c, err := in.Compile(source); err == nil {
			mlxtest.Do(t, func() { c.Holds(context.Background(), testEnv()) })
		}
		mlxtest.Do(t, in.Close)
	})
}

func BenchmarkCondition(b *testing.B) {
	in := newInterpreter()
	for name, source := range map[string]string{"scalar": "timestep > 1000 and step == 1", "tensor": "out.max() > 100"} {
		c, err := in.Compile(source)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			mlxtest.Do(b, func() {
				env := testEnv()
				for b.Loop() {
					if _, err := c.Holds(context.Background(), env); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// TestDtypes applies every operator and method to tensors of every dtype, also without elements:
// MLX ends the process if whole numbers are divided by zero.
func TestDtypes(t *testing.T) {
	in := newInterpreter()
	mlxtest.Do(t, func() {
		for _, d := range dtypeNames {
			for _, from := range []string{"out", "-out", "out.slice(0, 0, 0)", "out[0, 0]"} {
				checkDtype(t, in, fmt.Sprintf("(%s).astype(%q)", from, d))
			}
		}
	})
}

func checkDtype(t *testing.T, in *Interpreter, x string) {
	run := func(source string) string {
		r, err := in.Eval(context.Background(), testEnv(), source)
		if err != nil && (strings.Contains(err.Error(), "internal") ||
			strings.Contains(err.Error(), "[") && strings.Contains(err.Error(), "] ")) {
			t.Errorf("%s: error of MLX %v", source, err)
		}
		return r.Text
	}
	run("x = " + x)
	for token := range arrayOps {
		op := token.String()
		for _, y := range []string{"x", "2", "-1", "0.5", "True", "out", "2 ** 40"} {
			for _, source := range []string{"z = x " + op + " " + y, "z = " + y + " " + op + " x"} {
				run("z = None\n" + source)
				run("z and [z.first(), z.dtype, z.sum()] if z != None and z.size == 1 else z")
			}
		}
	}
	for _, name := range in.tensorMethods() {
		run("x." + name + "()")
		run("x." + name + "(axis=0)")
		run("x." + name + "(axis=-1)")
	}
	run("[-x, x[0:1], x[:, ::-1], x.reshape(-1), x.transpose(), x.slice(-1, 0, 1), x.first(), x.nbytes, len(x), list(x)]")
	run("-x")
	run("compare(x, x)")
}

func (in *Interpreter) tensorMethods() []string { return (&tensor{in: in}).AttrNames() }
