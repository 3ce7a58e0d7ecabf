package runs_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/parity/runs"
)

// open is a tree of its own, whose warnings are collected.
func open(t *testing.T) (*runs.Tree, *[]string) {
	t.Helper()
	tree, err := runs.Open(filepath.Join(t.TempDir(), "logs"))
	if err != nil {
		t.Fatal(err)
	}
	var warnings []string
	tree.Warnf = func(format string, args ...any) { warnings = append(warnings, format) }
	return tree, &warnings
}

func start(t *testing.T, tree *runs.Tree) *runs.Run {
	t.Helper()
	r, err := tree.Start(runs.Gomflux)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tensor(t *testing.T, name string, values ...float32) *checkpoint.Array {
	t.Helper()
	x, err := checkpoint.FromFloat32(name, []int{1, len(values)}, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func save(t *testing.T, r *runs.Run, x *checkpoint.Array) string {
	t.Helper()
	path, err := r.Save(x, runs.Location{File: "zimage.go", Line: 7, Function: "Forward"})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchive(t *testing.T) {
	tree, warnings := open(t)
	first := start(t, tree)
	if err := first.Describe(map[string]any{"prompt": "a <red> circle"}); err != nil {
		t.Fatal(err)
	}
	save(t, first, tensor(t, "x", 1))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree.Root, "runs/latest/gomflux/settings.json"))
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"began", "ended", "command_line", "versions", "machine", "git", "side", "prompt", "tensors"} {
		if _, ok := settings[key]; !ok {
			t.Errorf("settings.json has no %s: %s", key, text)
		}
	}
	if !strings.Contains(string(text), "a <red> circle") {
		t.Errorf("settings.json: %s", text)
	}

	second := start(t, tree) // and one that begins while it lasts
	concurrent := start(t, tree)
	if !tree.Busy(runs.Gomflux) || tree.Busy(runs.Reference) {
		t.Error("a run is going on, of gomflux alone")
	}
	if len(*warnings) != 1 || !strings.Contains((*warnings)[0], "another run is in progress") {
		t.Errorf("warnings %q", *warnings)
	}
	if second.Dir != tree.Latest(runs.Gomflux) || filepath.Dir(concurrent.Dir) != filepath.Join(tree.Root, "runs", "archive") {
		t.Errorf("runs in %s and %s", second.Dir, concurrent.Dir)
	}
	save(t, second, tensor(t, "x", 2))
	save(t, concurrent, tensor(t, "x", 3))
	x, err := tree.Load("x")
	if err != nil || x.Float64s()[0] != 2 {
		t.Errorf("found %v, %v, expected the latest run's 2", x, err)
	}
	archived, err := tree.Archived()
	if err != nil || len(archived) != 1 || archived[0].Side != runs.Gomflux || archived[0].Bytes < 100 {
		t.Fatalf("archived %+v, %v, expected the first run", archived, err)
	}
	if !regexp.MustCompile(`^\d{8}T\d{6}\.\d{6}Z-gomflux$`).MatchString(archived[0].Name()) {
		t.Errorf("archived as %s", archived[0].Name())
	}
	if x, err := os.ReadFile(filepath.Join(archived[0].Dir, "tensors", "x.safetensors")); err != nil || len(x) == 0 {
		t.Error(err)
	}
	second.Close()
	concurrent.Close()
	if tree.Busy(runs.Gomflux) {
		t.Error("no run is going on")
	}
	if archived, err = tree.Archived(); err != nil || len(archived) != 2 {
		t.Errorf("archived %+v, %v, expected two", archived, err)
	}
	if err := tree.Prune(archived); err != nil {
		t.Fatal(err)
	}
	if archived, err = tree.Archived(); err != nil || len(archived) != 0 {
		t.Errorf("archived %+v, %v, expected none", archived, err)
	}
	if err := tree.Prune([]runs.RunInfo{{Dir: tree.Root}}); err == nil {
		t.Error("the tree itself was removed")
	}
	// one that began at the same time gets a number
	for range 2 {
		r := start(t, tree)
		r.Describe(map[string]any{"began": "20261121T100000.000000Z"})
		r.Close()
	}
	start(t, tree).Close()
	archived, _ = tree.Archived()
	var names []string
	for _, a := range archived {
		names = append(names, a.Name())
	}
	if got, want := strings.Join(names[:2], " "), "20261121T100000.000000Z-gomflux 20261121T100000.000000Z-gomflux-2"; got != want ||
		len(names) != 3 {
		t.Errorf("found %s, expected %s", got, want)
	}
}

// TestIgnored keeps runs out of git, and what people wrote as it is.
func TestIgnored(t *testing.T) {
	tree, _ := open(t)
	name := filepath.Join(tree.Root, "runs", ".gitignore")
	for i, c := range []struct{ there, want string }{{"", "*\n"}, {"archive\n", "archive\n"}} {
		if c.there != "" {
			if err := os.WriteFile(name, []byte(c.there), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		start(t, tree).Close()
		if text, err := os.ReadFile(name); err != nil || string(text) != c.want {
			t.Errorf("run %d: found %q, %v, expected %q", i, text, err, c.want)
		}
	}
	if entries, err := os.ReadDir(tree.Root); err != nil || len(entries) != 1 {
		t.Errorf("the root has %v, %v, expected runs alone", entries, err)
	}
}

// TestIgnoredByGit asks git.
func TestIgnoredByGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	tree, _ := open(t)
	r := start(t, tree)
	save(t, r, tensor(t, "x", 1))
	r.Close()
	dir := filepath.Dir(tree.Root)
	for _, args := range [][]string{{"init", "-q"}, {"status", "--porcelain"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("git %s: %v, %s", args[0], err, out)
		}
	}
}

func TestSave(t *testing.T) {
	tree, _ := open(t)
	r := start(t, tree)
	defer r.Close()
	nan := float32(math.NaN())
	path := save(t, r, tensor(t, "transformer.layers.3@0:in.0", 1, nan, 3))
	if filepath.Base(path) != "transformer.layers.3@0%3Ain.0.safetensors" {
		t.Errorf("saved as %s", path)
	}
	e, err := tree.Find("transformer.layers.3@0:in.0")
	if err != nil || e.Record == nil {
		t.Fatalf("found %+v, %v", e, err)
	}
	rec := *e.Record
	if rec.HitCount != 1 || rec.Location.Line != 7 || rec.Point != "input" || rec.Dtype != "float32" ||
		!slices.Equal(rec.Shape, []int{1, 3}) ||
		rec.Stats.NaN != 1 || rec.Stats.Max != 3 || rec.Stats.Mean != 2 || rec.Stats.Std != 1 || len(rec.Preview) != 3 ||
		!math.IsNaN(float64(rec.Preview[1])) {
		t.Errorf("found %+v", rec)
	}
	if at, err := time.ParseInLocation("2006-01-02T15:04:05.000000", rec.Timestamp, time.Local); err != nil ||
		time.Since(at) > time.Minute {
		t.Errorf("timestamp %s", rec.Timestamp)
	}
	for name, want := range map[string]string{ // of the second time
		"x": "x#1", "y@2": "y@2#1", "z@2#4:out.1": "z@2#5:out.1", "a name / with b": "a name / with b#1", ".hidden": ".hidden#1",
	} {
		save(t, r, tensor(t, name, 1))
		save(t, r, tensor(t, name, 2))
		a, errA := tree.Load(name)
		b, errB := tree.Load(want)
		if errA != nil || errB != nil || a.Float64s()[0] != 1 || b.Float64s()[0] != 2 {
			t.Errorf("%s: %v %v %v %v", name, a, errA, b, errB)
		}
		if e, _ := tree.Find(want); e.Record == nil || e.Record.HitCount != 2 {
			t.Errorf("%s: %+v", want, e.Record)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", 300)} {
		if _, err := r.Save(tensor(t, name, 1), runs.Location{}); err == nil {
			t.Errorf("%q was saved", name)
		}
	}
	if _, err := tree.Load("transformer.layers.4@0:in.0"); !errors.Is(err, runs.ErrNotFound) ||
		!strings.Contains(err.Error(), "similar: transformer.layers.3@0:in.0") {
		t.Errorf("found %v", err)
	}
}

// TestBothSides looks names up in what the reference wrote, too.
func TestBothSides(t *testing.T) {
	tree, _ := open(t)
	dir := filepath.Join(tree.Latest(runs.Reference), "tensors")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write := func(file string, at time.Time, x ...*checkpoint.Array) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := checkpoint.WriteFile(path, x, nil); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(path, at, at)
	}
	now := time.Now()
	write("tensors-1.safetensors", now.Add(time.Hour), tensor(t, "latents@0", 1), tensor(t, "sigmas", 2))
	write("old.npy", now.Add(-time.Hour), tensor(t, "", 3))
	os.WriteFile(filepath.Join(tree.Latest(runs.Reference), "settings.json"), []byte(`{"aliases": {"timesteps": "sigmas"}}`), 0o666)

	r := start(t, tree)
	save(t, r, tensor(t, "latents@0", 10))
	save(t, r, tensor(t, "old", 30))
	r.Close()
	for name, want := range map[string]float64{"latents@0": 1, "sigmas": 2, "timesteps": 2, "old": 30} {
		x, err := tree.Load(name)
		if err != nil || x.Float64s()[0] != want || x.Name != name {
			t.Errorf("%s: found %v, %v, expected %v", name, x, err, want)
		}
	}
	all, err := tree.List()
	if err != nil || len(all) != 6 {
		t.Errorf("%d tensors, %v, expected 6", len(all), err)
	}
	start(t, tree).Close() // the other side stays
	if x, err := tree.Load("old"); err != nil || x.Float64s()[0] != 3 {
		t.Errorf("found %v, %v, expected the reference's 3", x, err)
	}

	if _, _, err := clear(tree, runs.Sides, []string{"sigmas"}); err == nil || !strings.Contains(err.Error(), "with 2 other names") {
		t.Errorf("cleared one of two: %v", err)
	}
	if _, _, err := clear(tree, []string{runs.Gomflux}, []string{"old"}); !errors.Is(err, runs.ErrNotFound) {
		t.Errorf("cleared what is on the other side: %v", err)
	}
	if n, bytes, err := clear(tree, runs.Sides, []string{"old"}); n != 1 || bytes < 100 || err != nil {
		t.Errorf("cleared %d files, %d bytes, %v", n, bytes, err)
	}
	if n, _, err := clear(tree, runs.Sides, nil); n != 1 || err != nil {
		t.Errorf("cleared %d files, %v", n, err)
	}
	if all, err := tree.List(); err != nil || len(all) != 0 {
		t.Errorf("found %v, %v", all, err)
	}
}

func TestDamaged(t *testing.T) {
	tree, _ := open(t)
	dir := filepath.Join(tree.Latest(runs.Reference), "tensors")
	os.MkdirAll(dir, 0o777)
	path := filepath.Join(dir, "x.safetensors")
	os.WriteFile(path, []byte("short"), 0o666)
	if _, err := tree.List(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("found %v", err)
	}
}

func TestLimits(t *testing.T) {
	tree, warnings := open(t)
	start(t, tree).Close()
	r := start(t, tree)
	size, err := tree.Size()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	tree.Warn, tree.Limit = size+10_000, size+20_000
	r = start(t, tree)
	defer r.Close()
	large := tensor(t, "large", make([]float32, 2800)...)
	save(t, r, large)
	if len(*warnings) != 1 || !strings.Contains((*warnings)[0], "the limit is") {
		t.Errorf("warnings %q", *warnings)
	}
	_, err = r.Save(large, runs.Location{})
	if !errors.Is(err, runs.ErrFull) || !strings.Contains(err.Error(), "the oldest archived runs are 2") ||
		!strings.Contains(err.Error(), "gomflux tensors clear --archive") {
		t.Errorf("found %v", err)
	}
	tree.Limit = 100
	if _, err := tree.Start(runs.Gomflux); !errors.Is(err, runs.ErrFull) {
		t.Errorf("found %v", err)
	}
	if _, err := tree.Start("ours"); err == nil {
		t.Error("a run of an unknown side began")
	}
}

func TestOpen(t *testing.T) {
	for name, want := range map[string]string{"": "logs", "x": "x"} {
		t.Setenv("GOMFLUX_LOG_DIR", name)
		if tree, err := runs.Open(""); err != nil || tree.Root != want || tree.Limit != 10<<30 || tree.Warn != 1<<30 {
			t.Errorf("%q: %+v, %v", name, tree, err)
		}
	}
	if tree, _ := runs.Open("given"); tree.Root != "given" {
		t.Errorf("found %s", tree.Root)
	}
	t.Setenv("GOMFLUX_LOG_LIMIT", "5000")
	if tree, err := runs.Open(""); err != nil || tree.Limit != 5000 {
		t.Errorf("%+v, %v", tree, err)
	}
	t.Setenv("GOMFLUX_LOG_WARN", "1 GB")
	if _, err := runs.Open(""); err == nil || !strings.Contains(err.Error(), "GOMFLUX_LOG_WARN=1 GB: expected a number of bytes") {
		t.Errorf("found %v", err)
	}
}

func clear(tree *runs.Tree, sides, names []string) (files int, bytes int64, err error) {
	all, err := tree.Clearable(sides, names)
	if err != nil {
		return 0, 0, err
	}
	for _, f := range all {
		bytes += f.Size
	}
	return len(all), bytes, runs.RemoveFiles(all)
}

// TestCheckpoint runs the jq examples of mflux's debugger on checkpoints.
func TestCheckpoint(t *testing.T) {
	tree, _ := open(t)
	r := start(t, tree)
	defer r.Close()
	at := runs.Location{File: "tree_test.go", Line: 3, Function: "TestCheckpoint"}
	for i := range 2 {
		path, err := r.Checkpoint("after_latents", map[string]any{
			"latents": tensor(t, "latents", 1, 2, 3), "layer_num": 14 + i, "note": "x",
		}, map[string]any{"block": i}, at)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"checkpoint_after_latents_hit001.json",
			"checkpoint_after_latents_hit002.json"}[i]; filepath.Base(path) != want {
			t.Errorf("wrote %s, expected %s", path, want)
		}
	}
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("jq is not installed")
	}
	for _, c := range []struct{ script, want string }{
		{
			`cat checkpoint_after_latents_*.json | jq -cs 'first | .variables.latents | {shape, dtype, preview, stats}'`,
			`{"shape":[1,3],"dtype":"mlx.core.float32","preview":[1,2,3],` +
				`"stats":{"min":1,"max":3,"mean":2,"std":0.816496580927726,"nan":0,"inf":0}}`,
		},
		{
			`cat checkpoint_*.json | jq -c '.variables | with_entries(select(.value.shape != null) | {key, value: .value.shape})'`,
			`{"latents":[1,3]}` + "\n" + `{"latents":[1,3]}`,
		},
		{
			`cat checkpoint_*.json | jq -r '.variables.latents.stats.mean' | head -1`,
			`2`,
		},
		{
			`jq -c '.variables | keys' checkpoint_after_latents_hit001.json`,
			`["latents","layer_num","note"]`,
		},
		{
			`jq -c '.variables.latents.stats' checkpoint_after_latents_hit001.json`,
			`{"min":1,"max":3,"mean":2,"std":0.816496580927726,"nan":0,"inf":0}`,
		},
		{
			`jq -c '.variables.latents.preview' checkpoint_after_latents_hit002.json`,
			`[1,2,3]`,
		},
		{
			`jq -c 'select(.variables.layer_num.value == 15) | [.checkpoint_name, .hit_count, .metadata.block]' checkpoint_*.json`,
			`["after_latents",2,1]`,
		},
		{
			`jq -cs 'map(.variables.latents.shape) | unique' checkpoint_*.json`,
			`[[1,3]]`,
		},
		{
			`jq -c '.location' checkpoint_after_latents_hit001.json`,
			`{"file":"tree_test.go","line":3,"function":"TestCheckpoint"}`,
		},
		{
			`jq -c '[.code_context.start_line, .code_context.end_line, .code_context.lines["1"]]' checkpoint_after_latents_hit001.json`,
			`[1,8,"package runs_test"]`,
		},
		{
			`jq -r '.timestamp' checkpoint_after_latents_hit001.json | ` +
				`grep -cE '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}$'`,
			`1`,
		},
	} {
		cmd := exec.Command("sh", "-c", c.script)
		cmd.Dir = filepath.Join(r.Dir, "checkpoints")
		cmd.Path, _ = exec.LookPath("sh")
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("%s (%s): found %s, %v, expected %s", c.script, jq, got, err, c.want)
		}
	}
}
