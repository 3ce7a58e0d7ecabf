package hooks_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

func try(f func()) error {
	return mlx.Do(context.Background(), func() error { f(); return nil })
}

func TestActive(t *testing.T) {
	var none *hooks.Points
	if none.Active() || (&hooks.Points{}).Active() {
		t.Error("active without a hook")
	}
	if !(&hooks.Points{Func: func(hooks.Tap) (*mlx.Array, error) { return nil, nil }}).Active() {
		t.Error("not active with a hook")
	}
}

func TestPass(t *testing.T) {
	stop := errors.New("stop")
	cases := map[string]struct {
		hook func(tap hooks.Tap) (*mlx.Array, error)
		want float32
		err  string
	}{
		"observes": {func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name != "latents" || tap.Class != "x" || tap.Step != 4 || !tap.Negative || len(tap.Inputs) != 1 ||
				tap.Inputs[0].Item() != 7 || tap.Output.Size() != 2 {
				t.Errorf("found %+v", tap)
			}
			return nil, nil
		}, 1, ""},
		"gives the output back": {func(tap hooks.Tap) (*mlx.Array, error) { return tap.Output, nil }, 1, ""},
		"replaces":              {func(tap hooks.Tap) (*mlx.Array, error) { return tap.Output.Times(5), nil }, 5, ""},
		"replaces by other shape": {func(hooks.Tap) (*mlx.Array, error) { return mlx.Zeros(mlx.Float32, 2, 1), nil }, 0,
			"latents@4: replacement is float32[2 1], expected float32[1 2]"},
		"replaces by other dtype": {func(tap hooks.Tap) (*mlx.Array, error) { return tap.Output.AsType(mlx.BFloat16), nil }, 0,
			"latents@4: replacement is bfloat16[1 2], expected float32[1 2]"},
		"stops": {func(hooks.Tap) (*mlx.Array, error) { return nil, stop }, 0, "latents@4: stop"},
		"fails": {func(tap hooks.Tap) (*mlx.Array, error) { return tap.Output.Reshape(3), nil }, 0, "reshape"},
		"replaces by a freed array": {func(tap hooks.Tap) (*mlx.Array, error) {
			a := tap.Output.Plus(1)
			a.Free()
			return a, nil
		}, 0, "array used after its scope ended"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []float32
			err := try(func() {
				p := &hooks.Points{Func: c.hook, Step: 4, Negative: true}
				in := []hooks.Arg{{Key: "c", Array: mlx.Scalar(7, mlx.Float32)}}
				got = p.Pass(hooks.Module{Name: "latents", Class: "x"}, mlx.Full(1, mlx.Float32, 1, 2), in).Floats()
			})
			switch {
			case c.err == "" && (err != nil || got[0] != c.want || got[1] != c.want):
				t.Errorf("found %v, %v, expected %v", got, err, c.want)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("found %v, expected %q", err, c.err)
			case name == "stops" && !errors.Is(err, stop):
				t.Errorf("found %v, expected it to wrap the hook's error", err)
			}
		})
	}
}

func TestValue(t *testing.T) {
	err := try(func() {
		x := mlx.Full(1, mlx.Float32, 2)
		var none *hooks.Points
		if none.Value("latents", x) != x || (&hooks.Points{}).Value("latents", x) != x {
			t.Error("a value changed without a hook")
		}
		p := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name != "latents" || tap.Step != -1 || tap.Inputs != nil || tap.Output != x {
				t.Errorf("found %+v", tap)
			}
			return x.Plus(1), nil
		}}
		if got := p.Value("latents", x).Floats()[0]; got != 2 {
			t.Errorf("found %v, expected the replacement's 2", got)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Calls are counted within a step, those of the negative pass behind the others.
func TestCalls(t *testing.T) {
	err := try(func() {
		var seen []string
		p := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
			for tap := range tap.All() {
				seen = append(seen, tap.FullName()+" "+tap.Point.Kind.String())
			}
			return nil, nil
		}}
		x := mlx.Full(1, mlx.Float32, 2)
		a := hooks.Module{Name: "a"}
		p.Value("prompt", x)
		for step := range 2 {
			p.Step = step
			for _, p.Negative = range []bool{false, true} {
				p.Inner(a, "q", x)
				p.Further(a, "1", x)
				p.Pass(a, x, []hooks.Arg{{Key: "0", Array: x}, {Key: "c", Array: x}})
			}
		}
		want := []string{
			"prompt output",
			"a@0:q inner value", "a@0:out.1 output", "a@0:in.0 input", "a@0:in.c input", "a@0 output",
			"a@0#1:q inner value", "a@0#1:out.1 output", "a@0#1:in.0 input", "a@0#1:in.c input", "a@0#1 output",
			"a@1:q inner value", "a@1:out.1 output", "a@1:in.0 input", "a@1:in.c input", "a@1 output",
			"a@1#1:q inner value", "a@1#1:out.1 output", "a@1#1:in.0 input", "a@1#1:in.c input", "a@1#1 output",
		}
		if !slices.Equal(seen, want) {
			t.Errorf("found %q, expected %q", seen, want)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEntropy(t *testing.T) {
	err := try(func() {
		weights := mlx.FromFloat32([]float32{1, 0, 0, 0, 0.25, 0.25, 0.25, 0.25}, 1, 1, 2, 4)
		tap := hooks.Tap{Name: "attn", Step: 2, Point: hooks.Point{Kind: hooks.Inner, Key: hooks.Weights}, Output: weights}.Entropy()
		if got := tap.Output.Floats(); got[0] != 0 || math.Abs(float64(got[1])-math.Log(4)) > 1e-6 {
			t.Errorf("found %v", got)
		}
		if name := tap.FullName(); name != "attn@2:entropy" || !slices.Equal(tap.Output.Shape(), []int{1, 1, 2}) {
			t.Errorf("%s has shape %v", name, tap.Output.Shape())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
