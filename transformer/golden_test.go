package transformer_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Goldens from testdata/make.py: small random models, and diffusers' outputs for them in
// float32.

type golden struct {
	Config     json.RawMessage  `json:"config"`
	Kind       string           `json:"kind"`
	Norms      *float32         `json:"norms"` // mean of the weights of norms, 1 if it is nil
	Parameters map[string][]int `json:"parameters"`
	Cases      []goldenCase     `json:"cases"`
}

type goldenCase struct {
	Batch      int                  `json:"batch"`
	Texts      int                  `json:"texts"` // 1 for the same text in the whole batch
	Height     int                  `json:"height"`
	Width      int                  `json:"width"`
	Text       int                  `json:"text"` // tokens
	Timestep   float32              `json:"timestep"`
	Guidance   float32              `json:"guidance"`
	Prompt     string               `json:"prompt"` // of Qwen-Image-2.1: i is an image slot
	References [][2]int             `json:"references"`
	TextScale  float64              `json:"text_scale"` // scale of the prompt embeddings, for Qwen-Image
	KV         bool                 `json:"kv"`         // two outputs: of the step that fills the KV cache and of a later step
	Outputs    []values             `json:"outputs"`
	Taps       map[string]goldenTap `json:"taps"`
}

type goldenTap struct {
	Shape   []int     `json:"shape"`
	Largest float64   `json:"largest"`
	Samples []float64 `json:"samples"`
}

// values are float32 in base64.
type values []float32

func (v *values) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.DecodeString(string(text))
	for ; len(data) >= 4; data = data[4:] {
		*v = append(*v, math.Float32frombits(binary.LittleEndian.Uint32(data)))
	}
	return err
}

func (c goldenCase) String() string {
	return fmt.Sprintf("batch %d of %d texts, %dx%d, %d tokens, time %v, guidance %v, references %v, kv %v",
		c.Batch, c.Texts, c.Height, c.Width, c.Text, c.Timestep, c.Guidance, c.References, c.KV)
}

// time returns the timestep that pipelines pass.
func (c goldenCase) time() float32 { return c.Timestep / 1000 }

func readGoldens(t testing.TB, file string) (out []golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// configOf returns the config of a golden's model, with the defaults of its class.
func configOf[C any, P interface {
	*C
	Validate() error
}](t testing.TB, g golden, c C) C {
	t.Helper()
	if err := json.Unmarshal(g.Config, &c); err != nil {
		t.Fatal(err)
	}
	if err := P(&c).Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// bound returns a golden's model, bound to hooks, with its parameters in dtype.
func bound[M any](t testing.TB, g golden, m M, dtype mlx.Dtype) (M, *hooks.Points) {
	t.Helper()
	points := &hooks.Points{}
	nn.Bind(m, "transformer", points)
	g.fill(t, m, dtype)
	return m, points
}

// numbers is the function of this name in make.py.
func numbers(name string, n int) []float32 {
	seed := uint64(0xcbf29ce484222325)
	for _, b := range []byte(name) {
		seed = (seed ^ uint64(b)) * 0x100000001b3
	}
	out := make([]float32, n)
	for i := range out {
		z := seed + uint64(i+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		out[i] = float32(z>>40)/(1<<23) - 1
	}
	return out
}

// input is the function inputs in make.py.
func input(name string, shape ...int) *mlx.Array {
	v := numbers(name, size(shape))
	for i := range v {
		v[i] *= 1.7
	}
	return mlx.FromFloat32(v, shape...)
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// parameter is the function of this name in make.py.
func parameter(name string, shape []int, kind string, norms float32) *mlx.Array {
	v := numbers(name, size(shape))
	scale, offset := 0.17, float32(0)
	isNorm := len(shape) == 1 && !strings.HasSuffix(name, ".bias")
	switch {
	case isNorm:
		scale, offset = 0.35, norms
	case len(shape) > 1:
		scale = math.Sqrt(3 / float64(shape[1]))
	}
	if !isNorm && kind == "small" {
		for _, part := range []string{"x_embedder", ".patch_embed.", "context_embedder", ".img_in.", ".txt_in.", ".to_q.", ".to_k.",
			".add_q_proj.", ".add_k_proj."} {
			if strings.Contains("."+name, part) {
				scale *= 0.03
				break
			}
		}
	}
	for i := range v {
		v[i] = float32(v[i]*float32(scale)) + offset
	}
	return mlx.FromFloat32(v, shape...)
}

// fill sets a model's parameters to the golden's. Model and golden must have the same ones.
func (g golden) fill(t testing.TB, model any, dtype mlx.Dtype) {
	t.Helper()
	missing, norms := maps.Clone(g.Parameters), float32(1)
	if g.Norms != nil {
		norms = *g.Norms
	}
	for _, p := range nn.Parameters(model) {
		if want := missing[p.Name]; !slices.Equal(want, p.Stored()) {
			t.Errorf("parameter %s: found %v, expected %v", p.Name, p.Stored(), want)
		}
		delete(missing, p.Name)
		p.Array = parameter(p.Name, p.Stored(), g.Kind, norms).AsType(dtype)
	}
	for name := range missing {
		t.Errorf("parameter %s is missing", name)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// off returns the largest difference of got and want, relative to the largest of want.
func off(got, want []float32) float64 {
	largest, worst := 0.0, 0.0
	for i, w := range want {
		largest = max(largest, math.Abs(float64(w)))
		if d := math.Abs(float64(got[i]) - float64(w)); !(d <= worst) {
			worst = d
		}
	}
	return worst / largest
}

// check compares outputs. A NaN in got fails.
func check(t testing.TB, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: found %d values, expected %d", what, len(got), len(want))
	}
	if d := off(got, want); !(d <= tolerance) {
		t.Errorf("%s: off by %.2g of the largest, allowed %.2g", what, d, tolerance)
	} else {
		t.Logf("%s: off by %.2g", what, d)
	}
}

// tolerance returns the allowed difference between two implementations in float32, relative
// to the largest value. It is larger for norms of small activations.
func (g golden) tolerance() float64 {
	if g.Kind == "small" {
		return 5e-6
	}
	return 2e-6
}

// observe makes points compare every tensor with the golden's taps. The returned function
// reports taps that did not occur.
func (c goldenCase) observe(t testing.TB, points *hooks.Points, tolerance float64) (finish func()) {
	seen := map[string]bool{}
	worst, at := 0.0, ""
	points.Func = func(tap hooks.Tap) (*mlx.Array, error) {
		for tap := range tap.All() {
			name := tap.FullName()
			seen[name] = true
			want, ok := c.Taps[name]
			if !ok {
				// the reference does not record inputs of attention that it rearranges
				if !c.KV && c.Prompt == "" || !strings.HasSuffix(name, ".unrotated") {
					t.Errorf("%s: not in the reference", name)
				}
				continue
			}
			if shape := tap.Output.Shape(); !slices.Equal(shape, want.Shape) {
				t.Errorf("%s: found the shape %v, expected %v", name, shape, want.Shape)
				continue
			}
			got := tap.Output.AsType(mlx.Float32).Floats()
			scale := max(want.Largest, math.SmallestNonzeroFloat32) // zeros are exact
			for i, w := range want.Samples {
				v := float64(got[(uint64(i)*2654435761+12345)%uint64(len(got))])
				if d := math.Abs(v-w) / scale; !(d <= worst) {
					worst, at = d, name
				}
			}
			largest := 0.0
			for _, v := range got {
				largest = max(largest, math.Abs(float64(v)))
			}
			if !(math.Abs(largest-want.Largest) <= 1e-3*want.Largest) {
				t.Errorf("%s: the largest magnitude is %v, expected %v", name, largest, want.Largest)
			}
		}
		return nil, nil
	}
	return func() {
		points.Func = nil
		if !(worst <= tolerance) {
			t.Errorf("%s: off by %.2g of the largest, allowed %.2g", at, worst, tolerance)
		}
		t.Logf("%d tensors of %d, off by %.2g at most (%s)", len(seen), len(c.Taps), worst, at)
		for _, name := range slices.Sorted(maps.Keys(c.Taps)) {
			if !seen[name] && !referenceOnly.MatchString(name) {
				t.Errorf("%s: not seen", name)
			}
		}
	}
}

// referenceOnly lists inputs that only the reference's modules have: times, guidance
// scale and masks of no padding themselves. Our models get their sinusoids.
var referenceOnly = regexp.MustCompile(
	`:in\.(timestep|guidance|padding_mask)$|time_proj@.*:in\.0$|time_((text|guidance)_)?embed@[^:]*:in\.[01]$`)
