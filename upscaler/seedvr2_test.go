package upscaler

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// The networks of testdata, whose outputs the makers' code computed in float64. See seedvr2.py in scripts/reference.

func seedConfig(name string) transformer.NaDiTConfig {
	c := transformer.DefaultNaDiTConfig()
	c.VidInChannels, c.VidOutChannels, c.TxtInDim, c.Window = 9, 4, 24, [2]int{9, 9}
	if name == "3b" {
		c.VidDim, c.Heads, c.HeadDim, c.RopeDim, c.NumLayers, c.MMLayers, c.MLPDim = 32, 2, 16, 16, 6, 3, 256
		return c
	}
	c.VidDim, c.Heads, c.HeadDim, c.RopeDim, c.NumLayers, c.MMLayers, c.MLPDim = 48, 2, 24, 12, 4, 4, 192
	c.MLPType, c.RopeType, c.VidOutNorm = "normal", "rope3d", false
	return c
}

func seedVAE() *vae.SeedVR2 {
	c := vae.DefaultSeedVR2Config()
	c.BlockOutChannels, c.NormNumGroups, c.LatentChannels, c.LayersPerBlock = []int{8, 16, 24, 24}, 4, 4, 1
	m := vae.NewSeedVR2(c)
	fillSeed(m)
	return m
}

func seedTransformer(name string) *transformer.NaDiT {
	m := transformer.NewNaDiT(seedConfig(name))
	fillSeed(m)
	return m
}

// signed returns the numbers of foreign.py from -1 to 1.
func signed(offset int, shape ...int) *mlx.Array {
	values := make([]float32, mlxtest.Size(shape))
	for i, v := range pattern(offset, shape...) {
		values[i] = float32(v/125 - 1)
	}
	return mlx.FromFloat32(values, shape...)
}

// fillSeed sets the weights of foreign.py.
func fillSeed(model any) {
	params := nn.Parameters(model)
	slices.SortFunc(params, func(a, b nn.Parameter) int { return strings.Compare(a.Name, b.Name) })
	for i, p := range params {
		shape, factor, one := p.Stored(), 0.2, 0.0
		if len(shape) > 1 {
			factor = math.Sqrt(3 / float64(mlxtest.Size(shape[1:])))
		} else if strings.Contains(p.Name, "norm") && strings.HasSuffix(p.Name, "weight") {
			one = 1
		}
		var values []float32
		for _, v := range pattern(i, shape...) {
			values = append(values, float32(float64(float32(v/125-1))*factor+one))
		}
		p.Array = mlx.FromFloat32(values, shape...)
		if p.Transform() == "sum,oihw" {
			p.Array = nn.ChannelsLast(p.Array.Sum(2).Squeeze(2)).Contiguous()
		}
		mlx.Eval(p.Array)
		mlx.Keep(p.Array)
	}
}

// recorded returns the outputs of the reference, or a part of them.
func recorded(t *testing.T, file string) map[string]*mlx.Array {
	t.Helper()
	name := filepath.Join("testdata", file+".safetensors")
	names, err := tensorNames(name)
	if err != nil {
		t.Fatal(err)
	}
	want, err := mlx.LoadSafetensors(name, names)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// samples returns the values of an array that foreign.py keeps.
func samples(x *mlx.Array) (out []float32) {
	values := x.Contiguous().Floats()
	for i := 0; i < len(values); i += len(values)/12 + 1 {
		out = append(out, values[i])
	}
	return out
}

// A comparison compares the modules of a run with the reference's.
type comparison struct {
	want        map[string]*mlx.Array
	calls       map[string]int
	order       []string
	differences map[string]float64
}

// sharedNorm are norms of both streams, which the reference computes in the other order.
var sharedNorm = regexp.MustCompile(`\.norm_[qk]\.all$`)

// watch returns a hook. fault may replace an output before.
func (c *comparison) watch(t *testing.T, fault hooks.Func) hooks.Func {
	c.calls, c.differences = map[string]int{}, map[string]float64{}
	return func(tap hooks.Tap) (replaced *mlx.Array, err error) {
		out := tap.Output
		if fault != nil {
			if replaced, err = fault(tap); replaced != nil {
				out = replaced
			}
		}
		if tap.Point != (hooks.Point{}) {
			return replaced, err
		}
		name, n := tap.Name, c.calls[tap.Name]
		c.calls[tap.Name]++
		if sharedNorm.MatchString(name) {
			n = 1 - n
		}
		if n > 0 {
			name = fmt.Sprintf("%s#%d", tap.Name, n)
		}
		c.add(t, name, out)
		return replaced, err
	}
}

func (c *comparison) add(t *testing.T, name string, out *mlx.Array) {
	t.Helper()
	expected := c.want[name]
	if expected == nil {
		t.Fatalf("the reference has no %s", name)
	}
	found := samples(out)
	if len(found) != expected.Size() {
		t.Fatalf("%s has the shape %v, whose samples are %d, expected %d", name, out.Shape(), len(found), expected.Size())
	}
	c.order, c.differences[name] = append(c.order, name), off(found, expected.Floats())
}

// first returns the first module that differs, "" without one.
func (c *comparison) first() string {
	for _, name := range c.order {
		if !(c.differences[name] < tolerance) {
			return name
		}
	}
	return ""
}

// runTransformer runs a transformer of the reference with a hook that may be nil.
func runTransformer(t *testing.T, name string, fault hooks.Func) *comparison {
	t.Helper()
	m, points := seedTransformer(name), &hooks.Points{}
	nn.Bind(m, "transformer", points)
	c := &comparison{want: recorded(t, "seedvr2-"+name)}
	points.Func = c.watch(t, fault)
	in := signed(0, 1, 9, 16, 24)
	s, err := m.Sequence(16, 24, 5)
	if err != nil {
		t.Fatal(err)
	}
	m.Forward(in.Slice(1, 0, 4), in.Slice(1, 4, 8), signed(1, 1, 5, 24), 1000, s, nil)
	return c
}

// check reports modules that differ from the reference, and those that either lacks.
func (c *comparison) check(t *testing.T, name string) {
	t.Helper()
	worst := 0.0
	for _, module := range c.order {
		if worst = max(worst, c.differences[module]); !(c.differences[module] < tolerance) {
			t.Errorf("%s: %s is off by %.2g", name, module, c.differences[module])
		}
	}
	for _, module := range slices.Sorted(maps.Keys(c.want)) {
		if !slices.Contains(c.order, module) {
			t.Errorf("%s: %s was not compared", name, module)
		}
	}
	t.Logf("%s: %d outputs, off by %.2g at most", name, len(c.order), worst)
}

// TestSeedVR2Transformer compares the output of every module with the makers' code.
func TestSeedVR2Transformer(t *testing.T) {
	mlxtest.Do(t, func() {
		for _, name := range []string{"3b", "7b"} {
			runTransformer(t, name, nil).check(t, name)
		}
	})
}

// TestSeedVR2Autoencoder compares the output of every module of the autoencoder, which computes in 2-D, with the makers' code,
// which computes in 3-D.
func TestSeedVR2Autoencoder(t *testing.T) {
	mlxtest.Do(t, func() {
		m, points := seedVAE(), &hooks.Points{}
		nn.Bind(m, "vae", points)
		c := &comparison{want: recorded(t, "seedvr2-vae")}
		points.Func = c.watch(t, nil)
		image, latents := signed(0, 1, 3, 48, 80), signed(0, 1, 4, 6, 10)
		encoded, decoded := m.Encode(image), m.Decode(latents)
		c.add(t, "latents", encoded)
		c.add(t, "image", decoded)
		c.check(t, "autoencoder")
		points.Func = nil
		m.SetBudget(1) // in strips of one row
		for name, pair := range map[string][2]*mlx.Array{"latents": {encoded, m.Encode(image)}, "image": {decoded, m.Decode(latents)}} {
			if d := off(pair[1].Contiguous().Floats(), pair[0].Contiguous().Floats()); !(d < 2e-6) {
				t.Errorf("%s in strips: off by %.2g", name, d)
			}
		}
	})
}

// TestSeedVR2Image compares whole images with the makers' pipeline.
func TestSeedVR2Image(t *testing.T) {
	mlxtest.Do(t, func() {
		want := recorded(t, "seedvr2-image")
		for _, name := range []string{"3b", "7b"} {
			m := &SeedVR2{Transformer: seedTransformer(name), VAE: seedVAE(), Text: signed(1, 1, 5, 24)}
			image := signed(0, 1, 3, 8*16, 8*24)
			blocks := 0
			latents, err := m.Step(m.Latents(image), signed(2, 1, 4, 16, 24), func(n int) { blocks = n })
			if err != nil || blocks != m.Transformer.Config.NumLayers {
				t.Fatalf("%d blocks: %v", blocks, err)
			}
			for key, found := range map[string]*mlx.Array{
				name: m.VAE.Decode(m.VAE.Unscale(latents)), name + ", colours of the image": m.Image(latents, image),
			} {
				if d := off(samples(found), want[key].Floats()); !(d < tolerance) {
					t.Errorf("%s: off by %.2g", key, d)
				} else {
					t.Logf("%s: off by %.2g", key, d)
				}
			}
		}
	})
}

// tensorNames lists the tensors of a file.
func tensorNames(name string) ([]string, error) {
	f, err := checkpoint.Open(checkpoint.Folder{FS: os.DirFS(filepath.Dir(name)), Name: filepath.Dir(name)}, filepath.Base(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return slices.Collect(maps.Keys(f.Header.Tensors)), nil
}
