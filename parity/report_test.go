package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
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
	if in.Free.OK || in.Own.OK || math.Abs(in.Own.L2-1) > 1e-5 {
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
			Hints  []Hint
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
	r, err := Replay(context.Background(), ordinary, Options{Dtype: exact, Readings: []string{Free}})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || r.Find("noise_pred@0").Free == nil || r.Find("noise_pred@0").Own != nil {
		t.Errorf("verdict %+v", r.Verdict)
	}
	// what no tolerance could hold is drift, or a module's fault
	zero := 0.0
	strict := &Table{Rules: append(DefaultTable().Rules, Rule{Stage: "step", Reading: Free, Max: &zero, L2: &zero})}
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
		Options{Dtype: exact, Model: filepath.Join(dir, "model"), Readings: []string{Isolated}, quick: true})
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
}

func TestTolerances(t *testing.T) {
	table := DefaultTable()
	for _, c := range []struct {
		backend          mlx.Backend
		dtype, stage     string
		max, l2, channel float64
	}{
		{mlx.BackendCPU, "float32", "step", 2e-5, 1e-5, 1e-5},
		{mlx.BackendMetal, "bfloat16", "step", 2e-2, 1e-2, 3e-2},
		{mlx.BackendCUDA, "bfloat16", "step", 2e-2, 1e-2, 3e-2},
		{mlx.BackendCPU, "float16", "vae", 1e-2, 1e-2, 3e-2},
		{mlx.BackendCPU, "float32", "tokenizer", 0, 0, 0},
	} {
		if got := table.For(c.backend, c.dtype, c.stage, Own, "x"); got.Max != c.max || got.L2 != c.l2 || got.Channel != c.channel {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if own := table.For(mlx.BackendCPU, "float32", "vae", Own, "x"); Float32.Max != own.Max || Float32.L2 != own.L2 {
		t.Error("Float32 is not the table's")
	}
	file := filepath.Join(t.TempDir(), "t.json")
	for text, want := range map[string]string{
		`{"rules": [{"stage": "step", "max": 0.5}]}`:         "",
		`{"rules": [{"stage": "steps", "max": 0.5}]}`:        "unknown stage",
		`{"rules": [{"max": -1}]}`:                           "number from 0",
		`{"rules": []}`:                                      "no rules",
		`{"rules": [{"maximum": 1}]}`:                        "unknown field",
		`{"rules": [{"dtype": "fp32", "max": 1}]}`:           "unknown dtype",
		`{"rules": [{"reading": "isolated", "stage": "x"}]}`: "unknown stage",
		`{"rules": [{"device": "tpu", "reading": "free"}]}`:  "unknown device",
		`{"rules": [{"reading": "both", "device": "cpu"}]}`:  "unknown reading",
		`{"rules": [{"tensor": "[", "max": 1}]}`:             "syntax error",
		`not JSON`:                                           "invalid character",
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := ReadTable(file)
		switch {
		case want == "" && (err != nil || got.For(mlx.BackendCPU, "float32", "step", Free, "x").Max != 0.5 ||
			got.For(mlx.BackendCPU, "float32", "vae", Own, "x").Max != 2e-5):
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, expected %q", text, err, want)
		}
	}
}

// TestDeviceRules: a rule for a GPU is for Metal and CUDA, and one for no device for
// all.
func TestDeviceRules(t *testing.T) {
	table, err := parseTable([]byte(`{"rules": [{"max": 1, "l2": 1}, {"device": "gpu", "max": 2}, {"device": "cpu", "l2": 3}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for backend, want := range map[mlx.Backend]Tolerance{
		mlx.BackendCPU: {Max: 1, L2: 3}, mlx.BackendMetal: {Max: 2, L2: 1}, mlx.BackendCUDA: {Max: 2, L2: 1},
	} {
		if got := table.For(backend, "float32", "step", Own, "x"); got != want {
			t.Errorf("%v: %+v, expected %+v", backend, got, want)
		}
	}
}

// TestSinusoids: the sinusoids of a time may differ by the last bit of their
// frequencies, and by no more of the time.
func TestSinusoids(t *testing.T) {
	const time = 1000
	embed := func(time float32, rounded map[int]float32) []float32 { // with frequencies that are rounded towards 0 or 1
		values := make([]float32, 256)
		for i := range 128 {
			f := float32(math.Exp(float64(float32(-math.Log(10000)) * float32(i) / 128)))
			if towards, ok := rounded[i]; ok {
				f = math.Nextafter32(f, towards)
			}
			values[i], values[128+i] = float32(math.Cos(float64(time*f))), float32(math.Sin(float64(time*f)))
		}
		return values
	}
	// by torch's exp, in which MKL has code for any processor, for AVX-512 and for AVX2
	processors := []map[int]float32{{12: 1, 106: 1}, {13: 1, 44: 1, 119: 1}, {2: 1, 78: 0, 92: 0, 98: 1, 110: 1, 117: 1}}
	const module = "transformer.time_text_embed.time_proj@0"
	differ := func(name, reading string, got, want []float32) *Reading {
		return newReading(name, got, want, []int{1, 256}, DefaultTable().For(mlx.BackendCPU, "float32", "step", reading, name))
	}
	for _, a := range processors {
		for _, b := range processors {
			for _, reading := range []string{Own, Isolated, Free} {
				if d := differ(module, reading, embed(time, a), embed(time, b)); !d.OK {
					t.Errorf("%v and %v, %s: %v", a, b, reading, d)
				}
			}
		}
	}
	ours := embed(time, processors[0])
	if d := differ("transformer.time_text_embed@0", Own, embed(time, processors[1]), ours); d.OK {
		t.Errorf("another module: %v, expected that it does not hold", d)
	}
	last := math.Nextafter32(math.Nextafter32(time, 0), 0)
	if d := differ(module, Own, embed(last, processors[0]), ours); d.OK {
		t.Errorf("a time of %v for %v: %v, expected that it does not hold", last, time, d)
	}
}

// A channel of tens of millions must not hide the others.
func TestChannels(t *testing.T) {
	got, want := make([]float32, 3*64), make([]float32, 3*64)
	for i, v := range mlxtest.Random(1, len(want)) {
		want[i] = v
		if i%3 == 1 {
			want[i] *= 4e7
		}
		got[i] = want[i]
		if i%3 == 2 {
			got[i] *= 1.01
		}
	}
	d := Compare(got, want)
	if !d.Within(Float32) {
		t.Errorf("%v: expected that the whole hides it", d)
	}
	d.channels(got, want, []int{64, 3}, 1)
	if d.ChannelAt != 2 || math.Abs(d.Channel-0.01) > 1e-4 ||
		d.Within(DefaultTable().For(mlx.BackendCPU, "float32", "step", Isolated, "x")) {
		t.Errorf("channel %d is off by %v", d.ChannelAt, d.Channel)
	}
}

func TestCompareImages(t *testing.T) {
	const w, h = 24, 17
	a, b := image.NewRGBA(image.Rect(0, 0, w, h)), image.NewRGBA(image.Rect(5, 5, 5+w, 5+h))
	for y := range h {
		for x := range w {
			c := color.RGBA{uint8(x * 9), uint8(y * 13), uint8((x*x + 7*y) % 251), 255}
			a.SetRGBA(x, y, c)
			c.R ^= uint8(x * y % 8)
			c.B += 3
			b.SetRGBA(x+5, y+5, c)
		}
	}
	same, err := CompareImages(a, a)
	if err != nil || same.Max != 0 || same.Mean != 0 || !math.IsInf(same.PSNR, 1) || math.Abs(same.SSIM-1) > 1e-12 {
		t.Errorf("a picture and itself: %+v, %v", same, err)
	}
	d, err := CompareImages(a, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", d)
	// computed with NumPy from the formulas
	want := ImageDifference{Max: 7, Mean: 1.6862745098039216, PSNR: 40.537829166117376, SSIM: 0.9941713794650291}
	if d.Max != want.Max || math.Abs(d.Mean-want.Mean) > 1e-9 || math.Abs(d.PSNR-want.PSNR) > 1e-9 || math.Abs(d.SSIM-want.SSIM) > 1e-9 {
		t.Errorf("found %+v, expected %+v", d, want)
	}
	if _, err := CompareImages(a, image.NewRGBA(image.Rect(0, 0, w, w))); err == nil {
		t.Error("pictures of other sizes were compared")
	}
	clear := image.NewNRGBA(a.Rect)
	copy(clear.Pix, a.Pix)
	for i := 3; i < len(clear.Pix)/2; i += 4 {
		clear.Pix[i] -= 12
	}
	for _, pair := range [][2]image.Image{{a, clear}, {clear, a}} {
		d, err := CompareImages(pair[0], pair[1])
		if want := 12 * 0.5 / 4; err != nil || d.Max != 12 || math.Abs(d.Mean-want) > 1e-9 || d.SSIM >= 1 {
			t.Errorf("alpha: %+v, %v, expected a mean of %v", d, err, want)
		}
	}
	if d, err := CompareImages(clear, clear); err != nil || d.Max != 0 || math.Abs(d.SSIM-1) > 1e-12 {
		t.Errorf("a transparent picture and itself: %+v, %v", d, err)
	}
	small := a.SubImage(image.Rect(2, 2, 5, 4)).(*image.RGBA)
	if d, err := CompareImages(small, small); err != nil || math.Abs(d.SSIM-1) > 1e-12 {
		t.Errorf("a small picture and itself: %+v, %v", d, err)
	}
}
