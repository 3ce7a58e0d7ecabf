package upscaler

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A golden is a network of testdata, whose outputs spandrel computed in float64, for an image of a size. See
// upscaler.py in scripts/reference.
type golden struct {
	declare func() Network
	h, w    int
}

func rrdb8(change func(c *RRDBConfig)) func() Network {
	c := DefaultRRDBConfig()
	c.NumFeat, c.NumBlock = 8, 1
	change(&c)
	return func() Network { return NewRRDBNet(c) }
}

var goldens = map[string]golden{
	"rrdb-x4":    {rrdb8(func(c *RRDBConfig) { c.NumBlock = 2 }), 10, 13},
	"rrdb-x2":    {rrdb8(func(c *RRDBConfig) { c.Shuffle = 2 }), 9, 7},
	"rrdb-x1":    {rrdb8(func(c *RRDBConfig) { c.Shuffle = 4 }), 13, 10},
	"rrdb-alpha": {rrdb8(func(c *RRDBConfig) { c.NumInCh, c.NumOutCh, c.NumUp = 4, 4, 1 }), 6, 5},
	"compact-x4": {func() Network { return NewCompact(CompactConfig{3, 3, 8, 3, 4}) }, 7, 6},
	"compact-x2": {func() Network { return NewCompact(CompactConfig{1, 1, 12, 1, 2}) }, 5, 8},
}

// pattern returns the whole numbers of upscaler.py, from 0 to 250.
func pattern(offset int, shape ...int) []float64 {
	values := make([]float64, mlxtest.Size(shape))
	for i := range values {
		values[i] = float64((i*i*31 + i*7 + offset*13) % 251)
	}
	return values
}

// image returns the image of upscaler.py.
func image(channels, h, w int) *mlx.Array {
	var values []float32
	for _, v := range pattern(0, channels, h, w) {
		values = append(values, float32(v)/255)
	}
	return mlx.FromFloat32(values, 1, channels, h, w)
}

// compare runs a golden's network with a hook, which may be nil, and returns the differences of its modules from
// the reference in the order of their calls.
func compare(t *testing.T, name string, fault hooks.Func) (modules []string, differences map[string]float64) {
	t.Helper()
	g, file := goldens[name], filepath.Join("testdata", name+".safetensors")
	f, err := checkpoint.Open(checkpoint.Folder{FS: os.DirFS("testdata"), Name: "testdata"}, name+".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	want, err := mlx.LoadSafetensors(file, slices.Collect(maps.Keys(f.Header.Tensors)))
	if err != nil {
		t.Fatal(err)
	}
	n, points := g.declare(), &hooks.Points{}
	foreigntest.Fill(n)
	nn.Bind(n, "upscaler", points)
	differences = map[string]float64{}
	points.Func = func(tap hooks.Tap) (replaced *mlx.Array, err error) {
		out := tap.Output
		if fault != nil {
			if replaced, err = fault(tap); replaced != nil {
				out = replaced
			}
		}
		module := "output"
		if tap.Name != "upscaler" {
			module = tap.Name[len("upscaler."):]
		}
		expected := want[module]
		if expected == nil {
			t.Fatalf("%s: the reference has no module %s", name, module)
		}
		values := out.Contiguous().Floats()
		var samples []float32
		for i := 0; i < len(values); i += len(values)/12 + 1 {
			samples = append(samples, values[i])
		}
		if len(samples) != expected.Size() {
			t.Fatalf("%s: %s has the shape %v, whose samples are %d, expected %d", name, module, out.Shape(), len(samples), expected.Size())
		}
		modules, differences[module] = append(modules, module), foreigntest.Off(samples, expected.Floats())
		return replaced, err
	}
	n.Forward(image(n.Channels(), g.h, g.w))
	if len(modules) != len(want) {
		t.Errorf("%s: %d modules were compared, expected %d", name, len(modules), len(want))
	}
	return modules, differences
}

const tolerance = 1e-5

// TestAgainstSpandrel compares the output of every module with spandrel's.
func TestAgainstSpandrel(t *testing.T) {
	for name := range goldens {
		mlxtest.Do(t, func() {
			modules, differences := compare(t, name, nil)
			worst := 0.0
			for _, m := range modules {
				if worst = max(worst, differences[m]); !(differences[m] < tolerance) {
					t.Errorf("%s: %s is off by %.2g", name, m, differences[m])
				}
			}
			t.Logf("%s: %d modules, off by %.2g at most", name, len(modules), worst)
		})
	}
}

// TestFaults checks that the comparison finds the first module with a mistake.
func TestFaults(t *testing.T) {
	at := func(module string, change func(tap hooks.Tap) *mlx.Array) hooks.Func {
		return func(tap hooks.Tap) (*mlx.Array, error) {
			if tap.Name == "upscaler."+module {
				return change(tap), nil
			}
			return nil, nil
		}
	}
	for fault, c := range map[string]struct {
		golden, first string
		hook          hooks.Func
	}{
		"no residual scaling": {"rrdb-x4", "body.0.rdb2", at("body.0.rdb2", func(tap hooks.Tap) *mlx.Array {
			in := tap.Inputs[0].Array
			return in.Add(tap.Output.Sub(in).Over(residualScale))
		})},
		"slope of 0.1": {"rrdb-x2", "body.0.rdb1.conv1", at("body.0.rdb1.conv1", func(tap hooks.Tap) *mlx.Array {
			y := tap.Output // negative values are multiplied by 0.2 afterwards
			return mlx.Where(y.Less(mlx.Scalar(0, y.Dtype())), y.Over(2), y)
		})},
		"order of the pixel shuffle": {"compact-x4", "body.8", at("body.8", func(tap hooks.Tap) *mlx.Array {
			s := tap.Output.Shape()
			return tap.Output.Reshape(1, 4, 4, 3, s[2], s[3]).Transpose(0, 3, 1, 2, 4, 5).Reshape(s...)
		})},
	} {
		mlxtest.Do(t, func() {
			modules, differences := compare(t, c.golden, c.hook)
			i := slices.IndexFunc(modules, func(m string) bool { return !(differences[m] < tolerance) })
			if i < 0 || modules[i] != c.first || !(differences[c.first] > 1e-3) {
				t.Errorf("%s: first found in module %d of %q (%v), expected %s", fault, i, modules, differences, c.first)
			}
			if !(differences["output"] > 1e-4) {
				t.Errorf("%s: the output is off by %.2g only", fault, differences["output"])
			}
		})
	}
}

// TestLayouts checks that both layouts of dense blocks compute the same.
func TestLayouts(t *testing.T) {
	defer func(before func(mlx.Device) bool) { fannedOn = before }(fannedOn)
	mlxtest.Do(t, func() {
		for name, g := range goldens {
			n := g.declare()
			foreigntest.Fill(n)
			var found [2][]float32
			for i, fanned := range []bool{false, true} {
				fannedOn = func(mlx.Device) bool { return fanned }
				found[i] = n.Forward(image(n.Channels(), g.h, g.w)).Contiguous().Floats()
			}
			if d := foreigntest.Off(found[1], found[0]); !(d < 2e-6) {
				t.Errorf("%s: off by %.2g", name, d)
			}
		}
	})
}

// TestStacked checks that dense blocks keep their stacked weights, those for the dtype of the last image, until the network
// is freed, and that the estimate of memory has them.
func TestStacked(t *testing.T) {
	defer func(before func(mlx.Device) bool) { fannedOn = before }(fannedOn)
	fannedOn = func(mlx.Device) bool { return true }
	mlxtest.Do(t, func() {
		declare := func() (*RRDBNet, *denseBlock) {
			n := goldens["rrdb-x4"].declare().(*RRDBNet)
			foreigntest.Fill(n)
			return n, n.Body[1].RDB2
		}
		n, block := declare()
		var before []*mlx.Array
		for i, dtype := range []mlx.Dtype{mlx.Float32, mlx.Float32, mlx.Float16, mlx.Float16, mlx.Float32} {
			run := func(n *RRDBNet) []float32 { return n.Forward(image(3, 10, 13).AsType(dtype)).Contiguous().Floats() }
			fresh, _ := declare()
			mlxtest.Same(t, "pixels", run(n), run(fresh))
			if kept := slices.Equal(block.stacked, before); kept != (i == 1 || i == 3) || block.stacked[0].Dtype() != dtype {
				t.Errorf("run %d in %v: stacked weights in %v, kept %t", i, dtype, block.stacked[0].Dtype(), kept)
			}
			before = block.stacked
		}
		bytes := int64(0)
		for _, b := range n.Body {
			for _, d := range []*denseBlock{b.RDB1, b.RDB2, b.RDB3} {
				for _, a := range d.stacked[:5] {
					bytes += int64(a.Nbytes())
				}
			}
		}
		fanned := Memory(n, 1, 1, Run{}, mlx.CPU, mlx.Float32)
		if fanned < bytes || fanned > bytes+bytes/8 {
			t.Errorf("estimate of %d bytes, expected a little more than the %d of the stacked weights", fanned, bytes)
		}
		if nn.Free(n); block.stacked != nil {
			t.Error("the stacked weights are not freed")
		}
	})
}

// TestUnshuffle checks the order of channels, and that edges are mirrored.
func TestUnshuffle(t *testing.T) {
	mlxtest.Do(t, func() {
		x := mlx.Arange(0, 12, 1, mlx.Float32).Reshape(1, 2, 3, 2)
		mlxtest.Same(t, "pixels of 2x2", unshuffle(x, 2).Floats(),
			[]float32{0, 2, 6, 8, 1, 3, 7, 9, 4, 2, 10, 8, 5, 3, 11, 9})
		if d := foreigntest.Off(shuffle(unshuffle(x.Slice(2, 0, 2), 2), 2).Floats(), x.Slice(2, 0, 2).Contiguous().Floats()); d != 0 {
			t.Errorf("shuffle is not the inverse: off by %g", d)
		}
	})
	mlxtest.Same(t, "indices", mirrored(3, 8), []int32{0, 1, 2, 1, 0, 1, 2, 1})
	mlxtest.Same(t, "indices of one", mirrored(1, 4), []int32{0, 0, 0, 0})
}

// TestEnlarge checks that an image has no seams, whatever the memory: that it is the same as without strips.
func TestEnlarge(t *testing.T) {
	mlxtest.Do(t, func() {
		for name, g := range goldens {
			n := g.declare()
			foreigntest.Fill(n)
			h := 4*n.Radius()/3 + 7 // the rows around a part are fewer than all
			x := image(n.Channels(), h, 5)
			want := nn.ChannelsLast(n.Forward(x)).Contiguous().Floats()
			parts := map[int]bool{}
			whole := Memory(n, h, 5, Run{}, mlx.CurrentDevice(), mlx.Float32)
			for _, budget := range []int64{0, whole / 2} {
				var found []float32 // [H, W, C]
				share, rows := 0.0, 0
				Enlarge(n, nn.ChannelsLast(x), Run{Budget: budget, Progress: func(s float64) {
					if s < share {
						t.Errorf("%s: progress goes from %g to %g", name, share, s)
					}
					share = s
				}}, func(y *mlx.Array) { found, rows = append(found, y.Contiguous().Floats()...), rows+1 })
				parts[rows] = true
				if len(found) != len(want) {
					t.Fatalf("%s within %d bytes: %d values, expected %d", name, budget, len(found), len(want))
				}
				if d := foreigntest.Off(found, want); !(d < 2e-6) || share != 1 {
					t.Errorf("%s within %d bytes, in %d parts: off by %.2g; progress ends at %g", name, budget, rows, d, share)
				}
			}
			if len(parts) < 2 {
				t.Errorf("%s: numbers of parts %v, expected several", name, parts)
			}
		}
	})
}

// TestRadius checks that the rows beyond the radius have no influence.
func TestRadius(t *testing.T) {
	mlxtest.Do(t, func() {
		for name, g := range goldens {
			n := g.declare()
			foreigntest.Fill(n)
			r, k := n.Radius(), n.multiple()
			h := 2*r + 8*k
			x := image(n.Channels(), h, 4)
			changed := mlx.Concat(2, x.Slice(2, 0, h-1), x.Slice(2, h-1, h).Plus(1))
			last := (h - 1 - r) * n.Scale() // the first row on which the last may have an influence
			a, b := n.Forward(x), n.Forward(changed)
			if d := foreigntest.Off(a.Slice(2, 0, last).Contiguous().Floats(), b.Slice(2, 0, last).Contiguous().Floats()); d != 0 {
				t.Errorf("%s: a row farther away than %d has an influence: off by %.2g", name, r, d)
			}
			if d := foreigntest.Off(a.Floats(), b.Floats()); d == 0 {
				t.Errorf("%s: a row has no influence", name)
			}
		}
	})
	if r := NewRRDBNet(DefaultRRDBConfig()).Radius(); r != 349 {
		t.Errorf("radius of 23 blocks: %d", r)
	}
}

// TestPublishedSize checks the number of parameters of RealESRGAN_x4plus.safetensors: 66,857,836 bytes, the header's
// 65,888 among them.
func TestPublishedSize(t *testing.T) {
	n := 0
	for _, p := range nn.Parameters(NewRRDBNet(DefaultRRDBConfig())) {
		n += mlxtest.Size(p.Stored())
	}
	if n != 16697987 || 4*n+65888 != 66857836 {
		t.Errorf("%d parameters", n)
	}
}
