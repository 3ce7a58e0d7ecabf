package report

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

func TestTolerances(t *testing.T) {
	table := DefaultTable()
	for _, c := range []struct {
		backend          mlx.Backend
		dtype, stage     string
		max, l2, channel Number
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
