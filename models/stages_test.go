package models

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Processes that have stages of the networks generate the image of one process, bit for bit. Each has loaded what the
// estimate says, and all together every parameter once, but for those outside of blocks. In CI this is for some models.
func TestSplitStages(t *testing.T) {
	n, runs := 2, []groupRun{{Model: modeltest.Models[0], set: func(r *Request) {
		r.Steps, r.StepCache = 12, "first-block:0.9"
	}}}
	some := []string{"flux1-dev-small", "flux2-klein-kv"}
	all := os.Getenv("GOMFLUX_FAULTS") == "all"
	for _, m := range modeltest.Networks() {
		if all || slices.Contains(some, m.Name) {
			runs = append(runs, groupRun{Model: m})
		}
	}
	join(t, n, func(g *mlx.Group) {
		for i, c := range runs {
			p, r := c.load(t, nil)
			var want *Result
			if i%n == g.Rank() { // each compares some
				var err error
				if want, err = p.Generate(r); err != nil {
					t.Fatal(err)
				}
			}
			p.Close()
			p, r = c.load(t, g)
			r.Split = SplitStages
			got, err := p.Generate(r)
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			if want != nil && (!bytes.Equal(got.Image.Pix, want.Image.Pix) || !slices.Equal(got.Skipped, want.Skipped)) {
				t.Errorf("%s: the image is not that of one process, or the skipped steps are %v instead of %v", c.Name,
					got.Skipped, want.Skipped)
			}
			if r.StepCache != "" && len(got.Skipped) == 0 {
				t.Error("no steps are skipped")
			}
			checkStages(t, p, g)
			p.Close()
		}
	})
}

// checkStages checks which parameters of a pipeline are loaded after a run in stages.
func checkStages(t *testing.T, p *Pipeline, g *mlx.Group) {
	for _, dir := range sorted(p.loadables) {
		l := p.loadables[dir]
		if !l.loaded {
			t.Errorf("%s %s is not loaded", p.Class, dir)
		}
		var has []byte
		var loaded int64
		for _, param := range nn.Parameters(l.Model) {
			has = append(has, 0)
			for _, a := range param.Arrays() {
				has[len(has)-1], loaded = 1, loaded+int64(a.Size()*a.Dtype().ItemSize())
			}
		}
		if estimated := p.weightsMemory(l, p.loader.Quantize, true).bytes; loaded != estimated {
			t.Errorf("%s %s: %d bytes of weights are loaded, estimated %d", p.Class, dir, loaded, estimated)
		}
		inBlocks := map[*nn.Param]bool{}
		if s := l.Staged(); s != nil {
			for _, modules := range s.StageBlocks() {
				for _, m := range modules {
					for _, param := range nn.Parameters(m) {
						inBlocks[param.Param] = true
					}
				}
			}
		}
		members := g.Gather(has)
		for i, param := range nn.Parameters(l.Model) {
			loaded, want := 0, len(members)
			if inBlocks[param.Param] {
				want = 1
			}
			for _, has := range members {
				loaded += int(has[i])
			}
			if loaded != want {
				t.Errorf("%s %s: %s is loaded by %d processes, expected %d", p.Class, dir, param.Name, loaded, want)
			}
		}
	}
}
