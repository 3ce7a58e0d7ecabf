package vae

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// join runs f in the members of a group of n processes.
func join(t *testing.T, n int, f func(g *mlx.Group)) {
	if !grouptest.Member() {
		grouptest.Run(t, n)
		return
	}
	mlxtest.Do(t, func() {
		g, err := mlx.JoinGroup("ring")
		if err != nil {
			t.Fatal(err)
		}
		f(g)
	})
}

// The members of a group compute what one process does, up to rounding, and all the same: with numbers of
// rows that they cannot divide evenly, in batches, and in strips of each member's rows. They exchange
// nothing if there are fewer rows of latents than members, or with a hook. In CI this is for two
// processes, and for one class of each kind of norm.
func TestGroup(t *testing.T) {
	n, all := 2, os.Getenv("GOMFLUX_FAULTS") == "all"
	if all {
		n = 4
	}
	join(t, n, func(g *mlx.Group) {
		models := oddModels(true)
		if all {
			c := DefaultSeedVR2Config()
			c.BlockOutChannels, c.NormNumGroups, c.LayersPerBlock, c.LatentChannels = []int{4, 6, 6, 8}, 2, 1, 5
			models["SeedVR2"] = NewSeedVR2(c)
			foreigntest.Fill(models["SeedVR2"])
		}
		for _, class := range slices.Sorted(maps.Keys(models)) {
			if all || class == "AutoencoderKL" || class == "AutoencoderKLQwenImage21" {
				testGroup(t, g, class, models[class])
			}
		}
	})
}

// Mistakes in what the members of a group exchange are found. In CI nothing is planted, since each needs a build of its own.
func TestCodeFaults(t *testing.T) {
	if os.Getenv("GOMFLUX_FAULTS") != "all" {
		t.Skip("GOMFLUX_FAULTS=all plants them")
	}
	for name, fault := range map[string][3]string{ // a file, a text, and what replaces it
		"statistics of each part alone": {"strips.go", "ok && s.rows != nil {", "ok && s.of < 0 {"},
		"the variance about each part's mean": {"../mlx/nn/norm.go",
			".Add(own.Mean.Sub(mean).Square()) // about", " // about"},
		"no row above":               {"strips.go", "p.above = edge(rank-1, 1)", "p.above = edge(rank-1, 1).Times(0)"},
		"the wrong row below":        {"strips.go", "p.below = edge(rank+1, 0)", "p.below = edge(rank+1, 1)"},
		"queries of another process": {"coder.go", "a.ToQ.Forward(s.own(1, y))", "a.ToQ.Forward(y.Slice(1, 0, x.Dim(1)*w))"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := grouptest.Planted(t, fault[0], "TestGroup", fault[1], fault[2])
			if err == nil || !strings.Contains(out, "off by") {
				t.Errorf("not found:\n%s", out)
			}
		})
	}
}

func testGroup(t *testing.T, g *mlx.Group, class string, m Autoencoder) {
	unscaled := m.Unscaled(1, 1)[1] // rows of the decoder's input for one of latents
	for _, test := range []struct {
		images, rows int
		budget       int64
	}{{2, 2*g.Size() - 1, 0}, {1, 2*g.Size() + 1, 30e3}, {1, g.Size() - 1, 0}} {
		h, w := test.rows*m.ScaleFactor(), 3*m.ScaleFactor()
		image := mlxtest.Randn(1, test.images, m.ImageChannels(), h, w)
		z := mlxtest.Randn(2, append([]int{test.images}, m.Unscaled(test.rows, 3)...)...)
		for _, f := range []struct {
			name string
			rows int
			run  func() *mlx.Array
		}{
			{"images", test.rows * unscaled, func() *mlx.Array { return m.Decode(z) }},
			{"latents", test.rows * unscaled, func() *mlx.Array { return m.Encode(image) }},
		} {
			m.SetGroup(nil)
			m.SetBudget(0)
			want := f.run().Floats()
			m.SetGroup(g)
			m.SetBudget(test.budget)
			before := g.Received()
			got := f.run()
			off, _ := difference(got.Floats(), want)
			received := g.Received() - before
			what := fmt.Sprintf("%s: %s of %d rows of latents, budget %d: off by %.2g, %d bytes received",
				class, f.name, f.rows, test.budget, off, received)
			t.Log(what)
			if !(off < 2e-6) || received > 0 != (f.rows >= g.Size()) {
				t.Error(what)
			}
			for rank, bytes := range g.Gather(got.Bytes()) {
				if !slices.Equal(bytes, got.Bytes()) {
					t.Errorf("%s: ranks %d and %d have different %s", class, g.Rank(), rank, f.name)
				}
			}
		}
	}
	points := &hooks.Points{Step: -1, Func: func(hooks.Tap) (*mlx.Array, error) { return nil, nil }}
	nn.Bind(m, "vae", points)
	before := g.Received()
	mlx.Eval(m.Decode(mlxtest.Randn(2, append([]int{1}, m.Unscaled(g.Size(), 1)...)...)))
	if g.Received() > before {
		t.Errorf("%s: processes exchange rows with a hook", class)
	}
}

// A member of a group takes about as much memory as is estimated, and less than one process.
func TestGroupMemory(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		c := DefaultKLFlux2Config()
		c.BlockOutChannels, c.DecoderBlockOutChannels = []int{32, 64, 64, 64}, []int{16, 32, 64, 96}
		c.NormNumGroups, c.LatentChannels, c.LayersPerBlock = 8, 4, 1
		m := NewKLFlux2(c)
		fill(m, mlx.Float32)
		const h, w = 96, 64
		for _, f := range []struct {
			name     string
			run      func(*mlx.Array) *mlx.Array
			in       []int
			estimate func(h, w int, d mlx.Device, dtype mlx.Dtype) int64
		}{
			{"decode", m.Decode, append([]int{1}, m.Unscaled(h/16, w/16)...), m.DecodeMemory},
			{"encode", m.Encode, []int{1, 3, h, w}, m.EncodeMemory},
		} {
			x := mlxtest.Randn(1, f.in...)
			mlx.Eval(x)
			peak := func(group *mlx.Group, budget int64) int64 {
				m.SetGroup(group)
				m.SetBudget(budget)
				mlx.ResetPeakMemory()
				before := mlx.ActiveMemory()
				mlx.WithScope(func() { mlx.Eval(f.run(x)) })
				n, estimate := int64(mlx.PeakMemory()-before), f.estimate(h, w, mlx.CPU, mlx.Float32)
				what := fmt.Sprintf("%s, in a group %t, budget %d: %d bytes, estimated %d", f.name, group != nil, budget, n, estimate)
				t.Log(what)
				if float64(n) > 1.05*float64(estimate) || float64(n) < 0.8*float64(estimate) {
					t.Error(what)
				}
				return n
			}
			alone, shared := peak(nil, 0), peak(g, 0)
			if float64(shared) > 0.85*float64(alone) {
				t.Errorf("%s: %d bytes, by one process %d", f.name, shared, alone)
			}
			if n := peak(g, 300e3); n > shared {
				t.Errorf("%s: %d bytes with a budget, %d without", f.name, n, shared)
			}
		}
	})
}
