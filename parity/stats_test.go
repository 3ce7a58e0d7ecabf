package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/parity/runs"
)

// writeStats writes a run that has statistics of arrays alone.
func writeStats(t *testing.T, settings string, records []runs.Record) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "traces"), 0o777); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	for _, rec := range records {
		line, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(runs.StatsFile)), lines.Bytes(), 0o666)
	if err == nil && settings != "" {
		err = os.WriteFile(filepath.Join(dir, "settings.json"), []byte(settings), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func recordsOf(arrays []*checkpoint.Array) []runs.Record {
	var out []runs.Record
	for _, a := range arrays {
		rec := runs.Record{Name: a.Name, HitCount: 1, Shape: a.Shape, Dtype: a.Dtype.Long(), Stats: a.Stats()}
		for _, v := range a.First(10) {
			rec.Preview = append(rec.Preview, checkpoint.Float(v))
		}
		out = append(out, rec)
	}
	return out
}

// TestDiffStats compares a run of which only statistics were recorded with one that has values, and
// with another one of statistics.
func TestDiffStats(t *testing.T) {
	arrays := arraysOf(t, ordinary)
	alone := writeStats(t, "", recordsOf(arrays))
	for _, sides := range [][2]string{{alone, ordinary}, {ordinary, alone}, {alone, alone}} {
		r, err := DiffRuns(context.Background(), sides[0], sides[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Verdict.OK || r.Statistics != len(arrays) || len(r.Tensors) != len(arrays) {
			t.Errorf("statistics of %d of %d tensors, expected %d: %+v", r.Statistics, len(r.Tensors), len(arrays), r.Verdict)
		}
		var text, page bytes.Buffer
		if err := r.Print(&text, true); err != nil {
			t.Fatal(err)
		}
		mlxtest.Contains(t, text.String(), "statistics alone: of ", "statistics: min off by 0, max 0, mean ")
		if err := r.HTML(&page); err != nil {
			t.Fatal(err)
		}
		mlxtest.Contains(t, page.String(), "only the statistics, since one side has no values")
	}
	at := 0
	for i, a := range arrays {
		if a.Name == "transformer.layers.0@0" {
			at = i
		}
	}
	for name, c := range map[string]struct {
		change func(rec *runs.Record)
		text   string
	}{
		"mean":       {func(rec *runs.Record) { rec.Stats.Mean += 1e-3 * (rec.Stats.Max - rec.Stats.Min) }, "mean 1.0e-03, std 0 of "},
		"range":      {func(rec *runs.Record) { rec.Stats.Max *= 1.01 }, "min off by 0, max 4."},
		"first":      {func(rec *runs.Record) { rec.Preview[3] += 1 }, "first values "},
		"not finite": {func(rec *runs.Record) { rec.Stats.NaN = 3 }, "3 values that are not finite, the reference's 0"},
		"all NaN": {func(rec *runs.Record) {
			nan := checkpoint.Float(math.NaN())
			rec.Stats = checkpoint.Stats{Min: nan, Max: nan, Mean: nan, Std: nan, NaN: arrays[at].Len()}
		}, "values that are not finite, the reference's 0"},
		"shape": {func(rec *runs.Record) { rec.Shape = []int{83, 1, 16} }, "it has shape [83 1 16], the reference's "},
	} {
		records := recordsOf(arrays)
		c.change(&records[at])
		r, err := DiffRuns(context.Background(), writeStats(t, "", records), ordinary, nil)
		if err != nil {
			t.Fatal(err)
		}
		v := r.Verdict
		if v.OK || v.Tensor != "transformer.layers.0@0" || len(v.Others) > 0 || !strings.Contains(v.Text, c.text) {
			t.Errorf("%s: %+v, expected %q", name, v, c.text)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// a tensor within its tolerance has statistics within it
	records := recordsOf(arrays)
	for i := range records {
		s := &records[i].Stats
		s.Max *= 1 + 1e-6
	}
	r, err := DiffRuns(context.Background(), writeStats(t, "", records), ordinary, nil)
	if err != nil || r.Find("transformer.layers.0@0").Stats == nil || !r.Find("transformer.layers.0@0").OK() {
		t.Errorf("rounding: %v, %+v", err, r.Verdict)
	}
	_, err = Replay(context.Background(), writeStats(t, `{"prompt": "a"}`, records), Options{})
	if err == nil || !strings.Contains(err.Error(), "it has only statistics of tensors") {
		t.Errorf("a replay of statistics: %v", err)
	}
}

// TestDiffStatsOfBatch has statistics of prompt and negative prompt in one batch, which are not
// those of either.
func TestDiffStatsOfBatch(t *testing.T) {
	run := "../models/testdata/zimage-small/dump"
	settings, err := os.ReadFile(filepath.Join(run, "settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(settings, &m); err != nil {
		t.Fatal(err)
	}
	delete(m, "files")
	delete(m, "aliases")
	if settings, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	rec := func(name string, shape ...int) runs.Record {
		return runs.Record{Name: name, HitCount: 1, Shape: shape, Dtype: "float32", Stats: checkpoint.Stats{Max: 1}}
	}
	ref := writeStats(t, string(settings), []runs.Record{rec("transformer.layers.0@0", 2, 128, 16), rec("vae.decode.in", 1, 4, 2, 2)})
	ours := writeStats(t, "", []runs.Record{rec("transformer.layers.0@0", 1, 128, 16), rec("transformer.layers.0@0#1", 1, 128, 16),
		rec("vae.decode.in", 1, 4, 2, 2)})
	r, err := DiffRuns(context.Background(), ours, ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.OK || len(r.Tensors) != 1 || len(r.Untapped) != 1 || len(r.Untapped[0].Names) != 1 ||
		!strings.Contains(r.Untapped[0].Reason, "in one batch") {
		t.Errorf("%+v, %+v", r.Verdict, r.Untapped)
	}
}
