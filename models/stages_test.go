package models

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/grouptest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/lora"
)

// Processes that have stages of the networks generate the image of one process, bit for bit. Each has loaded what the
// estimate says, and all together every parameter once, but for those outside of blocks. In CI this is for some models.
func TestSplitStages(t *testing.T) {
	runs := []groupRun{{Model: modeltest.Models[0], set: func(r *Request) {
		r.Steps, r.StepCache = 12, "first-block:0.9"
	}}}
	some := []string{"flux1-dev-small", "flux2-klein-kv"}
	all := os.Getenv("GOMFLUX_FAULTS") == "all"
	for _, m := range modeltest.Networks() {
		if all || slices.Contains(some, m.Name) {
			runs = append(runs, groupRun{Model: m})
		}
	}
	checkStagesOf(t, 2, runs)
}

// Three processes do so too, of models with three blocks.
func TestSplitStagesOfThree(t *testing.T) {
	if os.Getenv("GOMFLUX_FAULTS") != "all" {
		t.Skip("GOMFLUX_FAULTS=all runs it")
	}
	var runs []groupRun
	for _, m := range modeltest.Networks() {
		if slices.Contains([]string{"flux1-dev-small", "flux2-klein", "flux3-klein"}, m.Name) {
			runs = append(runs, groupRun{Model: m})
		}
	}
	checkStagesOf(t, 3, runs)
}

// checkStagesOf compares the images of n processes with those of one.
func checkStagesOf(t *testing.T, n int, runs []groupRun) {
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

// Stages of quantized weights, with LoRAs in them and next to them, and of components that are loaded one at a time are
// loaded as far as the estimate says, and generate the image of one process. If a process lacks the memory for the whole
// model, runs that choose their split have stages, also after another split.
func TestSplitStagesLoaded(t *testing.T) {
	join(t, 2, func(g *mlx.Group) {
		dir := modeltest.Wide(t, "flux1-dev-small")
		file := filepath.Join(t.TempDir(), "lora.safetensors")
		if err := modeltest.WriteLoRA(file, dir, 1); err != nil {
			t.Fatal(err)
		}
		run := Request{Prompt: "a red hat", Width: 64, Height: 96, Steps: 3, Seed: 1, Guidance: 3.5, MaxSequenceLength: 64}
		load := func(o LoadOptions, requests ...Request) (p *Pipeline, warnings []string) {
			o.Requests, o.Warn = func(*Pipeline) []Request { return requests }, func(s string) { warnings = append(warnings, s) }
			p, err := Load(os.DirFS(dir), o)
			if err != nil {
				t.Fatal(err)
			}
			return p, warnings
		}
		same := func(name string, p *Pipeline, r Request, want *Result) {
			got, err := p.Generate(r)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Image.Pix, want.Image.Pix) {
				t.Errorf("%s: the image is not that of one process", name)
			}
		}
		loras := []lora.Spec{{Path: file, Scale: 1}}
		var least int64 // for one process
		for _, test := range []struct {
			name string
			o    LoadOptions
		}{
			{"quantized", LoadOptions{Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}, LoRAs: loras}},
			{"runtime LoRA", LoadOptions{RuntimeLoRA: true, LoRAs: loras}},
			{"low RAM", LoadOptions{LowRAM: true}},
		} {
			test.o.Device, test.o.Dtype = new(mlx.CPU), new(mlx.BFloat16)
			p, _ := load(test.o, run)
			least = estimated(t, p, run).Peak()
			want, err := p.Generate(run)
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			o, r := test.o, run
			o.Group, r.Split = g, SplitStages
			p, _ = load(o, r)
			same(test.name, p, r, want)
			if !o.LowRAM {
				checkStages(t, p, g)
			} else if n := estimated(t, p, r).Peak(); n >= least {
				t.Errorf("a stage needs %d bytes, one process %d", n, least)
			}
			p.Close()
			if o.LowRAM { // rank 1 lacks memory
				o.memory = least - 1 + 2*int64(1-g.Rank())
				p, warnings := load(o, run)
				if split, _, err := p.SplitOf(&run); err != nil || split != SplitStages || len(warnings) != 1-g.Rank() {
					t.Errorf("rank %d: split %s, %v, warnings %q", g.Rank(), split, err, warnings)
				}
				same("chosen", p, run, want)
				r.Split = SplitSequence
				if _, err := p.Generate(r); err != nil || p.staged {
					t.Error(err, p.staged)
				}
				same("chosen again", p, run, want)
				p.Close()
			}
		}
	})
}

// Mistakes in mlx/nn/stages.go, of which PLANTED names one.
const plantedRun = `x = run(first, stop, x)
			switch os.Getenv("PLANTED") {
			case "a block run twice":
				x = run(stop-1, stop, x)
			case "a block with the numbers of others":
				x = run(0, stop-first, x)
			}`

const plantedExchange = `now := s.group.Broadcast(x, rank)
		switch mlx.Eval(now); os.Getenv("PLANTED") {
		case "values of the step before":
			mlx.Keep(now)
			key := fmt.Sprint(rank, now.Shape(), now.Dtype())
			if x = before[key]; x == nil {
				x = now
			}
			before[key] = now
		case "a stage whose result is lost":
			x = s.group.Broadcast(x, 0)
		default:
			x = now
		}`

// Mistakes between stages are found. In CI nothing is planted, since that needs a build.
func TestCodeFaults(t *testing.T) {
	if os.Getenv("GOMFLUX_FAULTS") != "all" {
		t.Skip("GOMFLUX_FAULTS=all plants them")
	}
	for _, fault := range []string{
		"", "values of the step before", "a stage whose result is lost", "a block run twice", "a block with the numbers of others",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Setenv("PLANTED", fault)
			out, err := grouptest.Planted(t, "../mlx/nn/stages.go", "TestSplitStages",
				"x = run(first, stop, x)", plantedRun, "x = s.group.Broadcast(x, rank)", plantedExchange,
				"import ", "import (\n\t\"fmt\"\n\t\"os\"\n)\n\nimport ",
				"// NewStages", "var before = map[string]*mlx.Array{}\n\n// NewStages")
			if fault == "" && err != nil || fault != "" && (err == nil || strings.Contains(out, "build failed")) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
