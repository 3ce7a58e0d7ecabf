package profile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/profile/tracetest"
)

// A model has two blocks of two modules each, of which attn has an inner value and mlp two outputs.
type model struct {
	hooks.Points
	stop bool     // evaluates after every block, as on the CPU
	host bool     // evaluates in a module, as operations on the host do
	open []string // the classes of the modules that are running
}

var modelModules = []string{
	"net", "net.proj", "net.blocks.0", "net.blocks.0.attn", "net.blocks.0.mlp", "net.blocks.1", "net.blocks.1.attn",
	"net.blocks.1.mlp",
}

// newModel returns a model for a profiler.
func newModel(p *Profiler) *model {
	m := &model{Points: hooks.Points{Func: p.Hook}}
	p.running = func() []string { return slices.Clone(m.open) }
	return m
}

// call runs a module.
func (m *model) call(name, class string, in *mlx.Array, forward func() *mlx.Array) *mlx.Array {
	m.open = append(m.open, class)
	out := m.Pass(hooks.Module{Name: name, Class: class}, forward(), []hooks.Arg{{Key: "0", Array: in}})
	m.open = m.open[:len(m.open)-1]
	return out
}

func (m *model) block(name string, x *mlx.Array) *mlx.Array {
	return m.call(name, "block", x, func() *mlx.Array {
		scaled := x.Matmul(x)
		attn := hooks.Module{Name: name + ".attn", Class: "attn"}
		y := m.call(attn.Name, attn.Class, scaled, func() *mlx.Array {
			q := m.Inner(attn, "q", scaled.Matmul(scaled))
			m.Inner(attn, hooks.Weights, q.Matmul(q)) // is not evaluated
			return q.Plus(1)
		})
		mlp := hooks.Module{Name: name + ".mlp", Class: "mlp"}
		z := m.call(mlp.Name, mlp.Class, y, func() *mlx.Array {
			if m.host {
				y.SiLU() // evaluates y first
			}
			m.Further(mlp, "1", y.Plus(2))
			return y.Times(0.5)
		})
		return z.Add(x).Times(0.01)
	})
}

func (m *model) forward(x *mlx.Array) *mlx.Array {
	return m.call("net", "net", x, func() *mlx.Array {
		y := mlx.Scope(func() *mlx.Array {
			return m.call("net.proj", "proj", x, func() *mlx.Array { return x.Plus(1).Times(0.01) })
		})
		for i := range 2 {
			y = mlx.Scope(func() *mlx.Array { return m.block(fmt.Sprintf("net.blocks.%d", i), y) })
			if m.stop {
				mlx.Eval(y)
			}
		}
		return y.Plus(3)
	})
}

// profiled runs two steps of a model, and returns the trace and the summary.
func profiled(t *testing.T, stop, host bool, size int) ([]*tracetest.Slice, *Summary, []float32) {
	t.Helper()
	var text bytes.Buffer
	p := New(&text)
	var out []float32
	active := func() (n int) {
		mlxtest.Do(t, func() { n = mlx.ActiveMemory() })
		return n
	}
	before := active()
	mlxtest.Do(t, func() {
		p.Attach()
		m := newModel(p)
		m.stop, m.host = stop, host
		end := p.BeginOther("load net")
		x := mlx.Full(0.5, mlx.Float32, size, size)
		mlx.Eval(x)
		end()
		p.BeginImage("seed 7")
		p.BeginPhase("step")
		for m.Step = range 2 {
			p.BeginStep(fmt.Sprintf("step %d", m.Step+1))
			x = m.Value("latents", m.forward(x))
			mlx.Eval(x)
		}
		p.BeginPhase("decode")
		out = x.Times(2).Floats()
		p.EndImage()
		p.Detach()
	})
	if after := active(); after != before {
		t.Errorf("%d bytes stay in memory", after-before)
	}
	if p.Peak() < 4*size*size {
		t.Errorf("peak of %d bytes, expected at least one array of %dx%[2]d", p.Peak(), size)
	}
	s, err := p.Close(map[string]any{"device": "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	slices, facts, err := tracetest.Check(text.Bytes())
	if err != nil || facts["device"] != "cpu" {
		t.Fatalf("%v, facts %v\n%s", err, facts, text.String())
	}
	return slices, s, out
}

// tree returns the names of slices, indented by the slices around them.
func tree(all []*tracetest.Slice) string {
	var b strings.Builder
	for _, s := range all {
		if s.Category == "host" {
			continue
		}
		for outer := s.Inside; outer != nil; outer = outer.Inside {
			b.WriteString(" ")
		}
		b.WriteString(s.Name + "\n")
	}
	return b.String()
}

const steps = `load net
seed 7
 step
  step 1
NET
   latents
  step 2
NET
   latents
 decode
`

const net = `   net
    proj
    blocks.0
     attn
      q
     mlp
    blocks.1
     attn
      q
     mlp`

// TestTree holds that calls are nested in the trace as they were made, whether a run evaluates
// after each block or after each step.
func TestTree(t *testing.T) {
	want := strings.ReplaceAll(steps, "NET", net)
	var results [][]float32
	for i := range 4 {
		stop, host := i&1 > 0, i&2 > 0
		all, s, out := profiled(t, stop, host, 64)
		results = append(results, out)
		if got := tree(all); got != want {
			t.Errorf("evaluating after each block %v, on the host %v: found\n%s\nexpected\n%s", stop, host, got, want)
		}
		checkModules(t, s)
	}
	m := &model{}
	m.Func = func(hooks.Tap) (*mlx.Array, error) { return nil, nil }
	mlxtest.Do(t, func() {
		x := m.forward(m.forward(mlx.Full(0.5, mlx.Float32, 64, 64)))
		results = append(results, x.Times(2).Floats())
	})
	for _, other := range results[:4] {
		mlxtest.Same(t, "result", other, results[4])
	}
}

func checkModules(t *testing.T, s *Summary) {
	t.Helper()
	found := map[string]int{}
	for _, m := range s.Modules {
		found[m.Name] = m.Calls
		if m.Phase != "step" || m.Self > m.Total || m.Self <= 0 || m.Peak <= 0 || m.Dtype != "float32" || m.ShapeText() != "64x64" {
			t.Errorf("%+v", *m)
		}
	}
	want := map[string]int{"latents": 2, "net.blocks.0.attn:q": 2, "net.blocks.1.attn:q": 2}
	for _, name := range modelModules {
		want[name] = 2
	}
	if !maps.Equal(found, want) {
		t.Errorf("found %v, expected %v", found, want)
	}
	if groups := s.Groups(); len(groups) != 7 {
		t.Errorf("%d groups, expected 7", len(groups))
	}
}

// TestTimes holds that every moment belongs to exactly one module or phase, and the work to the
// module that does it.
func TestTimes(t *testing.T) {
	_, s, _ := profiled(t, true, false, 1024)
	if len(s.Steps) != 2 || len(s.Phases) != 3 || s.Overhead <= 0 {
		t.Fatalf("%+v", s)
	}
	phase := s.Phases[1]
	sum := phase.Self + phase.Host
	for _, m := range s.Modules {
		sum += m.Self
	}
	if d := (sum - phase.Duration).Abs(); phase.Name != "step" || d > phase.Duration/100 {
		t.Errorf("phase %+v: the times of its parts add up to %v", phase, sum)
	}
	steps := s.Steps[0].Duration + s.Steps[1].Duration
	if d := (steps - phase.Duration).Abs(); d > phase.Duration/20+time.Millisecond {
		t.Errorf("steps take %v of %v", steps, phase.Duration)
	}
	largest := func(s *Summary) string { // the two modules with a matrix product each
		groups := s.Groups()
		names := []string{groups[0].Name, groups[1].Name}
		slices.Sort(names)
		return fmt.Sprint(names, groups[0].Calls, groups[1].Self > groups[2].Self)
	}
	const want = "[net.blocks.* net.blocks.*.attn:q] 4 true"
	found := largest(s)
	for range 4 { // other programs can interrupt a short module for longer than a product takes
		if found != want {
			_, again, _ := profiled(t, true, false, 1024)
			found = largest(again)
		}
	}
	if found != want {
		t.Errorf("most time have %s, expected %s", found, want)
	}
	for _, m := range s.Modules {
		if m.Name == "net.blocks.0.attn" && m.Total < 2*m.Self {
			t.Errorf("%s: %v in all, %v without the matrix product inside", m.Name, m.Total, m.Self)
		}
	}
}

// TestInside charges what a module evaluates itself to it, also after its inner values. A module
// without an output ends with the module around it.
func TestInside(t *testing.T) {
	var text bytes.Buffer
	p := New(&text)
	mlxtest.Do(t, func() {
		p.Attach()
		p.BeginPhase("step")
		m := newModel(p)
		x := mlx.Full(0.5, mlx.Float32, 1536, 1536)
		m.call("net", "net", x, func() *mlx.Array {
			m.open = append(m.open, "list")
			x := m.call("net.list.attn", "attn", x, func() *mlx.Array {
				m.Inner(hooks.Module{Name: "net.list.attn", Class: "attn"}, "q", x)
				x = x.Matmul(x)
				mlx.Eval(x)
				return x.Plus(1)
			})
			mlx.Eval(x)
			m.open = m.open[:1]
			return x.Plus(1)
		}).Floats()
		p.Detach()
	})
	s, err := p.Close(nil)
	if err != nil {
		t.Fatal(err)
	}
	if first := s.Groups()[0]; first.Name != "net.list.attn" || first.Calls != 1 || first.Self < s.Phases[0].Evaluated/2 {
		t.Errorf("most time has %+v, expected net.list.attn in %+v", *first, s.Phases[0])
	}
	all, _, err := tracetest.Check(text.Bytes())
	if want := "step\n net\n  net.list\n   attn\n    q\n"; err != nil || tree(all) != want {
		t.Errorf("%v\n%s", err, tree(all))
	}
}

// TestInputs charges the inputs of an operation on the host to the module around its module.
func TestInputs(t *testing.T) {
	p := New(&bytes.Buffer{})
	mlxtest.Do(t, func() {
		p.Attach()
		p.BeginPhase("step")
		m := newModel(p)
		x := mlx.Full(0.5, mlx.Float32, 1536, 1536)
		m.call("net", "net", x, func() *mlx.Array {
			y := x.Matmul(x)
			return m.call("net.act", "act", y, func() *mlx.Array { return y.SiLU() })
		}).Floats()
		p.Detach()
	})
	s, err := p.Close(nil)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]time.Duration{}
	for _, m := range s.Modules {
		times[m.Name] = m.Self
	}
	// a product that were charged to net.act would leave next to nothing in net, however busy the machine is
	if times["net"] < times["net.act"]/20 || times["net.act"] == 0 {
		t.Errorf("found %v, expected the matrix product in net", times)
	}
}

// TestOnStack finds the modules whose methods are running.
func TestOnStack(t *testing.T) {
	p := New(&bytes.Buffer{})
	p.SetClasses([]string{"profile.outerModule", "profile.innerModule"})
	var found []string
	(&outerModule{inner: &innerModule{func() { found = p.running() }}}).Forward()
	if want := []string{"profile.outerModule", "profile.innerModule"}; !slices.Equal(found, want) {
		t.Errorf("found %q, expected %q", found, want)
	}
}

type outerModule struct{ inner *innerModule }

func (m *outerModule) Forward() { m.forward() }
func (m *outerModule) forward() { func() { m.inner.Forward() }() }

type innerModule struct{ f func() }

func (m *innerModule) Forward() { m.f() }

// TestFrees holds that calls that were never evaluated do not stay in memory.
func TestFrees(t *testing.T) {
	mlxtest.Do(t, func() {
		before := mlx.ActiveMemory()
		p := New(&bytes.Buffer{})
		p.Attach()
		mlx.WithScope(func() {
			x := mlx.Full(0.5, mlx.Float32, 1536, 1536)
			mlx.Eval(x)
			m := newModel(p)
			m.forward(x)
			m.Further(hooks.Module{Name: "a", Class: "a"}, "1", x)
		})
		if mlx.ActiveMemory() == before {
			t.Error("the profiler holds no arrays, so this tests nothing")
		}
		p.Detach()
		if after := mlx.ActiveMemory(); after != before {
			t.Errorf("%d bytes stay in memory", after-before)
		}
		mlx.Eval(mlx.Full(0.5, mlx.Float32, 2)) // is not watched any longer
		if s, err := p.Close(nil); err != nil || !s.Empty() {
			t.Errorf("%v, %v", s, err)
		}
	})
}

// TestEnds ends a profile in the middle of a step: the trace is whole.
func TestEnds(t *testing.T) {
	var text bytes.Buffer
	p := New(&text)
	failed := errors.New("failed")
	err := mlxtest.Try(func() {
		p.Attach()
		p.BeginImage("seed 7")
		p.BeginPhase("step")
		p.BeginStep("step 1")
		m := newModel(p)
		m.stop = true
		m.Func = func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "net.blocks.1" {
				return nil, failed
			}
			return p.Hook(tap)
		}
		m.forward(mlx.Full(0.5, mlx.Float32, 64, 64))
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	mlxtest.Do(t, p.Detach)
	s, err := p.Close(nil)
	if err != nil || s.Empty() || len(s.Steps) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	all, _, err := tracetest.Check(text.Bytes())
	if want := "seed 7\n step\n  step 1\n   net\n    proj\n    blocks.0\n     attn\n      q\n     mlp\n"; err != nil || tree(all) != want {
		t.Errorf("%v\n%s", err, tree(all))
	}
}

// TestOther holds that loading and callbacks do not count as time of the phase.
func TestOther(t *testing.T) {
	now := time.Duration(0)
	p := New(&bytes.Buffer{})
	p.now = func() time.Duration { now += time.Second; return now }
	p.BeginImage("seed 7")            // 1
	p.BeginPhase("encode")            // 2
	p.BeginOther("load text_encoder") // 3
	p.BeginOther("load text_encoder") // goes on
	p.BeginOther("load transformer")  // 4, 5
	p.BeginStep("step 1")             // 6, 7
	s, err := p.Close(nil)            // 8 to 10
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range s.Phases {
		found = append(found, fmt.Sprintf("%s %d %v %v", p.Name, p.Count, p.Duration, p.Host))
	}
	if want := []string{"load 2 2s 2s", "encode 1 5s 5s"}; !slices.Equal(found, want) {
		t.Errorf("found %q, expected %q", found, want)
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("no space left on device")

func (d *fullDisk) Write(text []byte) (int, error) {
	if d.room -= len(text); d.room < 0 {
		return 0, errFull
	}
	return len(text), nil
}

func TestWriteError(t *testing.T) {
	for _, room := range []int{0, 1 << 16} {
		p := New(&fullDisk{room})
		for range 1000 {
			p.BeginPhase("step")
		}
		if s, err := p.Close(nil); !errors.Is(err, errFull) || s.Phases[0].Count != 1000 {
			t.Errorf("%v, %+v", err, s)
		}
	}
}

func TestShort(t *testing.T) {
	for name, want := range map[string]string{
		"net": "net", "net.layers.0": "layers.0", "net.layers.10.to_q": "to_q", "net.to_out.0": "to_out.0",
		"net.attn:q.unrotated": "q.unrotated", "net.all_x_embedder.2-1": "all_x_embedder.2-1",
	} {
		if got := short(name); got != want || parent(name) != strings.TrimRight(strings.TrimSuffix(name, want), ".:") {
			t.Errorf("%s: found %s in %s, expected %s", name, got, parent(name), want)
		}
	}
}

func TestGroups(t *testing.T) {
	s := Summary{Modules: []*Module{
		{Name: "net.layers.0.net.2", Class: "a", Self: 1, Total: 3, Calls: 1, Peak: 5, Shape: []int{2, 3}},
		{Name: "net.layers.1.net.2", Class: "a", Self: 1, Total: 3, Calls: 2, Peak: 4, Shape: []int{2, 3}},
		{Name: "net.layers.0.net.0", Class: "b", Self: 1, Total: 1, Calls: 1, Peak: 9, Shape: []int{2, 3}},
		{Name: "net.layers.2.net.2", Class: "a", Self: 4, Total: 4, Calls: 1, Peak: 4, Shape: []int{4, 3}},
		{Name: "net.x_embedder.2-1", Self: 3, Total: 3, Calls: 1},
	}}
	rows := func(all []*Module) (found []string) {
		for _, m := range all {
			found = append(found, fmt.Sprint(m.Name, m.Self, m.Total, m.Calls, m.Peak, m.ShapeText()))
		}
		return found
	}
	want := []string{
		"net.layers.2.net.24ns 4ns 1 44x3", "net.x_embedder.2-13ns 3ns 1 0", "net.layers.*.net.22ns 6ns 3 52x3",
		"net.layers.0.net.01ns 1ns 1 92x3",
	}
	if found := rows(s.Groups()); !slices.Equal(found, want) || s.Modules[0].Calls != 1 {
		t.Errorf("groups %q, expected %q", found, want)
	}
	want = []string{"a6ns 10ns 4 5", "3ns 3ns 1 0", "b1ns 1ns 1 9"}
	if found := rows(s.Classes()); !slices.Equal(found, want) {
		t.Errorf("classes %q, expected %q", found, want)
	}
}
