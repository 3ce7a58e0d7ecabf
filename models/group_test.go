package models

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// join runs f in the members of a group of n processes.
func join(t *testing.T, n int, f func(g *mlx.Group)) {
	if !grouptest.Member() {
		grouptest.Run(t, n)
		return
	}
	mlxtest.Do(t, func() {
		g, err := mlx.JoinGroup("ring")
		if err != nil {
			t.Fatal(err)
		}
		f(g)
	})
}

// A groupRun is a run that a group and one process make.
type groupRun struct {
	modeltest.Model
	set func(r *Request)
}

// load loads the model, alone if the group is nil, and returns its request.
func (c groupRun) load(t *testing.T, g *mlx.Group) (*Pipeline, Request) {
	fsys, err := checkpoint.OpenFolder(filepath.Join("testdata", c.Name, "model"))
	if err != nil {
		t.Fatal(err)
	}
	golden := readGolden(t, filepath.Join("testdata", c.Name, "dump", "settings.json")) // for its size
	p, err := Load(fsys, LoadOptions{Device: new(mlx.CPU), Dtype: new(mlx.Float32), Group: g})
	if err != nil {
		t.Fatal(err)
	}
	r := Request{
		Prompt: "a red circle", NegativePrompt: "blurry", Steps: 2, Seed: 3, Guidance: c.Guidance,
		Height: golden.Height, Width: golden.Width,
		MaxSequenceLength: min(golden.MaxSequenceLength, 64), Inpaint: p.LeastInpaint(gradient(80, 64)),
	}
	for i := range c.References {
		r.References = append(r.References, gradient(80, 64+8*i))
	}
	if c.set != nil {
		c.set(&r)
	}
	return p, r
}

// Two processes that share the passes of every model with guidance generate what one does, bit for bit.
func TestSplitPasses(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		runs := []groupRun{{Model: modeltest.Models[0], set: func(r *Request) {
			r.Steps, r.Scheduler, r.StepCache, r.GuidanceInterval = 12, "flow_match_heun_discrete", "easy:0.9", scheduler.Part{0.2, 0.7}
		}}}
		for _, m := range randtest.Some(2, modeltest.Networks()) {
			run := groupRun{Model: m}
			if strings.HasPrefix(m.Name, "flux1-") {
				run.set = func(r *Request) { r.TrueCFGScale = 2 }
			}
			runs = append(runs, run)
		}
		compared := map[string]bool{}
		for i, c := range runs {
			p, r := c.load(t, nil)
			if family.Find(p.Class).NeedsNegativePrompt {
				r.Guidance = 3
			}
			if !family.Find(p.Class).TrueCFG {
				r.TrueCFGScale = 0
			}
			guided := p.UsesNegativePrompt(r)
			var want *Result
			var err error
			if guided && i%2 == g.Rank() { // each compares half of the models
				if want, err = p.Generate(r); err != nil {
					t.Fatal(err)
				}
			}
			p.Close()
			if !guided {
				continue
			}
			compared[p.Class] = true
			p, _ = c.load(t, g)
			got, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			if got.PromptTokens > 0 != (g.Rank() == 0) {
				t.Errorf("%s: rank %d has encoded a prompt of %d tokens for the transformer", c.Name, g.Rank(), got.PromptTokens)
			}
			if want != nil && (!bytes.Equal(got.Image.Pix, want.Image.Pix) || !slices.Equal(got.Skipped, want.Skipped) ||
				!slices.Equal(got.SkippedNegative, want.SkippedNegative)) {
				t.Errorf("%s: the image is not that of one process, or the skipped steps are %v and %v instead of %v and %v", c.Name,
					got.Skipped, got.SkippedNegative, want.Skipped, want.SkippedNegative)
			}
			if r.StepCache != "" && len(got.Skipped) == 0 {
				t.Error("no steps are skipped")
			}
			p.Close()
		}
		if !testing.Short() && len(compared) < 10 {
			t.Errorf("only %d classes are compared: %v", len(compared), compared)
		}
	})
}

// Processes with other files, options or requests refuse to run, and name what differs.
func TestSplitDiffers(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		host, _ := os.Hostname()
		dir := filepath.Join(filepath.Dir(grouptest.Output()), fmt.Sprint("model", g.Rank()))
		if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "zimage-ordinary", "model"))); err != nil {
			t.Fatal(err)
		}
		weights, err := filepath.Glob(filepath.Join(dir, "transformer", "*.safetensors"))
		if err != nil || len(weights) == 0 {
			t.Fatal(weights, err)
		}
		plain := Request{Prompt: "a", Height: 64, Width: 64, Steps: 2, Guidance: 3, MaxSequenceLength: 32}
		for _, test := range []struct {
			name   string
			change func(o *LoadOptions, r *Request) // of rank 1
			want   string                           // with %s for the host
		}{
			{"steps", func(_ *LoadOptions, r *Request) { r.Steps = 3 },
				"the processes differ in the field Steps: 2 on rank 0 (%[1]s), and 3 on rank 1 (%[1]s)"},
			{"prompt", func(_ *LoadOptions, r *Request) { r.Prompt = "b" },
				"the processes differ in the field Prompt: a on rank 0 (%[1]s), and b on rank 1 (%[1]s)"},
			{"dtype", func(o *LoadOptions, _ *Request) { o.Dtype = new(mlx.Float16) },
				"the processes differ in dtype: float32 on rank 0 (%[1]s), and float16 on rank 1 (%[1]s)"},
			{"quantization", func(o *LoadOptions, _ *Request) { o.Quantize = &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64} },
				"in quantization: 0 bits in groups of 0  on rank 0 (%[1]s), and 4 bits in groups of 64 affine on rank 1"},
			{"more runs", func(o *LoadOptions, r *Request) {
				request := *r
				o.Requests = func(*Pipeline) []Request { return []Request{request, request} }
			}, "the processes differ in the field Prompt: none on rank 0 (%[1]s), and a on rank 1 (%[1]s)"},
			{"weights", func(*LoadOptions, *Request) { flipBytes(t, weights[0]) }, "the processes differ in the files of transformer: "},
		} {
			r := plain
			o := LoadOptions{Device: new(mlx.CPU), Dtype: new(mlx.Float32), Group: g}
			o.Requests = func(*Pipeline) []Request { return []Request{r} }
			if g.Rank() == 1 {
				test.change(&o, &r)
			}
			_, err := Load(os.DirFS(dir), o)
			want := test.want
			if strings.Contains(want, "%") {
				want = fmt.Sprintf(want, host)
			}
			if err == nil || !errors.Is(err, errs.ErrRequest) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: found %v, expected %s", test.name, err, want)
			}
		}
	})
}

// flipBytes changes the second half of a file.
func flipBytes(t *testing.T, name string) {
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data[len(data)/2:] {
		data[len(data)/2+i] ^= 1
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// A split that a group or a process that is alone cannot do is refused.
func TestSplitOf(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		p, r := groupRun{Model: modeltest.Models[0]}.load(t, g)
		defer p.Close()
		alone := *p
		alone.group = nil
		hooked := r
		hooked.Hook = func(hooks.Tap) (*mlx.Array, error) { return nil, nil }
		for _, test := range []struct {
			p        *Pipeline
			guidance float64
			split    string
			want     string // the split, or the error
		}{
			{&alone, 3, "", ""},
			{&alone, 3, "passes", "split passes: this process is alone (gomflux launch starts several that compute together)"},
			{p, 3, "", "passes"},
			{p, 3, "auto", "passes"},
			{p, 3, "pictures", "pictures"},
			{p, 0, "pictures", "pictures"},
			{p, 0, "passes", "split passes: ZImagePipeline has one pass in each step at guidance 0 " +
				"(a guidance scale with a negative prompt has two)"},
			{p, 3, "tensor", `split "tensor": expected one of auto, pictures, passes, sequence, stages`},
			{p, 3, "stages", "stages"},
		} {
			r.Guidance, r.Split = test.guidance, test.split
			got, members, err := test.p.SplitOf(&r)
			if err != nil {
				if !errors.Is(err, errs.ErrRequest) {
					t.Errorf("%q: %v is no ErrRequest", test.split, err)
				}
				got = err.Error()
			}
			if got != test.want || err == nil && test.p == p && members != 2 {
				t.Errorf("split %q at guidance %g: found %s of %d, expected %s", test.split, test.guidance, got, members, test.want)
			}
		}
		hooked.Split = SplitStages
		for _, err := range []error{p.checkStages(&hooked, 2), p.checkStages(&r, 9)} {
			if !errors.Is(err, errs.ErrRequest) || !strings.HasPrefix(err.Error(), "split stages: ") {
				t.Errorf("found %v", err)
			}
		}
	})
}
