package expr

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// set changes a limit until the test ends.
func set[T any](t testing.TB, limit *T, to T) {
	before := *limit
	*limit = to
	t.Cleanup(func() { *limit = before })
}

// TestLimits ends expressions that take too long or make too large values, and goes on after them.
func TestLimits(t *testing.T) {
	set(t, &maxTime, maxTime)
	set(t, &maxSteps, 100_000)
	set(t, &maxTensor, 1000)
	set(t, &maxTemporary, 100_000)
	in := newInterpreter()
	for _, c := range [][2]string{
		{"x = 0\nwhile True:\n  x += 1", "line 3: the expression takes more than 100000 steps"},
		{"sum([sum(range(10**9)) for i in range(10**9)])", "the expression takes longer than"},
		{"while True:\n  x = out + 1", "line 2: the expression's tensors take more than 100 kB"},
		{"t = out.flatten()\nfor i in range(3):\n  t = (t.reshape(t.size, 1) + t).flatten()",
			"line 3: a tensor with shape [36 36] and dtype float32: is larger than 1 kB"},
		{"10 ** 10 ** 8", "a whole number of more than"},
		{"x = [1]\nfor i in range(60):\n  x = [x, x]\nstr(x)", "longer than 1.0 MB"},
		{"x = []\nx.append(x)\nx", "nested more than"},
		{"while True:\n  print('x' * 10**5)", "print: more than 1.0 MB"},
		{"'a b ' * 4000000", "longer than 1.0 MB"},
	} {
		if strings.Contains(c[1], "takes longer") {
			maxTime = 50 * time.Millisecond
		}
		r, err := eval(t, in, c[0])
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: found %.100s, %v, expected an error with %q", c[0], r.Text, err, c[1])
		}
		maxTime = 5 * time.Second
	}
	if r, err := eval(t, in, "out.sum()"); err != nil || r.Text != "21.0" {
		t.Errorf("found %v, %v after the limits", r, err)
	}
}

// bigEnv returns a stop with a tensor of 67 MB.
func bigEnv() Env { return Env{Out: mlx.Full(1, mlx.Float32, 4096, 4096)} }

// TestContext ends an expression when its context is done.
func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	mlxtest.Do(t, func() {
		_, err := New().Eval(ctx, testEnv(), "while True:\n  pass")
		if err == nil || !strings.Contains(err.Error(), "line 1: context canceled") {
			t.Errorf("found %v, expected the context's error", err)
		}
	})
}
