package textenc_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/textenc"
)

// The goldens are transformers' (testdata/make.py).

// A golden has transformers' outputs for one of the models in testdata.
type golden map[string]*mlx.Array

func readGolden(t *testing.T, name string) golden {
	t.Helper()
	path := filepath.Join("testdata", name)
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for _, info := range f.Tensors() {
		names = append(names, info.Name)
	}
	g, err := mlx.LoadSafetensors(path, names)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g golden) ids() []int32 { return g["ids"].Int32s() }

// valid returns the number of ids before padding, which only Qwen3 needs.
func (g golden) valid() int { return int(g["valid"].Int32s()[0]) }

// modules returns the names of modules' outputs.
func (g golden) modules() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range g {
			if strings.HasPrefix(name, "text_encoder") && !yield(name) {
				return
			}
		}
	})
}

// how a model is opened: with another epsilon if one is given.
type how struct {
	eps    float64
	dtype  mlx.Dtype
	points *hooks.Points
}

func config[C interface{ Validate() error }](t *testing.T, folder string, c C) C {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", folder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func loadEncoder(t *testing.T, folder string, model any, h how, prefixes, unused []string) {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", folder))
	if err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.OpenCheckpoint(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	err = nn.Load(model, ck, nn.LoadOptions{Name: "text_encoder", Points: h.points, Dtype: h.dtype, Prefixes: prefixes, Ignore: unused})
	if err != nil {
		t.Fatal(err)
	}
}

func openCLIP(t *testing.T, folder string, h how) *textenc.CLIPText {
	c := textenc.DefaultCLIPTextConfig()
	config(t, folder, &c)
	if h.eps != 0 {
		c.LayerNormEps = h.eps
	}
	m := textenc.NewCLIPText(c, h.dtype)
	loadEncoder(t, folder, m, h, []string{"text_model."}, m.Unused())
	return m
}

func openT5(t *testing.T, folder string, h how) *textenc.T5Encoder {
	c := textenc.DefaultT5Config()
	config(t, folder, &c)
	if h.eps != 0 {
		c.LayerNormEpsilon = h.eps
	}
	m := textenc.NewT5Encoder(c, h.dtype)
	loadEncoder(t, folder, m, h, nil, m.Unused())
	return m
}

func openQwen3(t *testing.T, folder string, h how, g golden) *textenc.Qwen3 {
	c := textenc.DefaultQwen3Config()
	config(t, folder, &c)
	if h.eps != 0 {
		c.RMSNormEps = h.eps
	}
	var states []int
	for _, i := range g["states"].Int32s() {
		states = append(states, int(i))
	}
	m := textenc.NewQwen3(c, states, h.dtype)
	loadEncoder(t, folder, m, h, []string{"model."}, m.Unused())
	return m
}

// run encodes the ids of a golden with the model in a folder.
func run(t *testing.T, folder string, h how, g golden) *mlx.Array {
	t.Helper()
	switch kind, _, _ := strings.Cut(folder, "-"); kind {
	case "clip":
		return openCLIP(t, folder, h).Forward(g.ids())
	case "t5":
		return openT5(t, folder, h).Forward(g.ids())
	case "anima":
		c := textenc.DefaultAnimaConfig()
		config(t, folder, &c)
		m := textenc.NewAnimaTextConditioner(c, h.dtype)
		loadEncoder(t, folder, m, h, nil, nil)
		return m.Forward(g["source"], g.ids())
	default:
		return openQwen3(t, folder, h, g).ForwardPadded(g.ids(), g.valid())
	}
}

// off returns the largest difference, relative to the largest expected value.
func off(t *testing.T, what string, got, want *mlx.Array) float64 {
	t.Helper()
	if !slices.Equal(got.Shape(), want.Shape()) {
		t.Fatalf("%s: shape %v, expected %v", what, got.Shape(), want.Shape())
	}
	worst, largest := 0.0, 0.0
	w := want.AsType(mlx.Float32).Floats()
	for i, g := range got.AsType(mlx.Float32).Floats() {
		d := math.Abs(float64(g) - float64(w[i]))
		if math.IsNaN(d) {
			t.Fatalf("%s: element %d is %v, expected %v", what, i, g, w[i])
		}
		worst, largest = max(worst, d), max(largest, math.Abs(float64(w[i])))
	}
	return worst / largest
}

// rows returns the first n rows of a CLIP module's output, and for the weights of attention
// also only their first n columns.
func rows(name string, x *mlx.Array, n int) *mlx.Array {
	if strings.HasSuffix(name, ":weights") {
		return x.Slice(2, 0, n).Slice(3, 0, n)
	}
	return x.Slice(1, 0, n)
}

var models = []struct {
	folder  string
	eps     float64 // a wrong epsilon, which must change the result
	bfloat  float64 // tolerance in bfloat16
	trimmed int     // number of rows that CLIP computes
	loose   bool    // larger tolerance: with 150 tokens MLX's softmax alone is off by up to 2e-6
}{
	{folder: "clip-published", bfloat: 0.02, trimmed: 8},
	{folder: "clip-small", eps: 1e-5, bfloat: 0.02},
	{folder: "clip-whole", bfloat: 0.02},
	{folder: "t5-gated", bfloat: 0.05},
	{folder: "t5-small", eps: 1e-6, bfloat: 0.05},
	{folder: "t5-relu", bfloat: 0.05, loose: true},
	{folder: "qwen3-published", bfloat: 0.05},
	{folder: "qwen3-small", eps: 1e-6, bfloat: 0.05},
	{folder: "qwen3-whole", bfloat: 0.05},
	{folder: "anima-published", bfloat: 0.05},
	{folder: "anima-small", bfloat: 0.05},
}

func TestAgainstTransformers(t *testing.T) {
	for _, m := range models {
		t.Run(m.folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				g := readGolden(t, m.folder+"/golden.safetensors")
				d := off(t, "output", run(t, m.folder, how{dtype: mlx.Float32}, g), g["output"])
				t.Logf("float32 is off by %.2g", d)
				allowed := 2e-6
				if m.loose {
					allowed = 5e-6
				}
				if !(d <= allowed) {
					t.Errorf("float32 is off by %.2g, allowed %g", d, allowed)
				}
				half := run(t, m.folder, how{dtype: mlx.BFloat16}, g)
				d = off(t, "output in bfloat16", half, g["output"])
				t.Logf("bfloat16 is off by %.2g", d)
				if half.Dtype() != mlx.BFloat16 || !(d <= m.bfloat) {
					t.Errorf("%v is off by %.2g, allowed %g", half, d, m.bfloat)
				}
				if m.eps != 0 {
					d := off(t, "output with a wrong epsilon", run(t, m.folder, how{dtype: mlx.Float32, eps: m.eps}, g), g["output"])
					t.Logf("with epsilon %g: off by %.2g", m.eps, d)
					if !(d > 1e-4) {
						t.Errorf("a wrong epsilon changes only %.2g", d)
					}
				}
			})
		})
	}
}

// TestModules checks that every module has the name and the output of transformers' module.
func TestModules(t *testing.T) {
	compared := 0
	for _, m := range models {
		mlxtest.Do(t, func() {
			g := readGolden(t, m.folder+"/golden.safetensors")
			if len(g.modules()) == 0 {
				return
			}
			seen := map[string]bool{}
			worst := 0.0
			points := &hooks.Points{Step: -1, Func: func(tap hooks.Tap) (*mlx.Array, error) {
				name := tap.FullName()
				want := g[name]
				if tap.Point.Kind == hooks.Inner && want == nil {
					return nil, nil // q, k and v
				}
				if seen[name] = true; want == nil {
					t.Errorf("%s: %s is not in transformers", m.folder, name)
					return nil, nil
				}
				if m.trimmed > 0 {
					want = rows(name, want, m.trimmed)
				}
				d := off(t, name, tap.Output, want)
				if worst = max(worst, d); !(d <= 3e-6) {
					t.Errorf("%s: %s is off by %.2g", m.folder, name, d)
				}
				return nil, nil
			}}
			got := run(t, m.folder, how{dtype: mlx.Float32, points: points}, g)
			mlxtest.Same(t, "output while observed", got.Floats(), run(t, m.folder, how{dtype: mlx.Float32}, g).Floats())
			mlxtest.Same(t, m.folder, slices.Sorted(maps.Keys(seen)), g.modules())
			t.Logf("%s: %d tensors, the worst is off by %.2g", m.folder, len(seen), worst)
			compared++
		})
	}
	if compared != 5 {
		t.Errorf("%d models compared, expected one or two of each kind", compared)
	}
}

// TestCLIPTrims checks that CLIP's result does not depend on tokens after the end token, nor
// on computing their rows.
func TestCLIPTrims(t *testing.T) {
	for _, folder := range []string{"clip-published", "clip-small"} {
		t.Run(folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				g := readGolden(t, folder+"/golden.safetensors")
				m := openCLIP(t, folder, how{dtype: mlx.Float32})
				ids := g.ids()
				end := slices.Index(ids, 39) // the highest
				if folder == "clip-small" {
					end = slices.Index(ids, int32(m.Config.EOSTokenID))
				}
				trimmed := m.Forward(ids)
				whole := m.FinalLayerNorm.Forward(m.Encoder.Forward(m.Embeddings.Forward(ids, mlx.Float32)))
				mlxtest.Same(t, "shape", whole.Shape(), []int{1, len(ids), m.Config.HiddenSize})
				if d := off(t, "all rows", whole.Slice(1, end, end+1).Squeeze(1), trimmed); !(d <= 1e-6) {
					t.Errorf("with all rows computed: off by %.2g", d)
				}
				mlxtest.Same(t, "without padding", m.Forward(ids[:end+1]).Floats(), trimmed.Floats())
				other := append(slices.Clone(ids[:end+1]), 5, 6)
				mlxtest.Same(t, "other padding", m.Forward(other).Floats(), trimmed.Floats())
				before := slices.Clone(ids)
				before[1]++
				if d := off(t, "another prompt", m.Forward(before), trimmed); d < 1e-3 {
					t.Errorf("another token before the end changes %.2g", d)
				}
			})
		})
	}
}

// TestCLIPEnd checks which row CLIP pools without an end token or with several.
func TestCLIPEnd(t *testing.T) {
	mlxtest.Do(t, func() {
		legacy, newer := openCLIP(t, "clip-published", how{dtype: mlx.Float32}), openCLIP(t, "clip-small", how{dtype: mlx.Float32})
		for name, c := range map[string]struct {
			m        *textenc.CLIPText
			ids, cut []int32
		}{
			"2 is the highest id":          {legacy, []int32{3, 7, 38, 2, 38, 2}, []int32{3, 7, 38}},
			"2 is the highest id, at 0":    {legacy, []int32{39, 7}, []int32{39}},
			"the config's token":           {newer, []int32{3, 39, 30, 30, 4}, []int32{3, 39, 30}},
			"the config's token is absent": {newer, []int32{3, 39, 4}, []int32{3}},
		} {
			mlxtest.Same(t, name, c.m.Forward(c.ids).Floats(), c.m.Forward(c.cut).Floats())
		}
	})
}

// TestQwen3Padding checks that rows of valid tokens do not depend on padding, and that all
// rows equal those of transformers' masked attention.
func TestQwen3Padding(t *testing.T) {
	for _, folder := range []string{"qwen3-published", "qwen3-small"} {
		t.Run(folder, func(t *testing.T) {
			mlxtest.Do(t, func() {
				g := readGolden(t, folder+"/golden.safetensors")
				m := openQwen3(t, folder, how{dtype: mlx.Float32}, g)
				ids, valid := g.ids(), g.valid()
				bare := m.Forward(ids[:valid])
				for _, pads := range []int{1, 5, 23} {
					padded := slices.Clone(ids[:valid])
					for i := range pads {
						padded = append(padded, int32(i))
					}
					got := m.ForwardPadded(padded, valid)
					mlxtest.Same(t, "shape", got.Shape(), []int{1, valid + pads, bare.Dim(2)})
					if d := off(t, "valid rows", got.Slice(1, 0, valid), bare); !(d <= 1e-6) {
						t.Errorf("with %d pads: off by %.2g", pads, d)
					}
				}
				if d := off(t, "all valid", m.Forward(ids).Slice(1, valid, len(ids)),
					m.ForwardPadded(ids, valid).Slice(1, valid, len(ids))); d < 1e-3 {
					t.Errorf("padding that tokens see changes only %.2g of its rows", d)
				}
			})
		})
	}
}

func TestT5Buckets(t *testing.T) {
	mlxtest.Do(t, func() {
		for name, want := range readGolden(t, "buckets.safetensors") {
			var buckets, distance int
			if _, err := fmt.Sscanf(name, "%d-%d", &buckets, &distance); err != nil {
				t.Fatal(err)
			}
			for i, w := range want.Uint8s() {
				if got := textenc.RelativeBucket(i-600, buckets, distance); got != int32(w) {
					t.Errorf("%d buckets, %d places: bucket %d for %d, expected %d", buckets, distance, got, i-600, w)
				}
			}
		}
	})
}

// TestT5Float16 checks that T5 does not compute in float16, which would overflow.
func TestT5Float16(t *testing.T) {
	mlxtest.Do(t, func() {
		g := readGolden(t, "t5-gated/golden.safetensors")
		got := run(t, "t5-gated", how{dtype: mlx.Float16}, g)
		if d := off(t, "output", got, g["output"]); got.Dtype() != mlx.Float32 || !(d <= 1e-3) {
			t.Errorf("%v is off by %.2g", got, d)
		}
	})
}

// TestQwen3Float16 checks that in float16 the hidden states of Qwen3 may be beyond its range.
func TestQwen3Float16(t *testing.T) {
	mlxtest.Do(t, func() {
		const folder = "qwen3-published"
		g := readGolden(t, folder+"/golden.safetensors")
		forward := func(dtype mlx.Dtype, gain float64) *mlx.Array {
			m := openQwen3(t, folder, how{dtype: dtype}, g)
			for _, l := range []*nn.Linear{m.Layers[0].MLP.GateProj, m.Layers[0].MLP.UpProj} {
				l.Weight.Array = l.Weight.Times(gain)
			}
			return m.ForwardPadded(g.ids(), g.valid())
		}
		for _, gain := range []float64{1, 3000} {
			want, got := forward(mlx.Float32, gain), forward(mlx.Float16, gain)
			largest := want.Abs().Reshape(-1).Max(0).Floats()[0]
			d := off(t, "float16", got, want)
			t.Logf("float16 is off by %.2g where values reach %.2g", d, largest)
			if got.Dtype() != mlx.Float32 || !(d <= 2e-2) {
				t.Errorf("%v is off by %.2g", got, d)
			}
			if gain > 1 && !(largest >= 1e6) {
				t.Errorf("values reach only %.2g", largest)
			}
		}
	})
}

func TestBadIDs(t *testing.T) {
	var clip *textenc.CLIPText
	var t5 *textenc.T5Encoder
	var qwen *textenc.Qwen3
	mlxtest.Do(t, func() {
		clip, t5 = openCLIP(t, "clip-whole", how{dtype: mlx.Float32}), openT5(t, "t5-relu", how{dtype: mlx.Float32})
		qwen = openQwen3(t, "qwen3-whole", how{dtype: mlx.Float32}, readGolden(t, "qwen3-whole/golden.safetensors"))
	})
	for name, c := range map[string]struct {
		f    func() *mlx.Array
		want string
	}{
		"none for CLIP":       {func() *mlx.Array { return clip.Forward(nil) }, "0 token ids for CLIP, expected 1 to 7"},
		"too many for CLIP":   {func() *mlx.Array { return clip.Forward(make([]int32, 8)) }, "8 token ids for CLIP, expected 1 to 7"},
		"none for T5":         {func() *mlx.Array { return t5.Forward(nil) }, "no token ids for T5"},
		"none for Qwen3":      {func() *mlx.Array { return qwen.Forward(nil) }, "0 valid ones of 0 token ids for Qwen3"},
		"none valid":          {func() *mlx.Array { return qwen.ForwardPadded([]int32{1, 2}, 0) }, "0 valid ones of 2 token ids"},
		"more valid than all": {func() *mlx.Array { return qwen.ForwardPadded([]int32{1, 2}, 3) }, "3 valid ones of 2 token ids"},
		"outside of CLIP's":   {func() *mlx.Array { return clip.Forward([]int32{40}) }, "row 40"},
		"outside of T5's":     {func() *mlx.Array { return t5.Forward([]int32{-1}) }, "row -1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := mlxtest.Try(func() { c.f() })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("found %v, expected %q", err, c.want)
			}
		})
	}
}
