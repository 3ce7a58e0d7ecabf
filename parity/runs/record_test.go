package runs_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

// TestRecord compares recorded statistics with those of saved tensors.
func TestRecord(t *testing.T) {
	tree, warnings := open(t)
	all := []string{"*", "*:weights", "*:entropy"}
	s, _, err := run(t, tree, model, runs.Options{Save: all, Stats: append(all, "!vae.*", "nothing")})
	if err != nil {
		t.Fatal(err)
	}
	records, err := runs.ReadStats(os.DirFS(s.Run().Dir))
	if err != nil || len(records) != s.Run().Recorded() || len(*warnings) > 0 {
		t.Fatalf("%d records, %v, expected %d; warnings %q", len(records), err, s.Run().Recorded(), *warnings)
	}
	entries, err := tree.List()
	if err != nil {
		t.Fatal(err)
	}
	saved := map[string]*runs.Record{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name, "vae.") {
			saved[e.Name] = e.Record
		}
	}
	if len(saved) != len(records) || len(records) < 500 {
		t.Errorf("%d records, %d saved", len(records), len(saved))
	}
	classes := map[string]bool{}
	for _, rec := range records {
		want := saved[rec.Name]
		if want == nil {
			t.Errorf("%s was not saved", rec.Name)
			continue
		}
		near := func(a, b checkpoint.Float) bool {
			size := max(math.Abs(float64(want.Stats.Min)), math.Abs(float64(want.Stats.Max)))
			return math.Abs(float64(a-b)) <= 3e-7*size
		}
		if rec.Stats.Min != want.Stats.Min || rec.Stats.Max != want.Stats.Max || !near(rec.Stats.Mean, want.Stats.Mean) ||
			!near(rec.Stats.Std, want.Stats.Std) || !slices.Equal(rec.Preview, want.Preview) || !slices.Equal(rec.Shape, want.Shape) ||
			rec.Dtype != want.Dtype || rec.Location != want.Location || rec.Class != want.Class || rec.Point != want.Point {
			t.Errorf("found %+v, expected %+v", rec, *want)
		}
		classes[rec.Class] = true
	}
	if !classes[""] || !classes["nn.Linear"] || len(classes) < 8 {
		t.Errorf("classes %v", classes)
	}
	if got := s.UnmatchedGlobs(); !slices.Equal(got, []runs.Glob{{Option: "stats", Pattern: "nothing"}}) {
		t.Errorf("unmatched globs %q", got)
	}
	// the trace and the statistics have the same order
	trace, err := os.ReadFile(filepath.Join(s.Run().Dir, "traces", "taps.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for line := range strings.Lines(string(trace)) {
		if i < len(records) && strings.HasPrefix(line, `{"name":"`+records[i].Name+`"`) {
			i++
		}
	}
	if i != len(records) {
		t.Errorf("record %d, %s, is in another order", i, records[i].Name)
	}
	if n, longest := len(trace)/max(1, i), 120; n > 3*longest {
		t.Errorf("%d bytes per line", n)
	}
}

// settings reads the settings of a run's folder.
func settings(t *testing.T, dir string) (found map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "settings.json"))
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestInterrupted(t *testing.T) {
	tree, _ := open(t)
	s, err := runs.NewSession(tree, runs.Options{Stats: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := s.Run().Dir
	if _, err := s.Run().Write([]byte("one\n")); err != nil {
		t.Error(err)
	}
	if err := s.Interrupt(); err != nil {
		t.Error(err)
	}
	if got := settings(t, dir); got["interrupted"] != true || got["ended"] != nil || got["stats"] != 0.0 {
		t.Errorf("settings %v", got)
	}
	if text, err := os.ReadFile(filepath.Join(dir, runs.OutputFile)); err != nil || string(text) != "one\n" {
		t.Errorf("output %q, %v", text, err)
	}
	start(t, tree).Close()
	if got := settings(t, tree.Latest(runs.Gomflux)); got["interrupted"] != nil || got["ended"] == nil {
		t.Errorf("settings %v", got)
	}
}

// TestRecordFails: the image is made although nothing can be recorded.
func TestRecordFails(t *testing.T) {
	request := runs.Options{Stats: []string{"latents"}}
	saving := request
	saving.Save = []string{"latents"}
	check := func(what string, o runs.Options, tree *runs.Tree, warnings *[]string, damage func(dir string)) {
		t.Helper()
		*warnings = nil
		s, err := runs.NewSession(tree, o)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if s.Run() != nil {
			damage(s.Run().Dir)
		}
		res, err := generateFrom(s, model)
		if err != nil || res.Image == nil {
			t.Errorf("%s: no image: %v", what, err)
		}
		lost := s.Lost()
		if err := s.Close(); err != nil && len(o.Save) == 0 {
			t.Errorf("%s: %v", what, err)
		}
		if len(o.Save) > 0 {
			if lost == nil || len(*warnings) > 0 {
				t.Errorf("%s: lost %v, warnings %q, expected an error alone", what, lost, *warnings)
			}
		} else if lost != nil || len(*warnings) != 1 || !strings.HasPrefix((*warnings)[0], "nothing more is recorded of the run: ") {
			t.Errorf("%s: lost %v, warnings %q, expected one", what, lost, *warnings)
		}
	}
	for _, folder := range []string{"traces", "tensors", "."} {
		for _, o := range []runs.Options{request, saving} {
			if folder == "tensors" && len(o.Save) == 0 {
				continue
			}
			tree, warnings := open(t)
			check(folder, o, tree, warnings, func(dir string) {
				if err := os.RemoveAll(filepath.Join(dir, folder)); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	tree, warnings := open(t)
	tree.Limit = 3000 // after the settings and some lines
	check("limit", request, tree, warnings, func(string) {})
	tree, warnings = open(t)
	tree.Limit = 3000
	check("limit", saving, tree, warnings, func(string) {})

	// the folder of runs cannot be made
	tree, warnings = open(t)
	if err := os.WriteFile(tree.Root, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	check("root", request, tree, warnings, nil)
	if _, err := runs.NewSession(tree, saving); err == nil {
		t.Error("a run began in a file")
	}
}
