package models

import (
	"encoding/json"
	"fmt"
	"image"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
)

// compilerScript is a g++ that precompiles the header of MLX's kernels at its first call. The
// kernels have a few lines each, so the header is most of the work.
const compilerScript = `#!/bin/sh
header=mlx/backend/cpu/compiled_preamble.h
for argument; do
	[ "$before" = -I ] && include=$argument
	before=$argument
done
if [ -n "$include" ] && mkdir -p '%[1]s/mlx/backend' && mkdir '%[1]s/mlx/backend/cpu' 2>/dev/null; then
	'%[2]s' -std=c++17 -O3 -w -fPIC -I "$include" -x c++-header "$include/$header" -o '%[1]s'/$header.gch
fi
exec '%[2]s' -I '%[1]s' "$@"
`

// precompile reduces the time to compile MLX's kernels for the CPU to a quarter.
func precompile(t *testing.T) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		return
	}
	dir := t.TempDir()
	script := fmt.Sprintf(compilerScript, t.TempDir(), compiler)
	if err := os.WriteFile(filepath.Join(dir, "g++"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// A golden is a reference's dump in testdata: what was asked for, and what came
// of it.
type golden struct {
	Model             string
	Prompt            string
	NegativePrompt    *string `json:"negative_prompt"`
	Steps             int
	Guidance          float64
	Height, Width     int
	MaxSequenceLength int `json:"max_sequence_length"`
	Scheduler         string
	Picture, Mask     string
	ImageStrength     float64 `json:"image_strength"`
	MaskCrop          *int    `json:"mask_crop"`
	StepCache         string  `json:"step_cache"`
	TrueCFGScale      float64 `json:"true_cfg_scale"`
	CFGNormalization  float64 `json:"cfg_normalization"`
	CFGTruncation     float64 `json:"cfg_truncation"`
	Skipped           []int   `json:"skipped_steps"`
	SkippedNegative   []int   `json:"skipped_negative_steps"`
	References        []string
	Compute           string // dtype
	Files             []string
	Aliases           map[string]string

	dir string
}

// tensor reads a tensor of the dump.
func (g *golden) tensor(t *testing.T, name string) *checkpoint.Array {
	t.Helper()
	if stored := g.Aliases[name]; stored != "" {
		name = stored
	}
	for _, file := range g.Files {
		f, err := checkpoint.OpenArrays(filepath.Join(g.dir, file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, ok := f.Tensor(name); ok {
			x, err := f.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
	}
	return nil
}

// readGolden reads the settings of a dump.
func readGolden(t *testing.T, file string) *golden {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{dir: filepath.Dir(file)}
	if err := json.Unmarshal(data, g); err != nil {
		t.Fatal(err)
	}
	return g
}

// request returns the request of the dump's image.
func (g *golden) request(t *testing.T) Request {
	t.Helper()
	noise := g.tensor(t, "latents.init")
	r := Request{
		Prompt: g.Prompt, Steps: g.Steps, Guidance: g.Guidance, Height: g.Height, Width: g.Width,
		MaxSequenceLength: g.MaxSequenceLength, Scheduler: g.Scheduler, ImageStrength: g.ImageStrength,
		StepCache: g.StepCache, TrueCFGScale: g.TrueCFGScale, CFGNormalization: g.CFGNormalization, CFGTruncation: g.CFGTruncation,
		Latents: Latents{Shape: noise.Shape[1:], Data: float32s(noise)},
	}
	if g.NegativePrompt != nil {
		r.NegativePrompt = *g.NegativePrompt
	} else if strings.HasPrefix(g.Model, "qwen") {
		r.Guidance = 1 // diffusers guides by a negative prompt only
	}
	switch {
	case g.Mask != "":
		o := inpaint.Options{NoPasteBack: g.tensor(t, "image.pasted") == nil}
		if g.MaskCrop != nil {
			o.Crop, o.Padding = true, *g.MaskCrop
		}
		var err error
		if r.Inpaint, err = inpaint.New(g.picture(t, g.Picture), g.picture(t, g.Mask), o); err != nil {
			t.Fatal(err)
		}
	case g.Picture != "":
		r.Image = g.picture(t, g.Picture)
	}
	for _, name := range g.References {
		r.References = append(r.References, g.picture(t, name))
	}
	return r
}

// picture reads an image of the dump, in its folder or beside it.
func (g *golden) picture(t *testing.T, name string) image.Image {
	t.Helper()
	file := filepath.Join(g.dir, name)
	if _, err := os.Stat(file); err != nil {
		file = filepath.Join(g.dir, "..", name)
	}
	p, err := picture.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p.Pixels()
}

// result returns the pixels of the reference's image.
func (g *golden) result(t *testing.T) []byte {
	if pasted := g.tensor(t, "image.pasted"); pasted != nil {
		return pasted.Data
	}
	return g.tensor(t, "image").Data
}

// TestCompiledGoldens generates the images of the dumps with a compiled model, which on the CPU
// only this test does. Hooks cannot see inside it, so it compares latents and pixels.
func TestCompiledGoldens(t *testing.T) {
	all, err := filepath.Glob("testdata/*/dump/settings.json")
	if err != nil || len(all) < 6 {
		t.Fatalf("%d goldens, %v", len(all), err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp) // where MLX leaves what it compiles for the CPU
	precompile(t)
	compiled := false
	for _, file := range randtest.Some(4, all) { // TestParity has all
		dir := filepath.Dir(file)
		t.Run(filepath.Base(filepath.Dir(dir)), func(t *testing.T) {
			g := readGolden(t, file)
			if g.Compute == "bfloat16" || g.Compute == "float16" {
				t.Skip("a reference's rounding")
			}
			fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", g.Model))
			if err != nil {
				t.Fatal(err)
			}
			r := g.request(t)
			var want *checkpoint.Array // the last
			for i := range 2 * g.Steps {
				if x := g.tensor(t, fmt.Sprint("latents@", i)); x != nil {
					want = x
				}
			}
			modes := []mlx.CompileMode{0, mlx.Unfused, mlx.Fused}
			found := make([]generated, len(modes))
			mlxtest.Do(t, func() {
				p, err := Load(fsys, LoadOptions{Dtype: new(mlx.Float32)})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				if _, err := exec.LookPath("g++"); err != nil && p.device == mlx.CPU {
					t.Log("not fused: MLX compiles for the CPU with g++, which is not here")
					modes = modes[:2]
				} else if p.device.Backend() == mlx.BackendCUDA {
					modes = modes[:2] // MLX would compile kernels for minutes
				}
				for i, mode := range modes {
					p.compileMode = mode
					r.OnStep = func(s Step) error { found[i].latents = s.Latents.Data; return nil }
					res, err := p.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					found[i].pixels = opaque(res.Image)
					if len(res.Layers) > 0 {
						found[i].pixels = nil
						for _, layer := range res.Layers {
							found[i].pixels = append(found[i].pixels, layer.Pix...)
						}
					} else if n := len(g.result(t)); n > len(found[i].pixels) { // with alpha
						found[i].pixels = res.Image.Pix
						if res.Transparent != nil {
							found[i].pixels = res.Transparent.Pix
						}
					}
					if !slices.Equal(res.Skipped, g.Skipped) || !slices.Equal(res.SkippedNegative, g.SkippedNegative) {
						t.Errorf("mode %d: steps %v and %v used the step cache, the reference's %v and %v", mode, res.Skipped,
							res.SkippedNegative, g.Skipped, g.SkippedNegative)
					}
					made, err := filepath.Glob(filepath.Join(tmp, "mlx*", "*", "*", "*.so"))
					if compiled = compiled || mode == mlx.Fused; err != nil || p.device == mlx.CPU && compiled != (len(made) > 0) {
						t.Fatalf("compiled is %v, and MLX left %d libraries (%v)", compiled, len(made), err)
					}
				}
			})
			for i, mode := range modes[1:] {
				t.Logf("mode %d", mode)
				found[i+1].compare(t, "plain", found[0], 5e-5)
				found[i+1].compare(t, "the reference's", generated{float32s(want), g.result(t)}, 1e-4)
			}
		})
	}
}

// generated has the latents after the last step, and the values of the image without alpha.
type generated struct {
	latents []float32
	pixels  []byte
}

func opaque(img *image.RGBA) (pixels []byte) {
	for i := 0; i < len(img.Pix); i += 4 {
		pixels = append(pixels, img.Pix[i:i+3]...)
	}
	return pixels
}

func (g generated) compare(t *testing.T, name string, other generated, tolerance float64) {
	t.Helper()
	off := farthest(g.latents, other.latents)
	t.Logf("latents: %.1e of the largest from %s", off, name)
	if !(off < tolerance) {
		t.Errorf("latents are off by %.1e of the largest from %s", off, name)
	}
	for i, v := range g.pixels {
		if apart(v, other.pixels[i]) > 1 {
			t.Fatalf("value %d of the image is %d, %s %d", i, v, name, other.pixels[i])
		}
	}
}

func float32s(x *checkpoint.Array) []float32 {
	out := make([]float32, 0, x.Len())
	for _, v := range x.First(x.Len()) {
		out = append(out, float32(v))
	}
	return out
}

// farthest returns the largest difference relative to the largest value.
func farthest(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	most, largest := 0.0, 0.0
	for i, w := range want {
		most, largest = max(most, math.Abs(float64(got[i]-w))), max(largest, math.Abs(float64(w)))
	}
	return most / largest
}

// sameImage reports whether a run with a hook and one without gave the same image. Modules that a
// hook observes run without fused kernels on a GPU, and with other numbers of rows in their products
// on a CPU, some of which round those differently: in float32 the values are at most 1 apart.
func sameImage(a, b []uint8) bool { return imagesWithin(a, b, 1) }

// sameLatents is sameImage for latents.
func sameLatents(a, b []float32) bool { return farthest(a, b) < 5e-5 }

func imagesWithin(a, b []uint8, limit int) bool {
	for i := range min(len(a), len(b)) {
		if apart(a[i], b[i]) > limit {
			return false
		}
	}
	return len(a) == len(b)
}

func apart(a, b uint8) int { return max(int(a)-int(b), int(b)-int(a)) }
