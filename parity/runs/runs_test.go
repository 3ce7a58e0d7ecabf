package runs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

func TestRuns(t *testing.T) {
	tree, _ := open(t)
	if all, err := tree.Runs(); err != nil || len(all) != 0 {
		t.Errorf("found %v, %v", all, err)
	}
	begin := func(began string, more map[string]any) *runs.Run {
		t.Helper()
		r := start(t, tree)
		settings := map[string]any{
			"began": began, "model": "folder/tiny", "prompt": "a square", "seed": uint64(1<<63 + 1),
			"git": map[string]any{"commit": "0123456789", "dirty": true},
		}
		for k, v := range more {
			settings[k] = v
		}
		if err := r.Describe(settings); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := begin("20261122T100000.000000Z", nil)
	save(t, r, tensor(t, "x", 1))
	if err := r.Stat(runs.Record{Name: "y"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Checkpoint("z", nil, nil, runs.Location{}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	begin("20261122T110000.000000Z", nil).Interrupt()
	begin("20261122T120000.000000Z", map[string]any{"ended": "x"}).Close()
	damaged := filepath.Join(tree.Latest(runs.Gomflux), "tensors", "x.safetensors")
	if err := os.WriteFile(damaged, []byte("short"), 0o666); err != nil {
		t.Fatal(err)
	}
	// of a killed run nobody holds the lock
	killed := begin("20261122T130000.000000Z", nil)
	killed.Unlock()
	foreign := tree.Latest(runs.Reference)
	if err := os.MkdirAll(foreign, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(foreign, "x.npy"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	running := begin("20261122T140000.000000Z", nil)
	defer running.Close()

	all, err := tree.Runs()
	if err != nil || len(all) != 6 {
		t.Fatalf("found %+v, %v, expected 6", all, err)
	}
	if f := all[0]; f.Side != runs.Reference || f.State != runs.Unknown || f.Problem == nil || !f.Latest {
		t.Errorf("foreign run: %+v", f)
	}
	for i, want := range []runs.State{runs.Running, runs.Killed, runs.Ended, runs.Interrupted, runs.Ended} {
		r := all[i+1]
		if r.State != want || r.Side != runs.Gomflux || r.Model != "folder/tiny" || r.Prompt != "a square" ||
			r.Seed != "9223372036854775809" || r.Commit != "0123456789" || !r.Dirty || r.Latest != (i == 0) || r.Bytes < 100 {
			t.Errorf("found %+v, expected a run that is %s", r, want)
		}
	}
	if r := all[5]; r.Tensors != 1 || r.Stats != 1 || r.Checkpoints != 1 || r.Problem != nil {
		t.Errorf("found %+v", r)
	}
	if e, ok := errors.AsType[*runs.DamagedError](all[3].Problem); !ok || len(e.Errors) != 1 ||
		!strings.Contains(e.Error(), "x.safetensors: ") {
		t.Errorf("found %+v, expected a damaged file", all[3])
	}

	for text, want := range map[string]string{
		"20261122T10": "20261122T100000.000000Z-gomflux", "2026-11-22 10:00": "20261122T100000.000000Z-gomflux",
		"2026-11-22T11": "20261122T110000.000000Z-gomflux", "20261122T120000.000000Z-gomflux": "20261122T120000.000000Z-gomflux",
		"gomflux": "20261122T140000.000000Z-gomflux", all[5].Dir: "20261122T100000.000000Z-gomflux",
	} {
		if r, err := tree.FindRun(text); err != nil || r.Name() != want {
			t.Errorf("%s: found %s, %v, expected %s", text, r.Name(), err, want)
		}
	}
	for text, want := range map[string]string{
		"20261122T1": "no such run 20261122T1: 5 runs begin like this: 20261122T140000.000000Z-gomflux, ",
		"2025":       "no such run 2025, and no folder of this name (the newest are ",
		"":           "no such run ",
		damaged:      "no such run ",
	} {
		if _, err := tree.FindRun(text); !errors.Is(err, runs.ErrNoRun) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: found %v, expected %q", text, err, want)
		}
	}

	// names are looked up in a selected run
	if _, err := tree.Load("x"); !errors.Is(err, runs.ErrNotFound) {
		t.Errorf("found %v", err)
	}
	if err := tree.Select("20261122T10"); err != nil {
		t.Fatal(err)
	}
	if x, err := tree.Load("x"); err != nil || x.Len() != 1 {
		t.Errorf("found %v, %v", x, err)
	}
	if _, err := tree.Load("w"); err == nil || !strings.Contains(err.Error(), all[5].Dir+" (similar: x)") {
		t.Errorf("found %v", err)
	}
}

// TestListDamaged lists what can be read.
func TestListDamaged(t *testing.T) {
	tree, _ := open(t)
	r := start(t, tree)
	defer r.Close()
	save(t, r, tensor(t, "x", 1))
	for _, name := range []string{"b.npy", "c.npz"} {
		if err := os.WriteFile(filepath.Join(r.Dir, "tensors", name), []byte("short"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	all, err := tree.List()
	if e, ok := errors.AsType[*runs.DamagedError](err); !ok || len(e.Errors) != 2 || len(all) != 1 {
		t.Errorf("found %v, %v, expected one tensor and two errors", all, err)
	}
	if x, err := tree.Load("x"); err != nil || x.Len() != 1 {
		t.Errorf("found %v, %v", x, err)
	}
	if _, err := tree.Load("y"); !errors.Is(err, runs.ErrNotFound) || !strings.Contains(err.Error(), "b.npy: ") {
		t.Errorf("found %v", err)
	}
}

func TestRanges(t *testing.T) {
	tree, _ := open(t)
	r := start(t, tree)
	defer r.Close()
	names := []string{"c@0", "b@0", "a@0:in.0", "a@0", "alien"}
	for _, name := range names[:4] {
		if err := r.Trace(name, "output", []int{1}, "float32"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"c@0", "a@0:in.0"} {
		if err := r.Stat(runs.Record{Name: name, Class: "of " + name}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a@0", "b@0", "c@0"} {
		save(t, r, tensor(t, name, 1, 3))
	}
	alien := filepath.Join(r.Dir, "alien.npy")
	if err := checkpoint.WriteFile(alien, []*checkpoint.Array{tensor(t, "", 5, 7)}, nil); err != nil {
		t.Fatal(err)
	}
	info, err := tree.FindRun(runs.Gomflux)
	if err != nil {
		t.Fatal(err)
	}
	records, err := info.Ranges()
	var got []string
	for _, rec := range records {
		got = append(got, rec.Name)
	}
	if err != nil || strings.Join(got, " ") != strings.Join(names, " ") {
		t.Fatalf("found %q, %v, expected %q", got, err, names)
	}
	if records[0].Class != "of c@0" || records[1].Stats.Mean != 2 || records[4].Stats.Mean != 6 {
		t.Errorf("found %+v", records)
	}
	if err := os.WriteFile(alien, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	if records, err = info.Ranges(); len(records) != 4 || err == nil {
		t.Errorf("found %d records, %v", len(records), err)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, filepath.FromSlash(runs.StatsFile)), []byte("x\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if records, err = info.Ranges(); len(records) != 3 || err == nil {
		t.Errorf("found %d records, %v", len(records), err)
	}
}
