package runs_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

func TestStats(t *testing.T) {
	tree, _ := open(t)
	r := start(t, tree)
	defer r.Close()
	fsys := os.DirFS(r.Dir)
	if _, err := runs.ReadStats(fsys); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "traces/stats.jsonl: ") {
		t.Errorf("without statistics: %v", err)
	}
	nan := checkpoint.Float(math.NaN())
	first := runs.Record{
		Name: "vae.decoder.conv_in", Class: "nn.Conv2d", Point: "output", Shape: []int{1, 2}, Dtype: "bfloat16",
		Stats: checkpoint.Stats{Min: 1, Max: 1, Mean: 1, Inf: 1}, Preview: []checkpoint.Float{1, checkpoint.Float(math.Inf(1))},
	}
	second := runs.Record{Name: "latents@0", Stats: checkpoint.Stats{Min: nan, Max: nan, Mean: nan, Std: nan}}
	for _, rec := range []runs.Record{first, second, second} {
		if err := r.Stat(rec); err != nil {
			t.Fatal(err)
		}
	}
	// the lines are there before the run ends, and half a line is that of a killed run
	file := filepath.Join(r.Dir, filepath.FromSlash(runs.StatsFile))
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"name":"latents@1","hit_co`)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := runs.ReadStats(fsys)
	if err != nil || len(got) != 3 || r.Recorded() != 3 {
		t.Fatalf("found %d records, %v, expected 3", len(got), err)
	}
	if got[0].Class != first.Class || got[0].HitCount != 1 || got[2].HitCount != 2 || got[0].Stats != first.Stats ||
		!slices.Equal(got[0].Preview, first.Preview) || !math.IsNaN(float64(got[1].Stats.Mean)) {
		t.Errorf("found %+v", got)
	}
}

func TestReadDamagedStats(t *testing.T) {
	const line = `{"name":"a","shape":[1]}` + "\n"
	for text, want := range map[string]string{
		line + "{\n":                                "line 2: unexpected end of JSON input",
		line + "\n" + `{"shape":[1]}` + "\n":        "line 3: has no name",
		`{"name":"a","shape":[-1]}` + "\n":          "line 1: tensor a: negative size in shape [-1]",
		`{"name":"a","stats":{"nan":-1}}` + "\n":    "line 1: tensor a: negative number of NaN",
		`{"name":"a","stats":{"min":"x"}}` + "\n":   `line 1: "x" is not a number`,
		"\x89PNG\r\n\x1a\n":                         "line 1: invalid character",
		strings.Repeat(" ", 1<<17) + "\n":           "token too long",
		`{"name":"a","stats":{"min":1e999}}` + "\n": "line 1: json: cannot unmarshal number 1e999",
	} {
		_, err := runs.ReadStats(fstest.MapFS{runs.StatsFile: {Data: []byte(text)}})
		if err == nil || !strings.HasPrefix(err.Error(), "traces/stats.jsonl: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: found %v, expected %q", text, err, want)
		}
	}
	if _, err := runs.ReadStats(fstest.MapFS{runs.StatsFile: {Mode: fs.ModeDir}}); err == nil {
		t.Error("a folder was read")
	}
}
