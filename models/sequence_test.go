package models

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
)

// Processes that split the tokens of every model get the images of one process, up to one step of 255, and all
// the same. With four there are two groups of two, one for each pass. In CI this is for two and one model of
// each pipeline class.
func TestSplitSequence(t *testing.T) {
	n, runs := 2, []groupRun{{Model: modeltest.Models[0], set: func(r *Request) {
		r.Steps, r.Guidance, r.StepCache = 12, 0, "first-block:0.9"
	}}}
	if os.Getenv("GOMFLUX_FAULTS") == "all" {
		n = 4
	}
	for _, m := range randtest.Some(2, modeltest.Networks()) {
		runs = append(runs, groupRun{Model: m})
	}
	join(t, n, func(g *mlx.Group) {
		for _, c := range runs {
			p, r := c.load(t, nil)
			want, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			fits := p.checkSequence(&r, n) == nil
			p.Close()
			if !fits {
				continue
			}
			p, r = c.load(t, g)
			if r.Split = SplitSequence; n == 4 && p.UsesNegativePrompt(r) {
				r.Split = SplitPasses
			}
			received := map[Phase]int64{}
			r.Progress = func(p Progress) {
				if received[p.Phase] == 0 {
					received[p.Phase] = g.Received()
				}
			}
			got, err := p.Generate(r)
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			encode, decode := received[PhaseStep]-received[PhaseEncode], g.Received()-received[PhaseDecode]
			// with four some of these images have fewer rows of latents than processes, which divide none
			if n == 2 && (decode < 1000 || (len(r.References) > 0 || p.Fills()) != (encode > 1000)) {
				t.Errorf("%s: received %d bytes while images were encoded, and %d while one was decoded", c.Name, encode, decode)
			}
			worst := 0
			for i, v := range want.Image.Pix {
				worst = max(worst, int(v)-int(got.Image.Pix[i]), int(got.Image.Pix[i])-int(v))
			}
			if worst > 1 || !slices.Equal(got.Skipped, want.Skipped) {
				t.Errorf("%s: %s: pixels differ by %d of 255, skipped steps %v and %v", c.Name, r.Split, worst, got.Skipped, want.Skipped)
			}
			if r.StepCache != "" && len(got.Skipped) == 0 {
				t.Error("no steps are skipped")
			}
			for rank, pix := range g.Gather(got.Image.Pix) {
				if !bytes.Equal(pix, got.Image.Pix) {
					t.Errorf("%s: ranks %d and %d have different images", c.Name, g.Rank(), rank)
				}
			}
			p.Close()
		}
	})
}
