package models

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/scheduler"
)

// load loads the small model, on the MLX thread.
// load loads a small model in float32, so that tests find the same numbers on all devices.
func load(t *testing.T, defaults *family.Defaults) *Pipeline {
	t.Helper()
	fsys, err := checkpoint.OpenFolder(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(fsys, LoadOptions{Defaults: defaults, Dtype: new(mlx.Float32)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestSizeFor(t *testing.T) {
	tests := []struct {
		size          image.Point
		height, width int // given
		wantH, wantW  int
	}{
		{image.Pt(40, 24), 0, 0, 24, 40},
		{image.Pt(47, 31), 0, 0, 24, 40}, // rounded down
		{image.Pt(48, 32), 0, 0, 32, 48},
		{image.Pt(128, 128), 0, 0, 128, 128}, // four times the area of the defaults
		{image.Pt(256, 256), 0, 0, 128, 128}, // no more
		{image.Pt(129, 128), 0, 0, 120, 128},
		{image.Pt(512, 128), 0, 0, 64, 256},
		{image.Pt(100, 400), 0, 0, 256, 64},
		{image.Pt(65, 260), 0, 0, 256, 64}, // 64 and 256, but for the rounding of the root
		{image.Pt(1, 1), 0, 0, 8, 8},       // the smallest there is
		{image.Pt(7, 30), 0, 0, 24, 8},
		{image.Pt(47, 31), 64, 96, 64, 96}, // as given
		{image.Pt(47, 31), 5, 9, 5, 9},     // Check refuses it
		{image.Pt(40, 24), 48, 0, 48, 80},
		{image.Pt(40, 24), 0, 80, 48, 80},
		{image.Pt(30, 20), 64, 0, 64, 96},
		{image.Pt(3, 1), 16, 0, 16, 48},
		{image.Pt(31, 47), 0, 40, 56, 40},
		{image.Pt(1000, 1), 0, 80, 8, 80},
		{image.Pt(100, 100), 512, 0, 512, 512}, // who gives a side may go beyond
	}
	mlxtest.Do(t, func() {
		p := load(t, &family.Defaults{Steps: 2, Height: 64, Width: 64, MaxSequenceLength: 512})
		for _, test := range tests {
			if h, w := p.SizeFor(test.size, test.height, test.width); h != test.wantH || w != test.wantW {
				t.Errorf("%v, %dx%d given: height %d and width %d, expected %d and %d", test.size, test.height, test.width,
					h, w, test.wantH, test.wantW)
			}
		}
		if h, w := p.SizeFor(image.Pt(4096, 2), 0, 0); h != 8 || w > 1024 || w < 900 { // its axes end at 1024 pixels
			t.Errorf("a long image: height %d and width %d", h, w)
		}
		// every size is valid, and no larger than the image or than allowed
		for w := 1; w < 600; w += 7 {
			for h := 1; h < 600; h += 11 {
				oh, ow := p.SizeFor(image.Pt(w, h), 0, 0)
				if oh%8 != 0 || ow%8 != 0 || oh < 8 || ow < 8 || oh > max(8, h) || ow > max(8, w) || oh*ow > 4*64*64 {
					t.Fatalf("%dx%d becomes %dx%d", w, h, ow, oh)
				}
			}
		}
	})
}

// counting counts how often the text encoder runs.
type counting struct {
	family.Pipeline
	runs int
}

func (c *counting) PromptEncodings(references []image.Image) []family.PromptEncoding {
	texts := c.Pipeline.PromptEncodings(references)
	encode := texts[0].Encode
	texts[0].Encode = func(ids []int32) *mlx.Array {
		c.runs++
		return encode(ids)
	}
	return texts
}

// TestPromptCache checks that recent prompts are encoded once, and that the cache does not change
// images.
func TestPromptCache(t *testing.T) {
	const a, b, c, n = "a red circle", "two blue squares", "nothing at all", "blurry"
	watch := func(hooks.Tap) (*mlx.Array, error) { return nil, nil }
	mlxtest.Do(t, func() {
		p := load(t, nil)
		count := &counting{Pipeline: p.family}
		p.family = count
		pictures := map[string][]uint8{}
		generate := func(prompt, negative string, seed uint64, runs int, change func(*Request)) {
			t.Helper()
			r := Request{Prompt: prompt, Height: 16, Width: 16, Steps: 1, Seed: seed, MaxSequenceLength: 512}
			if negative != "" {
				r.NegativePrompt, r.Guidance = negative, 2
			}
			if change != nil {
				change(&r)
			}
			before := count.runs
			res, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			if count.runs-before != runs {
				t.Errorf("%q, %q, seed %d: the text encoder ran %d times, expected %d", prompt, negative, seed, count.runs-before, runs)
			}
			key := fmt.Sprint(prompt, negative, seed)
			first := pictures[key]
			if first == nil {
				pictures[key] = res.Image.Pix
			} else if r.Hook == nil && !bytes.Equal(res.Image.Pix, first) || !sameImage(res.Image.Pix, first) {
				t.Errorf("%q, %q, seed %d: another picture than at first", prompt, negative, seed)
			}
		}
		hooked := func(r *Request) { r.Hook = watch }

		generate(a, "", 1, 1, nil)
		generate(a, "", 2, 0, nil)
		generate(a, "", 1, 0, nil)
		generate(a, "", 1, 1, hooked) // a hook sees everything
		generate(a, "", 2, 0, nil)
		generate(a, n, 1, 1, nil)
		generate(a, n, 2, 0, nil)
		generate(a, n, 1, 2, hooked)
		generate(b, n, 1, 1, nil) // the negative prompt stays
		generate(c, n, 1, 1, nil)
		generate(c, n, 2, 0, nil)
		generate(b, n, 1, 1, nil) // b was used before n and c
		generate(b, b, 1, 0, nil)
		generate(a, a, 1, 1, nil)
		if bytes.Equal(pictures[fmt.Sprint(a, "", 1)], pictures[fmt.Sprint(a, "", 2)]) ||
			bytes.Equal(pictures[fmt.Sprint(a, n, 1)], pictures[fmt.Sprint(b, n, 1)]) {
			t.Error("seed or prompt makes no difference")
		}
		if len(p.promptCache) > 2 {
			t.Errorf("%d texts are kept", len(p.promptCache))
		}

		// what is kept does not get around the limit
		before := count.runs
		_, err := p.Generate(Request{Prompt: a, Height: 16, Width: 16, Steps: 1, MaxSequenceLength: 3, RefuseLongPrompts: true})
		if !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), "and the limit is 3") {
			t.Errorf("error %v", err)
		}
		if count.runs != before {
			t.Error("the text encoder ran for a prompt that is too long")
		}
		generate(a, "", 1, 0, nil)

		// as another pipeline makes them, which has nothing kept
		p = load(t, nil)
		count = &counting{Pipeline: p.family}
		p.family = count
		generate(a, "", 2, 1, nil)
		generate(c, n, 2, 2, nil)
	})
}

// TestSchedulers runs every scheduler from noise and from an image.
func TestSchedulers(t *testing.T) {
	start := image.NewRGBA(image.Rect(0, 0, 40, 24))
	for i := range start.Pix {
		start.Pix[i] = uint8(37*i) | -uint8(i%4/3) // opaque
	}
	mlxtest.Do(t, func() {
		p := load(t, nil)
		pictures := map[string]string{}
		for _, name := range scheduler.Names() {
			for _, strength := range []float64{0, 0.2, 0.5, 0.9} {
				const steps = 6
				want := steps
				r := Request{Prompt: "a red circle", Height: 24, Width: 40, Steps: steps, Seed: 1, MaxSequenceLength: 512, Scheduler: name}
				if strength > 0 {
					r.Image, r.ImageStrength = start, strength
					want -= int(strength * steps)
				}
				what := fmt.Sprintf("%s, strength %g", name, strength)
				var reported []int
				r.Progress = func(pr Progress) {
					if pr.Phase == PhaseStep {
						reported = append(reported, pr.Step)
					}
					if pr.Steps != want {
						t.Errorf("%s: progress of %d steps, expected %d", what, pr.Steps, want)
					}
				}
				var done []Step
				r.OnStep = func(s Step) error { done = append(done, s); return nil }
				res, err := p.Generate(r)
				if err != nil {
					t.Fatal(err)
				}
				if res.Steps != want || res.Scheduler != name {
					t.Errorf("%s: %d steps of %s, expected %d", what, res.Steps, res.Scheduler, want)
				}
				numbers := []int{0}
				sigma := 1.0
				for i, s := range done {
					numbers = append(numbers, i+1)
					if s.Step != i+1 || s.Steps != want || s.Sigma >= sigma {
						t.Errorf("%s: step %d is %d of %d at sigma %g after %g", what, i+1, s.Step, s.Steps, s.Sigma, sigma)
					}
					sigma = s.Sigma
				}
				if sigma != 0 || len(done) != want || !slices.Equal(reported, numbers) {
					t.Errorf("%s: %d steps down to sigma %g, %v reported, expected %d", what, len(done), sigma, reported, want)
				}
				key := string(res.Image.Pix)
				if other, ok := pictures[key]; ok {
					t.Errorf("%s: the picture of %s", what, other)
				}
				pictures[key] = what
			}
		}
		if len(pictures) != 4*len(scheduler.Names()) {
			t.Errorf("%d pictures", len(pictures))
		}
		res, err := p.Generate(Request{Prompt: "a red circle", Height: 24, Width: 40, Steps: 6, Seed: 1, MaxSequenceLength: 512})
		if err != nil {
			t.Fatal(err)
		}
		if name := "flow_match_euler_discrete"; res.Scheduler != name || pictures[string(res.Image.Pix)] != name+", strength 0" {
			t.Errorf("the model's own scheduler is %s, with the picture of %q", res.Scheduler, pictures[string(res.Image.Pix)])
		}
	})
}

// smooth predicts a velocity that changes slowly with the timestep. The velocity of a model with
// random weights oscillates with its timestep embedding, so no reasonable number of steps resolves
// it.
type smooth struct{ family.Pipeline }

func (smooth) Predictor(family.Conditioning, int, int, family.Compiler) (family.Predictor, error) {
	return func(x *mlx.Array, at scheduler.Interval) *mlx.Array {
		return x.Sin().Sub(x.Times(float64(at.Timestep / 1000))).Plus(0.25)
	}, nil
}

// TestConvergence checks that all schedulers converge to the same latents: the error of Euler's
// method falls with the number of steps, and that of Heun's method with its square.
func TestConvergence(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		p.family = smooth{p.family}
		last := func(name string, steps int) (latents []float32) {
			t.Helper()
			r := Request{Prompt: "a red circle", Height: 16, Width: 16, Steps: steps, Seed: 1, MaxSequenceLength: 512, Scheduler: name}
			r.OnStep = func(s Step) error { latents = s.Latents.Data; return nil }
			if _, err := p.Generate(r); err != nil {
				t.Fatal(err)
			}
			return latents
		}
		end := last("euler", 4096)
		off := func(name string, steps int) float64 {
			t.Helper()
			var sum float64
			for i, v := range last(name, steps) {
				d := float64(v - end[i])
				sum += d * d
			}
			rms := math.Sqrt(sum / float64(len(end)))
			t.Logf("%s, %d steps: off by %.5f", name, steps, rms)
			return rms
		}
		for _, name := range []string{"euler", "linear"} {
			if few, many := off(name, 16), off(name, 64); many > few/3 || many < few/6 {
				t.Errorf("%s: 64 steps are off by %g, 16 by %g, expected a quarter", name, many, few)
			}
		}
		if few, many := off("heun", 4), off("heun", 8); many > few/3 {
			t.Errorf("8 of Heun's steps are off by %g, 4 by %g, expected a quarter", many, few)
		}
		if heun, euler := off("heun", 32), off("euler", 64); heun > euler/10 {
			t.Errorf("32 of Heun's steps are off by %g, and 64 of Euler's, which cost more, by %g", heun, euler)
		}
	})
}

func TestCheckImage(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		whole := image.NewRGBA(image.Rect(0, 0, 9, 9))
		tests := []struct {
			image    image.Image
			strength float64
			steps    int
			err      string // "" if it can be run
		}{
			{whole, 0.5, 4, ""},
			{whole, 0.01, 2, ""},
			{nil, -1, 4, ""}, // not asked for
			{whole, 0, 4, "image strength 0: must be above 0"},
			{whole, -0.5, 4, "image strength -0.5"},
			{whole, 1.01, 4, "image strength 1.01: must be above 0, which would keep nothing of the image, and below 1"},
			{whole, math.NaN(), 4, "image strength NaN"},
			{whole, 1, 4, "leaves no step"},
			{whole, 0.1, 1, "of 1 steps leaves no step"},
			{image.NewGray(image.Rect(3, 0, 3, 9)), 0.5, 4, "image to start from is empty"},
		}
		for _, test := range tests {
			_, err := p.Generate(Request{Prompt: "x", Height: 8, Width: 8, Steps: test.steps, MaxSequenceLength: 512,
				Image: test.image, ImageStrength: test.strength})
			if test.err == "" && err != nil || test.err != "" && (!errors.Is(err, errs.ErrRequest) ||
				!strings.Contains(err.Error(), test.err)) {
				t.Errorf("strength %g of %d steps: error %v, expected %q", test.strength, test.steps, err, test.err)
			}
		}
	})
}
