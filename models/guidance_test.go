package models

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/scheduler"
)

// passes runs a request and returns the image, the latents after each step, and the transformer's
// passes: + for the prompt and - for the negative prompt, with a space after each step.
func passes(t *testing.T, p *Pipeline, r Request) (img []byte, latents hostValues, order string) {
	t.Helper()
	latents = hostValues{}
	step := 0
	r.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
		switch {
		case tap.Name == "transformer" && tap.Negative:
			order += "-"
		case tap.Name == "transformer":
			order += "+"
		case tap.Name == "latents":
			data, dtype, shape := tap.Output.Bytes(), tap.Output.Dtype(), tap.Output.Shape()
			latents[full("latents", step)] = func() *mlx.Array { return mlx.FromBytes(data, dtype, shape...) }
			order += " "
			step++
		}
		return nil, nil
	}
	result, err := p.Generate(r)
	if err != nil {
		t.Fatal(err)
	}
	return result.Image.Pix, latents, strings.TrimSpace(order)
}

// TestGuidanceInterval checks which passes run, and that an image with guidance in the first steps
// is that of a run without guidance that begins with the latents of a guided one.
func TestGuidanceInterval(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{
			Prompt: "a red circle", NegativePrompt: "blurry", Height: 16, Width: 24, Steps: 5, Guidance: 3, Seed: 5, MaxSequenceLength: 64,
		}
		all, guided, _ := passes(t, p, r)
		for _, c := range []struct {
			part scheduler.Part
			want string
		}{
			{nil, "+- +- +- +- +-"}, {scheduler.Part{0, 1}, "+- +- +- +- +-"}, {scheduler.Part{0, 0.6}, "+- +- +- + +"},
			{scheduler.Part{0.2, 0.8}, "+ +- +- +- +"}, {scheduler.Part{0.9, 1}, "+ + + + +-"},
		} {
			r.GuidanceInterval = c.part
			img, _, order := passes(t, p, r)
			if same := !strings.Contains(c.want+" ", "+ "); order != c.want || bytes.Equal(img, all) != same {
				t.Errorf("%v: passes %q, expected %q; equal images %t", c.part, order, c.want, bytes.Equal(img, all))
			}
		}

		r.GuidanceInterval = scheduler.Part{0, 0.6}
		got, _, _ := passes(t, p, r)
		r.GuidanceInterval, r.Guidance, r.Overrides = nil, 0, guided.only("latents@2")
		if want, _, _ := passes(t, p, r); !bytes.Equal(got, want) {
			t.Error("another image than without guidance in the last two steps")
		}
		r.Overrides = guided.only("latents@1")
		if other, _, _ := passes(t, p, r); bytes.Equal(got, other) {
			t.Error("the step without guidance makes no difference")
		}
	})
}

// TestGuidanceIntervalHeun: both evaluations of a step are guided, or neither.
func TestGuidanceIntervalHeun(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{
			Prompt: "a red circle", NegativePrompt: "blurry", Height: 16, Width: 24, Steps: 3, Guidance: 3, Seed: 5, MaxSequenceLength: 64,
			Scheduler: "flow_match_heun_discrete", GuidanceInterval: scheduler.Part{0, 0.4},
		}
		if _, _, order := passes(t, p, r); !slices.Equal(strings.Fields(order), []string{"+-", "+-", "+", "+", "+"}) {
			t.Errorf("passes %q", order)
		}
	})
}

// TestTrueCFG checks with the guidance scale as an input which passes run, also with options that leave
// out some, and that prompt and scale count.
func TestTrueCFG(t *testing.T) {
	mlxtest.Do(t, func() {
		p := loadFolder(t, "testdata/flux1-dev-small/model")
		r := Request{
			Prompt: "a red circle", NegativePrompt: "blurry", Height: 32, Width: 48, Steps: 5, Guidance: 3, Seed: 5, MaxSequenceLength: 40,
		}
		plain, _, _ := passes(t, p, r)
		images := map[string]string{string(plain): "without"}
		for _, c := range []struct {
			change func(*Request)
			want   string
		}{
			{func(r *Request) { r.TrueCFGScale = 2 }, "+- +- +- +- +-"},
			{func(r *Request) { r.TrueCFGScale = 3 }, "+- +- +- +- +-"},
			{func(r *Request) { r.TrueCFGScale, r.NegativePrompt = 2, "" }, "+- +- +- +- +-"},
			{func(r *Request) { r.TrueCFGScale, r.Guidance = 2, 1 }, "+- +- +- +- +-"},
			{func(r *Request) { r.TrueCFGScale, r.GuidanceInterval = 2, scheduler.Part{0, 0.4} }, "+- +- + + +"},
		} {
			r := r
			c.change(&r)
			img, _, order := passes(t, p, r)
			if other, ok := images[string(img)]; ok || order != c.want {
				t.Errorf("%+v: passes %q, expected %q; the image of %s", r.guidance(), order, c.want, other)
			}
			images[string(img)] = c.want
		}
		r.TrueCFGScale = 1
		if img, _, order := passes(t, p, r); !bytes.Equal(img, plain) || order != "+ + + + +" {
			t.Errorf("scale 1: passes %q, or another image", order)
		}
		r.TrueCFGScale, r.StepCache, r.Steps = 2, "first-block:0.9", 12
		result, err := p.Generate(r)
		if err != nil || len(result.Skipped) == 0 || len(result.SkippedNegative) == 0 {
			t.Errorf("the step cache: %v, %+v", err, result)
		}
	})
}

// TestCFGTruncation checks after which step nothing is guided.
func TestCFGTruncation(t *testing.T) {
	mlxtest.Do(t, func() {
		p := load(t, nil)
		r := Request{
			Prompt: "a red circle", NegativePrompt: "blurry", Height: 16, Width: 24, Steps: 4, Guidance: 3, Seed: 5, MaxSequenceLength: 64,
		}
		all, latents, _ := passes(t, p, r)
		if latents == nil {
			t.Fatal("no latents")
		}
		run, err := p.newRun(r)
		if err != nil {
			t.Fatal(err)
		}
		second := float64((1000 - run.schedule.Timesteps[1]) / 1000)
		for _, c := range []struct {
			truncation float64
			want       string
		}{
			{1, "+- +- +- +-"}, {second, "+- +- + +"}, {second - 1e-6, "+- + + +"}, {1e-9, "+- + + +"},
		} {
			r.CFGTruncation = c.truncation
			img, _, order := passes(t, p, r)
			if order != c.want || bytes.Equal(img, all) != (c.truncation == 1) {
				t.Errorf("%g: passes %q, expected %q", c.truncation, order, c.want)
			}
		}
		r.CFGTruncation, r.CFGNormalization = 0, 1000
		if img, _, _ := passes(t, p, r); !bytes.Equal(img, all) {
			t.Error("a limit that is not reached changes the image")
		}
		r.CFGNormalization = 0.5
		results := map[uint64][]byte{}
		for _, seed := range []uint64{5, 6} {
			r.Seed = seed
			results[seed], _, _ = passes(t, p, r)
		}
		batch, err := p.Prepare(r, 2)
		if err != nil {
			t.Fatal(err)
		}
		made, err := batch.Generate([]uint64{5, 6})
		if err != nil {
			t.Fatal(err)
		}
		for i, seed := range []uint64{5, 6} { // a limit for each image
			if bytes.Equal(results[seed], all) || !near(made[i].Image.Pix, results[seed]) {
				t.Errorf("seed %d: another image in a batch, or without a limit", seed)
			}
		}
	})
}

// near reports whether the values of two images differ by 1 at most.
func near(a, b []byte) bool {
	for i := range a {
		if d := int(a[i]) - int(b[i]); d < -1 || d > 1 {
			return false
		}
	}
	return len(a) == len(b)
}
