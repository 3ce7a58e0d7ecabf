package models

import (
	"bytes"
	"fmt"
	"image"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestStepCache checks for every network that a step cache that leaves out nothing changes nothing,
// and that one that leaves out steps does not run the second block in them.
func TestStepCache(t *testing.T) {
	type run struct {
		modeltest.Model
		scheduler string
	}
	runs := []run{{modeltest.Models[0], "flow_match_heun_discrete"}}
	for _, m := range randtest.Some(3, modeltest.Networks()) {
		runs = append(runs, run{Model: m})
	}
	for _, c := range runs {
		t.Run(c.Name+" "+c.scheduler, func(t *testing.T) {
			fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", c.Name, "model"))
			if err != nil {
				t.Fatal(err)
			}
			g := readGolden(t, filepath.Join("testdata", c.Name, "dump", "settings.json")) // for its size
			mlxtest.Do(t, func() {
				p, err := Load(fsys, LoadOptions{Dtype: new(mlx.Float32)})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				r := Request{
					Prompt: "a red circle", NegativePrompt: "blurry", Steps: 12, Seed: 3, Guidance: c.Guidance,
					Height: g.Height, Width: g.Width, MaxSequenceLength: min(g.MaxSequenceLength, 64), Scheduler: c.scheduler,
					Inpaint: p.LeastInpaint(gradient(80, 64)),
				}
				for i := range c.References {
					r.References = append(r.References, gradient(80, 64+8*i))
				}
				generate := func(rule string) *Result {
					r.StepCache = rule
					result, err := p.Generate(r)
					if err != nil {
						t.Fatal(err)
					}
					return result
				}
				plain := generate("")
				easy := generate("easy:1e-9")
				if !bytes.Equal(plain.Image.Pix, easy.Image.Pix) || len(easy.Skipped)+len(easy.SkippedNegative) > 0 {
					t.Errorf("easy:1e-9 skips steps %v and %v, or changes the image", easy.Skipped, easy.SkippedNegative)
				}
				if easy = generate("easy:0.999"); len(easy.Skipped) == 0 || bytes.Equal(plain.Image.Pix, easy.Image.Pix) {
					t.Errorf("easy:0.999 skips steps %v, and does not change the image", easy.Skipped)
				}
				none := generate("first-block:1e-9")
				if !bytes.Equal(plain.Image.Pix, none.Image.Pix) || len(none.Skipped)+len(none.SkippedNegative) > 0 {
					t.Errorf("a threshold of 1e-9 skips steps %v and %v, or changes the image", none.Skipped, none.SkippedNegative)
				}
				most := generate("first-block:0.999")
				if len(most.Skipped) == 0 || bytes.Equal(plain.Image.Pix, most.Image.Pix) {
					t.Errorf("a threshold of 0.999 skips steps %v, and does not change the image", most.Skipped)
				}

				second, whole := 0, 0
				r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
					if tap.Name == "transformer" {
						whole++
					}
					for _, name := range []string{"transformer.layers.1", "transformer.transformer_blocks.1",
						"transformer.single_transformer_blocks.0"} {
						if tap.Name == name && tap.Inputs != nil { // once in a call
							second++
						}
					}
					return nil, nil
				}
				generate("")
				complete := whole
				whole, second = 0, 0
				again := generate("easy:0.999")
				if skipped := len(easy.Skipped) + len(easy.SkippedNegative); !sameImage(again.Image.Pix, easy.Image.Pix) ||
					complete-whole != skipped {
					t.Errorf("the model ran %d times instead of %d, and %d predictions used the cache", whole, complete, skipped)
				}
				whole, second = 0, 0
				hooked := generate("first-block:0.999")
				if !sameImage(hooked.Image.Pix, most.Image.Pix) || !slices.Equal(hooked.Skipped, most.Skipped) {
					t.Errorf("with a hook, steps %v are skipped instead of %v, or the image is another one", hooked.Skipped, most.Skipped)
				}
				if skipped := len(most.Skipped) + len(most.SkippedNegative); whole-second != skipped {
					t.Errorf("the second block ran %d times in %d passes, of which %d used the cache", second, whole, skipped)
				}
			})
		})
	}
}

// gradient returns an image without equal areas.
func gradient(width, height int) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = uint8(i * 7 / (1 + i%5))
	}
	return img
}

// TestStepCacheBatch: all images of a batch use the cache in the same steps.
func TestStepCacheBatch(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{Prompt: "a red circle", Height: 16, Width: 24, Steps: 12, MaxSequenceLength: 64, StepCache: "first-block:0.999"}
		run, err := p.Prepare(r, 2)
		if err != nil {
			t.Fatal(err)
		}
		results, err := run.Generate([]uint64{5, 6})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := results[0].Skipped, results[1].Skipped; len(a) == 0 || !slices.Equal(a, b) {
			t.Errorf("steps %v and %v", a, b)
		}
		if run.stepCaches != nil {
			t.Error("step caches are not freed")
		}
	})
}

func TestStepCacheRefused(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		for _, c := range []struct {
			rule     string
			steps    int
			strength float64
			want     string
		}{
			{"first-block:0.1", 11, 0, "step cache first-block:0.1: needs at least 12 steps, and 11 run"},
			{"first-block:0.1", 20, 0.5, "step cache first-block:0.1: needs at least 12 steps, and 10 run"},
			{"last-block:0.1", 20, 0, `step cache "last-block:0.1": unknown rule "last-block"`},
			{"first-block:1", 20, 0, `step cache "first-block:1": the threshold of first-block must be a number above 0 and below 1`},
			{"first-block:0.1", 20, 0.4, ""},
		} {
			r := Request{Prompt: "x", Height: 16, Width: 24, Steps: c.steps, MaxSequenceLength: 64, StepCache: c.rule}
			if c.strength > 0 {
				r.Image, r.ImageStrength = gradient(24, 16), c.strength
			}
			if err := p.Check(r); c.want == "" && err != nil || c.want != "" && !strings.HasPrefix(fmt.Sprint(err), c.want) {
				t.Errorf("%s, %d steps: %v, expected %q", c.rule, c.steps, err, c.want)
			}
		}
	})
}

// TestStepCacheEstimate: the estimate has two arrays of hidden states more for each prompt.
func TestStepCacheEstimate(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{Prompt: "x", Height: 64, Width: 64, Steps: 12, MaxSequenceLength: 64}
		step := func(rule string, guidance float64) int64 {
			r.StepCache, r.Guidance = rule, guidance
			run, err := p.Prepare(r, 1)
			if err != nil {
				t.Fatal(err)
			}
			return run.Estimate().Step
		}
		one := step("first-block:0.1", 0) - step("", 0)
		two := step("first-block:0.1", 3) - step("", 3)
		if one <= 0 || two < one*3/2 {
			t.Errorf("%d bytes, with guidance %d", one, two)
		}
	})
}
