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
