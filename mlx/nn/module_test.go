package nn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// small is a model of one image layer and one of tokens.
type small struct {
	nn.Module
	Conv *nn.Conv2d     `w:"conv"`
	Net  *nn.Sequential `w:"net"`
}

// newSmall is a small with parameters, bound to points.
func newSmall(points *hooks.Points) *small {
	m := &small{Conv: nn.NewConv2d(2, 3, 1, 1, 0), Net: nn.NewSequential(nn.NewLinear(3, 2, false), &nn.SiLU{})}
	m.Conv.Weight.Array, m.Conv.Bias.Array = mlxtest.Randn(1, 3, 1, 1, 2), mlxtest.Randn(2, 3)
	m.Net.Layers[0].(*nn.Linear).Weight.Array = mlxtest.Randn(3, 2, 3)
	nn.Bind(m, "model", points)
	return m
}

func (m *small) Forward(x *mlx.Array) *mlx.Array {
	return m.Tap(m.Net.Forward(m.Conv.Forward(x)), x)
}

// Every module passes its inputs and its output, in the order in which they
// end, under its path; images with channels first.
func TestTaps(t *testing.T) {
	mlxtest.Do(t, func() {
		var seen []string
		points := &hooks.Points{Step: 3, Negative: true}
		m, x := newSmall(points), mlxtest.Randn(9, 1, 4, 5, 2)
		plain := m.Forward(x).Floats()
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			seen = append(seen,
				fmt.Sprintf("%s %v %d %s %v %v", tap.FullName(), tap.Negative, len(tap.Inputs), tap.Inputs[0].Key,
					tap.Inputs[0].Shape(), tap.Output.Shape()))
			if tap.Name == "model.conv" {
				mlxtest.Same(t, "input of conv", tap.Inputs[0].Floats(), x.Transpose(0, 3, 1, 2).Floats())
				y := x.Conv2d(m.Conv.Weight.Array, 1, 0).Add(m.Conv.Bias.Array)
				mlxtest.Same(t, "output of conv", tap.Output.Floats(), y.Transpose(0, 3, 1, 2).Floats())
			}
			return nil, nil
		}
		observed := m.Forward(x)
		mlxtest.Same(t, "output while observed", observed.Floats(), plain)
		mlxtest.Same(t, "taps", seen, []string{
			"model.conv@3 true 1 0 [1 2 4 5] [1 3 4 5]",
			"model.net.0@3 true 1 0 [1 4 5 3] [1 4 5 2]",
			"model.net.1@3 true 1 0 [1 4 5 2] [1 4 5 2]",
			"model.net@3 true 1 0 [1 4 5 3] [1 4 5 2]",
			"model@3 true 1 0 [1 4 5 2] [1 4 5 2]",
		})
	})
}

// A replacement of an image is given as hooks see it, channels first, and goes
// on in the model's own layout.
func TestTapReplaces(t *testing.T) {
	mlxtest.Do(t, func() {
		points := &hooks.Points{}
		m, x := newSmall(points), mlxtest.Randn(9, 1, 4, 5, 2)
		given := mlxtest.Randn(10, 1, 3, 4, 5)
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "model.conv" {
				return given, nil
			}
			return nil, nil
		}
		got := m.Forward(x)
		points.Func = nil
		mlxtest.Same(t, "output", got.Floats(), m.Net.Forward(given.Transpose(0, 2, 3, 1)).Floats())
	})
	// a replacement in the model's own layout has the wrong shape
	err := mlxtest.Try(func() {
		points := &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "model.conv" {
				return mlx.Zeros(mlx.Float32, 1, 4, 5, 3), nil
			}
			return nil, nil
		}}
		newSmall(points).Forward(mlxtest.Randn(9, 1, 4, 5, 2))
	})
	if err == nil {
		t.Fatal("no error")
	}
	mlxtest.Contains(t, err.Error(), "model.conv@0: replacement is float32[1 4 5 3], expected float32[1 3 4 5]")
}

func TestTapStops(t *testing.T) {
	stop := errors.New("seen enough")
	var last string
	err := mlxtest.Try(func() {
		points := &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
			last = tap.Name
			if tap.Name == "model.net.0" {
				return nil, stop
			}
			return nil, nil
		}}
		newSmall(points).Forward(mlxtest.Randn(9, 1, 4, 5, 2))
	})
	if !errors.Is(err, stop) || err.Error() != "model.net.0@0: seen enough" || last != "model.net.0" {
		t.Errorf("found %v after %s, expected to stop in model.net.0", err, last)
	}
}

// Arrays that a hook keeps, or gives more than once, are its own: the model
// does not free them.
func TestTapKeeps(t *testing.T) {
	var kept []*mlx.Array
	mlxtest.Do(t, func() {
		points := &hooks.Points{}
		layers := []*nn.SiLU{{}, {}, {}, {}}
		nn.Bind(&struct {
			Layers []*nn.SiLU `w:"layers"`
		}{layers}, "m", points)
		constant := mlx.Full(3, mlx.Float32, 1, 2)
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "m.layers.2" {
				return constant, nil
			}
			mlx.Keep(tap.Output)
			kept = append(kept, tap.Output)
			return nil, nil
		}
		y := mlx.Chain(mlx.Full(1, mlx.Float32, 1, 2), layers, func(l *nn.SiLU, x *mlx.Array) *mlx.Array { return l.Forward(x) })
		near(t, "output", y.Floats(), wide(constant.SiLU().Floats()), 1e-7)
		mlxtest.Same(t, "constant", constant.Floats(), []float32{3, 3})
	})
	mlxtest.Do(t, func() {
		if len(kept) != 3 {
			t.Fatalf("found %d outputs", len(kept))
		}
		one := mlx.Full(1, mlx.Float32, 1, 2).SiLU()
		near(t, "first", kept[0].Floats(), wide(one.Floats()), 1e-7)
		near(t, "second", kept[1].Floats(), wide(one.SiLU().Floats()), 1e-7)
		for _, a := range kept {
			a.Free()
		}
	})
}

func TestChannels(t *testing.T) {
	mlxtest.Do(t, func() {
		x := mlxtest.Randn(1, 2, 3, 4, 5)
		first := nn.ChannelsFirst(x)
		mlxtest.Same(t, "image", first.Shape(), []int{2, 5, 3, 4})
		mlxtest.Same(t, "image and back", nn.ChannelsLast(first).Floats(), x.Floats())
		tokens := x.Reshape(2, 12, 5)
		mlxtest.Same(t, "tokens", nn.ChannelsFirst(tokens).Shape(), []int{2, 5, 12})
		mlxtest.Same(t, "tokens and back", nn.ChannelsLast(nn.ChannelsFirst(tokens)).Floats(), x.Floats())
	})
}

// A module without a hook: the price of one call of Tap.
func BenchmarkTapOff(b *testing.B) {
	for name, points := range map[string]*hooks.Points{"nil": nil, "zero": {}} {
		b.Run(name, func(b *testing.B) {
			mlxtest.Do(b, func() {
				l := &nn.SiLU{}
				nn.Bind(l, "m", points)
				x := mlx.Zeros(mlx.Float32, 1, 2)
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					l.Tap(x, x)
				}
			})
		})
	}
}

// Without a hook a Tap allocates nothing and makes no array.
func TestTapOffIsFree(t *testing.T) {
	mlxtest.Do(t, func() {
		l := &nn.SiLU{}
		nn.Bind(l, "m", &hooks.Points{})
		x := mlx.Zeros(mlx.Float32, 1, 2, 2, 3)
		if n := testing.AllocsPerRun(100, func() {
			if l.Tap(x, x) != x || l.TapImage(x, x) != x {
				t.Error("found another array")
			}
			if a, b := l.Tap2(x, x, x, nil); a != x || b != x {
				t.Error("found another array")
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// split is a module with two outputs and inputs with names.
type split struct {
	nn.Module `in:"hidden_states temb" out:"second"`
}

// Inputs and outputs have the keys that the tag declares; an input that a call does
// not have is left out.
func TestTapTags(t *testing.T) {
	mlxtest.Do(t, func() {
		var seen []string
		points := &hooks.Points{Step: -1}
		m, x, y := &split{}, mlx.Zeros(mlx.Float32, 1), mlx.Zeros(mlx.Float32, 2)
		nn.Bind(m, "m", points)
		points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			for tap := range tap.All() {
				seen = append(seen, fmt.Sprint(tap.FullName(), tap.Output.Shape()))
			}
			if tap.FullName() == "m:out.second" {
				return mlx.Full(7, mlx.Float32, 2), nil
			}
			return nil, nil
		}
		first, second := m.Tap2(x, y, x, y)
		if first != x || second.Floats()[1] != 7 {
			t.Errorf("found %v and %v", first, second)
		}
		m.Tap2(x, y, nil, y)
		mlxtest.Same(t, "taps", seen, []string{
			"m:out.second[2]", "m:in.hidden_states[1]", "m:in.temb[2]", "m[1]",
			"m#1:out.second[2]", "m#1:in.temb[2]", "m#1[1]",
		})
	})
}

// listed is a module with a list among its outputs.
type listed struct {
	nn.Module `out:"pooled features.*"`
}

// The elements of a list have its key and their numbers.
func TestTapLists(t *testing.T) {
	mlxtest.Do(t, func() {
		var seen []string
		m, x := &listed{}, mlx.Zeros(mlx.Float32, 1)
		nn.Bind(m, "m", &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
			seen = append(seen, tap.FullName())
			return nil, nil
		}})
		m.TapAll([]*mlx.Array{x, x, x, x}, x)
		m.TapAll([]*mlx.Array{x, x}, x)
		mlxtest.Same(t, "taps", seen, []string{"m:out.pooled", "m:out.features.0", "m:out.features.1", "m", "m#1:out.pooled", "m#1"})
	})
}

// A tap with another number of inputs than the tag declares is a bug that shows when
// somebody observes the module. (TestTaps of the root finds it without.)
func TestTapCounts(t *testing.T) {
	for _, tap := range []func(m *split, x *mlx.Array){
		func(m *split, x *mlx.Array) { m.Tap(x) },
		func(m *split, x *mlx.Array) { m.Tap(x, x) },
		func(m *split, x *mlx.Array) { m.Tap2(x, x, x, x, x) },
		func(m *split, x *mlx.Array) { m.TapImage(x, x) },
	} {
		mlxtest.Do(t, func() {
			points := &hooks.Points{}
			m, x := &split{}, mlx.Zeros(mlx.Float32, 1, 2, 2, 3)
			nn.Bind(m, "model.split", points)
			tap(m, x)
			points.Func = func(hooks.Tap) (*mlx.Array, error) { return nil, nil }
			defer func() {
				mlxtest.Contains(t, fmt.Sprint(recover()), "nn: module model.split is tapped with ")
			}()
			tap(m, x)
		})
	}
}

func BenchmarkGroupNorm(b *testing.B) {
	mlxtest.Do(b, func() {
		n := nn.NewGroupNorm(32, 128, 1e-6)
		param(&n.Weight, make([]float32, 128), 128)
		param(&n.Bias, make([]float32, 128), 128)
		x := mlxtest.Randn(1, 1, 128, 128, 128)
		mlx.Eval(x)
		b.ResetTimer()
		for range b.N {
			mlx.WithScope(func() { mlx.Eval(n.Forward(x)) })
		}
	})
}
