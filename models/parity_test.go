package models_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity"
	"github.com/gomflux/gomflux/parity/report"
	"github.com/gomflux/gomflux/parity/runs"
)

// TestParity replays the dumps in testdata, and compares every tensor with a tap: freely, from
// prompt, initial latents and image to the result, and with the reference's inputs for every module.
func TestParity(t *testing.T) {
	for _, dump := range modeltest.Dumps(t) {
		if dump.Compute == "float32" {
			t.Run(dump.Name, func(t *testing.T) { replayGolden(t, dump.Name, parity.Options{}) })
		}
	}
}

// TestParityFloat16 replays the dumps in float16. The limits are about twice what was measured.
func TestParityFloat16(t *testing.T) {
	dtype := mlx.Float16
	limits := map[string]report.Number{"own": 1e-2, "own L2": 8e-3, "free": 2e-2, "free L2": 8e-3}
	for _, dump := range modeltest.Dumps(t) {
		if dump.Compute != "float16" {
			continue
		}
		t.Run(dump.Name, func(t *testing.T) {
			rep := replayGolden(t, dump.Name, parity.Options{Dtype: &dtype})
			most := map[string]report.Number{}
			for _, tensor := range rep.Tensors {
				for reading, d := range map[string]*report.Reading{"own": tensor.Own, "free": tensor.Free} {
					if d != nil {
						most[reading] = max(most[reading], d.Relative())
						most[reading+" L2"] = max(most[reading+" L2"], d.L2)
					}
				}
			}
			t.Logf("the largest differences are %v", most)
			for reading, limit := range limits {
				if !(most[reading] <= limit) {
					t.Errorf("%s: %.2g, expected at most %.2g", reading, most[reading], limit)
				}
			}
		})
	}
}

// keepGolden writes a page with both images and the tensors of both sides that differ into a folder.
func keepGolden(t *testing.T, dir, run string, o parity.Options, rep *report.Report) {
	t.Helper()
	page, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	sides := map[string][]*checkpoint.Array{}
	o.Measure = func(p parity.Pair) {
		name := p.Tap.FullName()
		if was := rep.Find(name); was == nil || was.OK() {
			return
		}
		for side, x := range map[string]*mlx.Array{"gomflux": p.Tap.Output, "reference": p.Reference} {
			a, err := runs.FromArray(name, x)
			if err != nil {
				t.Error(err)
				continue
			}
			sides[side] = append(sides[side], a)
		}
	}
	_, err = parity.Replay(t.Context(), run, o)
	err = errors.Join(err, rep.HTML(page), page.Close())
	for side, all := range sides {
		err = errors.Join(err, checkpoint.WriteFile(filepath.Join(dir, side+".safetensors"), all, nil))
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("images and tensors are in %s: report.html; gomflux tensors diff gomflux.safetensors reference.safetensors", dir)
}

// TestKeepGolden keeps what differs of a golden: here everything does, by its tolerances.
func TestKeepGolden(t *testing.T) {
	zero := report.Number(0)
	strict := report.DefaultTable()
	strict.Rules = append(strict.Rules, report.Rule{Stage: "vae", Max: &zero, L2: &zero})
	run, dir := filepath.Join("testdata", "zimage-small", "dump"), t.TempDir()
	o := parity.Options{Tolerances: strict}
	rep, err := parity.Replay(t.Context(), run, o)
	if err != nil || rep.Verdict.OK {
		t.Fatalf("%v, %v", rep, err)
	}
	keepGolden(t, dir, run, o, rep)
	ours, err := checkpoint.ReadFile(os.DirFS(dir), "gomflux.safetensors", 1<<20)
	if err != nil || !strings.Contains(string(ours), `"vae.decode.out"`) || strings.Contains(string(ours), `"latents@0"`) {
		t.Errorf("%d bytes (%v)", len(ours), err)
	}
	for _, name := range []string{"reference.safetensors", "report.html"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func replayGolden(t *testing.T, golden string, o parity.Options) *report.Report {
	t.Helper()
	run := filepath.Join("testdata", golden, "dump")
	rep, err := parity.Replay(t.Context(), run, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			keepGolden(t, modeltest.Keep(t), run, o, rep)
		}
	}()
	free, owned := 0, 0
	worst, worstName := report.Number(0), ""
	worstFree, worstFreeName := report.Number(0), "" // of what a step makes
	for _, tensor := range rep.Tensors {
		if !tensor.OK() {
			t.Errorf("%s: shape %v of %v, free %v, isolated %v, own %v", tensor.Name, tensor.Shape, tensor.RefShape,
				tensor.Free, tensor.Isolated, tensor.Own)
		}
		if tensor.Free != nil {
			free++
			if name, _, _ := strings.Cut(tensor.Name, "@"); (name == "latents" || name == "noise_pred") &&
				tensor.Free.Relative() > worstFree {
				worstFree, worstFreeName = tensor.Free.Relative(), tensor.Name
			}
		}
		if tensor.Own != nil {
			owned++
			if tensor.Name != "image" && tensor.Own.Relative() > worst {
				worst, worstName = tensor.Own.Relative(), tensor.Name
			}
		}
	}
	for _, name := range []string{"image.in", "image.in#1", "image.condition", "image.condition#1"} {
		if in := rep.Find(name); in != nil && in.Free.Max != 0 {
			t.Errorf("%s: %v, expected no difference", name, in.Free)
		}
	}
	t.Logf("%d tensors, worst own error %.1e (%s), worst free error %.1e (%s)", len(rep.Tensors), worst,
		worstName, worstFree, worstFreeName)
	if worstFreeName == "" {
		t.Error("no latents or predictions were read freely")
	}
	if free < 8 || owned < free {
		t.Errorf("%d tensors read freely, %d by themselves", free, owned)
	}
	if rep.FirstStep != rep.RefFirstStep {
		t.Errorf("ran from step %d, expected %d", rep.FirstStep, rep.RefFirstStep)
	}
	if len(rep.Missing) > 0 {
		t.Errorf("in the dump and not tapped: %s", strings.Join(rep.Missing, ", "))
	}
	if !rep.Verdict.OK {
		t.Errorf("verdict: %+v", rep.Verdict)
	}
	names := []string{}
	for _, stage := range rep.Stages {
		names = append(names, stage.Name)
	}
	if names[0] != "picture" || names[1] != "vae" || !slices.Contains(names, "tokenizer") || names[len(names)-1] != "scheduler" {
		t.Errorf("stages %q", names)
	}
	return rep
}
