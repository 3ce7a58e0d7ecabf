package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/report"
)

const ordinary = "../models/testdata/zimage-ordinary/dump"

// exact is the dtype of runs in which faults are held against the tolerances for float32, which is
// not the default dtype of GPUs.
var exact = new(mlx.Float32)

// A report with a fault names it in every form.
func TestReport(t *testing.T) {
	bug := onto("vae.decode.in", func(x *mlx.Array) *mlx.Array { return x.Times(2) })
	r, err := Replay(context.Background(), ordinary, Options{Dtype: exact, bug: bug})
	if err != nil {
		t.Fatal(err)
	}
	// what comes before holds, from the start and by itself
	for _, s := range r.Stages {
		if want := s.Name != "vae" && s.Name != "picture"; s.OK != want {
			t.Errorf("stage %+v", s)
		}
	}
	in := r.Find("vae.decode.in")
	if in.Free.OK || in.Own.OK || math.Abs(float64(in.Own.L2)-1) > 1e-5 {
		t.Errorf("vae.decode.in: %+v, %+v", in.Free, in.Own)
	}
	// by itself the decoder holds
	if d := r.Find("vae.decoder.conv_in"); d.Free.OK || !d.Own.OK || !d.Isolated.OK {
		t.Errorf("conv_in: free %v, isolated %v, own %v", d.Free, d.Isolated, d.Own)
	}

	var text bytes.Buffer
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, text.String(), "FAIL: vae.decode.in diverges first, in stage vae", "hint: ours is 2 times the reference everywhere")
	if n := strings.Count(text.String(), "\n"); n > 20 {
		t.Errorf("%d lines without --all:\n%s", n, &text)
	}
	text.Reset()
	if err := r.Print(&text, true); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, text.String(), "vae.decoder.conv_in (output, vae) DIFFERS", "cosine", "of 51 beyond 1e-05 + 1e-05·|reference|",
		"first ", "range ")

	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Verdict struct {
			Module string
			Hints  []report.Hint
		}
		Tensors []struct {
			Name string
			OK   bool
			Own  *struct{ L2 *float64 }
		}
	}
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Verdict.Module != "vae.decode.in" || len(back.Verdict.Hints) != 1 || len(back.Tensors) != len(r.Tensors) {
		t.Errorf("JSON has %+v", back.Verdict)
	}

	var html bytes.Buffer
	if err := r.HTML(&html); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, html.String(), "FAIL", "<svg", "vae.decode.in", "data:image/png;base64,", "histogram", "difference, times")
	plots, _, _ := strings.Cut(html.String(), "<script>")
	if strings.Contains(plots, "%!") || regexp.MustCompile(` (x|y|cx|cy|x1|y1|x2|y2)="[^"]*[^0-9."-]`).MatchString(plots) {
		t.Error("the page has invalid numbers")
	}
	if n := strings.Count(html.String(), "<img "); n != 3 {
		t.Errorf("%d pictures", n)
	}
	if found := regexp.MustCompile(`(src|href)="(?:[^d]|d[^a])[^"]*"|https?://|@import|url\(`).FindString(html.String()); found != "" {
		t.Errorf("the page refers to %s", found)
	}
}

// Without a finite number in it a report can still be written.
func TestReportNotFinite(t *testing.T) {
	bug := onto("vae.decoder.conv_in", func(x *mlx.Array) *mlx.Array { return x.Times(math.NaN()) })
	r, err := Replay(context.Background(), ordinary, Options{Dtype: exact, bug: bug})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict.OK || r.Verdict.Module != "vae.decoder.conv_in" || r.Verdict.Hints[0].Key != "not finite" {
		t.Errorf("verdict %+v", r.Verdict)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	for _, f := range []func() error{
		func() error { return r.Print(&bytes.Buffer{}, true) },
		func() error { return r.HTML(&bytes.Buffer{}) },
	} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
}

func TestReadings(t *testing.T) {
	r, err := Replay(context.Background(), ordinary, Options{Dtype: exact, Readings: []string{report.Free}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || r.Find("noise_pred@0").Free == nil || r.Find("noise_pred@0").Own != nil {
		t.Errorf("verdict %+v", r.Verdict)
	}
	// what no tolerance could hold is drift, or a module's fault
	zero := report.Number(0)
	strict := report.DefaultTable()
	strict.Rules = append(strict.Rules, report.Rule{Stage: "step", Reading: report.Free, Max: &zero, L2: &zero})
	r, err = Replay(context.Background(), ordinary, Options{Dtype: exact, Tolerances: strict})
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Stage != "step 0" || !strings.Contains(v.Text, "every module is within tolerance") {
		t.Errorf("verdict %+v", v)
	}
}

// A step that the reference has and this program does not make is no pass.
func TestMissingStep(t *testing.T) {
	dir := t.TempDir()
	for part, from := range map[string]string{"dump": ordinary, "model": filepath.Join(ordinary, "..", "model")} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	run := filepath.Join(dir, "dump")
	edited(t, filepath.Join(run, "settings.json"), "aliases", map[string]string{"latents@2": "latents@1"})
	r, err := Replay(context.Background(), run,
		Options{Dtype: exact, Model: filepath.Join(dir, "model"), Readings: []string{report.Isolated}, quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; v.OK || v.Tensor != "latents@2" || v.Stage != "step 2" {
		t.Errorf("verdict %+v", v)
	}
}

func TestReplayRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(t *testing.T, run string)
		err  string
	}{
		"no settings": {func(t *testing.T, run string) { remove(t, run, "settings.json") }, "settings.json"},
		"no tensors":  {func(t *testing.T, run string) { remove(t, run, "tensors-2.safetensors") }, "tensors-2.safetensors"},
		"no model":    {func(t *testing.T, run string) { edited(t, filepath.Join(run, "settings.json"), "model", "") }, "name no model"},
		"odd height":  {func(t *testing.T, run string) { edited(t, filepath.Join(run, "settings.json"), "height", 23) }, "height 23"},
		"lost alias": {func(t *testing.T, run string) {
			edited(t, filepath.Join(run, "settings.json"), "aliases", map[string]string{"a": "b"})
		}, "alias a: no file has the tensor b"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "zimage-ordinary", "dump"), os.DirFS(ordinary)); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(filepath.Join(dir, "zimage-ordinary", "model"),
				os.DirFS(filepath.Join(ordinary, "..", "model"))); err != nil {
				t.Fatal(err)
			}
			run := filepath.Join(dir, "zimage-ordinary", "dump")
			c.edit(t, run)
			_, err := Replay(context.Background(), run, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			mlxtest.Contains(t, err.Error(), c.err)
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func TestDiffRuns(t *testing.T) {
	r, err := DiffRuns(context.Background(), ordinary, ordinary, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || len(r.Tensors) < 300 || len(r.Missing) > 0 {
		t.Errorf("%d tensors, %d missing: %+v", len(r.Tensors), len(r.Missing), r.Verdict)
	}
	r, err = DiffRuns(context.Background(), "../models/testdata/zimage-small/dump", ordinary, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict.OK || len(r.Missing) == 0 {
		t.Errorf("%d missing: %+v", len(r.Missing), r.Verdict)
	}
	for _, want := range []string{
		"the runs have other settings, negative_prompt ", ", seed 2 (the reference's 1), ",
		", guidance 3.5 (the reference's 0.0)"} {
		if !strings.Contains(r.Verdict.Text, want) {
			t.Errorf("%s: expected it to contain %q", r.Verdict.Text, want)
		}
	}
}
