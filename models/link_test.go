package models

import (
	"fmt"
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
)

// The estimate of a split counts about the bytes that a run exchanges, and all processes get the same.
func TestSpeedup(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		for _, test := range []struct{ split, model string }{
			{SplitPasses, "zimage-ordinary"}, {SplitSequence, "zimage-ordinary"}, {SplitSequence, "flux1-dev-small"},
			{SplitSequence, "qwen-image-ordinary"},
		} {
			p, r := groupRun{Model: modeltest.Model{Name: test.model, Guidance: 3}}.load(t, g)
			r.Split, r.Steps, r.Height, r.Width = test.split, 2, 128, 128
			run, err := p.Prepare(r, 1)
			if err != nil {
				t.Fatal(err)
			}
			before := int64(0)
			received := 0.0
			r.Progress = func(p Progress) {
				if p.Phase == PhaseStep {
					received, before = float64(g.Received()-before), g.Received()
				}
			}
			result, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			if bytes := run.exchanged(result.PromptTokens); math.Abs(bytes/received-1) > 0.35 { // Z-Image pads its few tokens
				t.Errorf("%s split by %s: estimated %.0f bytes a step, found %.0f", test.model, test.split, bytes, received)
			}
			bytes := run.exchanged(0)
			flops, ok := run.StepFLOPs(0)
			if !ok {
				t.Fatal("no FLOPs")
			}
			slow := flops / 0.8 // a step takes a process a second
			for _, c := range []struct {
				l    Link
				want float64
			}{{Link{math.Inf(1), slow}, 2}, {Link{8 * bytes, slow}, 1 / 1.5}, {Link{1, 1e15}, 0}} {
				if got, err := p.Speedup(r, c.l); err != nil || math.Abs(got-c.want) > 1e-6 {
					t.Errorf("%s split by %s, %+v: %g, %v, expected %g", test.model, test.split, c.l, got, err, c.want)
				}
			}
			if test.split == SplitSequence {
				p.Close()
				continue
			}
			l, err := p.MeasureLink()
			all := g.Gather(fmt.Append(nil, l))
			if err != nil || l.Bandwidth <= 0 || l.Speed <= 0 || string(all[0]) != string(all[1]) {
				t.Errorf("measured %s, %v", all, err)
			}
			p.Close()
		}
	})
}
