package nn

import (
	"context"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestStack compares the outputs of a stack before and after its weights are joined, and of its
// layers, whose weights become views.
func TestStack(t *testing.T) {
	type model struct {
		Module
		A     *Linear `w:"a"`
		B     *Linear `w:"b"`
		Stack Stack
	}
	values := func(n, seed int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = float32((i*7+seed)%11-5) / 4
		}
		return out
	}
	for _, c := range []struct {
		name         string
		bias         bool
		quantize     bool
		otherFormat  bool // of the second layer
		adapter      bool
		wantsOneCall bool
	}{
		{name: "plain", wantsOneCall: true},
		{name: "with biases", bias: true, wantsOneCall: true},
		{name: "quantized", bias: true, quantize: true, wantsOneCall: true},
		{name: "one quantized", otherFormat: true},
		{name: "with an adapter", adapter: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			active := func() (n int) {
				mlx.Do(context.Background(), func() error { n = mlx.ActiveMemory(); return nil })
				return n
			}
			before := active()
			err := mlx.Do(context.Background(), func() error {
				if err := mlx.Use(mlx.CPU); err != nil {
					return err
				}
				m := &model{A: NewLinear(64, 3, c.bias), B: NewLinear(64, 5, c.bias)}
				m.Stack = NewStack(m.A, m.B)
				q := mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
				for i, l := range []*Linear{m.A, m.B} {
					rows := l.Weight.shape[0]
					w := mlx.FromFloat32(values(rows*64, i), rows, 64)
					if c.quantize || c.otherFormat && i == 1 {
						l.Weight.set(w.Quantize(q).Arrays(), &q)
					} else {
						l.Weight.set([]*mlx.Array{w}, nil)
					}
					if c.bias {
						l.Bias.set([]*mlx.Array{mlx.FromFloat32(values(rows, i+3), rows)}, nil)
					}
				}
				x := mlx.FromFloat32(values(2*64, 9), 1, 2, 64)
				outputs := func() (all []float32) {
					for _, columns := range m.Stack.Forward(x) {
						all = append(all, columns.Array().Floats()...)
					}
					for _, l := range []*Linear{m.A, m.B} {
						all = append(all, l.Forward(x).Floats()...)
					}
					return all
				}
				want := outputs()
				joinStacks(m)
				if c.adapter {
					m.B.Adapters = []Adapter{twice{}}
					want = outputs()
				}
				if got := outputs(); !slices.EqualFunc(got, want, func(a, b float32) bool { return max(a-b, b-a) < 1e-5 }) {
					t.Errorf("found %v, expected %v", got, want)
				}
				columns := m.Stack.Forward(x)
				if one := columns[0].X == columns[1].X; one != c.wantsOneCall {
					t.Errorf("one product: %v, expected %v", one, c.wantsOneCall)
				}
				var tapped []string
				compared := 0
				Bind(m, "m", &hooks.Points{Func: func(tap hooks.Tap) (*mlx.Array, error) {
					tapped = append(tapped, tap.Name)
					return nil, nil
				}, Forked: func(f hooks.Fork) {
					compared++
					fused, modules := f.Fused[0].Floats(), f.Modules[0].Floats()
					if f.Name != "m.a" || !slices.EqualFunc(fused, modules, func(a, b float32) bool { return max(a-b, b-a) < 1e-5 }) {
						t.Errorf("%s of %s: found %v, expected %v", f.Operation, f.Name, fused, modules)
					}
				}})
				m.Stack.Forward(x)
				if (compared == 1) != c.wantsOneCall || !slices.Equal(tapped, []string{"m.a", "m.b"}) {
					t.Errorf("%d forks, taps of %q", compared, tapped)
				}
				Free(m)
				if m.A.Weight.Array != nil || m.Stack.weight.Array != nil {
					t.Error("weights are left after Free")
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if after := active(); after > before {
				t.Errorf("%d bytes after Free, %d before", after, before)
			}
		})
	}
}

type twice struct{}

func (twice) Apply(_, y *mlx.Array) *mlx.Array { return y.Add(y) }
