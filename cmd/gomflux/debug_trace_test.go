package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// traceText is the trace of a session, with a damaged line, that still runs.
//
//go:embed testdata/traces/debug.jsonl
var traceText string

func TestDebugTrace(t *testing.T) {
	logs := t.TempDir()
	t.Setenv("GOMFLUX_LOG_DIR", logs)
	code, _, stderr := gomfluxCommand("", "debug", "trace")
	if code != 2 || !strings.Contains(stderr, "no trace in "+logs) {
		t.Errorf("code %d, %q", code, stderr)
	}
	dir := filepath.Join(logs, "traces")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "debug_20261123T010000.000000Z.jsonl")
	for path, text := range map[string]string{file: traceText, filepath.Join(dir, "debug_20261122T010000.000000Z.jsonl"): ""} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const table = `TIME          EVENT     SECONDS  DETAILS
01:00:00.000  start     0.010    generate -p 'a b'
01:00:01.500  break     0.000    breakpoint 1: m.*, if step > 1
01:00:02.000  break     0.000    watch 2: latents
01:00:03.000  watch     0.000    watch 2: latents@0 float32 [1]  min 0  max 1  mean 0.5  std 0  nan 1
01:00:04.000  stop      0.000    stopped after m.a@2 (breakpoint 1, hit 1): float32 [2]
01:00:01.600  continue  2.500    stopped
01:00:05.000  eval      0.100    out["0"] > 1: error: no key
01:00:06.000  eval      0.100    x = 1; x: printed; 1
01:00:07.000  set       0.000    m.a@2 is replaced by mine
01:00:08.000  stop      0.000    stopped after m@2 (out): float32 [2]
01:00:09.000  end       0.000    the run has failed: no space
`
	warnings := []string{"gomflux: warning: " + file + ": line 9 is damaged: ", "gomflux: warning: " + file + ": line 13 is damaged: "}
	for _, c := range []struct {
		args, want string
		lines      int
	}{
		{"trace", table, 12},
		{"trace --run 2026-11-23", table, 12},
		{"trace --run 20261122T01", "", 0},
		{"trace --grep SPACE", "the run has failed: no space\n", 2},
		{`trace --grep out["0"]`, "error: no key\n", 2},
		{"trace --grep nothing_like_it", "", 0},
	} {
		code, stdout, stderr := gomfluxCommand("", append([]string{"debug"}, strings.Fields(c.args)...)...)
		if code != 0 || !strings.HasSuffix(stdout, c.want) || strings.Count(stdout, "\n") != c.lines {
			t.Errorf("%s: code %d,\n%sexpected\n%s", c.args, code, stdout, c.want)
		}
		if damaged := !strings.Contains(c.args, "22T01"); damaged {
			for _, w := range warnings {
				if !strings.Contains(stderr, w) {
					t.Errorf("%s: %q, expected %q", c.args, stderr, w)
				}
			}
		} else if stderr != "" {
			t.Errorf("%s: %q", c.args, stderr)
		}
	}
	for args, want := range map[string]string{
		"--run 2025":  "no trace of 2025 (the newest are 20261123T010000.000000Z, 20261122T010000.000000Z)",
		"--run 20261": "2 begin like this",
	} {
		code, stdout, stderr := gomfluxCommand("", append([]string{"debug", "trace"}, strings.Fields(args)...)...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	_, stdout, _ := gomfluxCommand("", "__complete", "debug", "trace", "--run", "")
	if want := "20261123T010000.000000Z\n20261122T010000.000000Z\n:4\n"; stdout != want {
		t.Errorf("completion %q, expected %q", stdout, want)
	}
}

// TestDebugTraceJSON compares the JSON with the format that tools for traces of other debuggers read.
func TestDebugTraceJSON(t *testing.T) {
	logs := t.TempDir()
	dir := filepath.Join(logs, "traces")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "debug_T.jsonl"), []byte(traceText), 0o666); err != nil {
		t.Fatal(err)
	}
	code, stdout, _ := gomfluxCommand("", "debug", "trace", "--json", "--log-dir", logs)
	want := `{
  "session_id": "T",
  "file": "` + dir + `/debug_T.jsonl",
  "script_path": "generate -p 'a b'",
  "start_time": "2026-11-23T01:00:00Z",
  "end_time": "2026-11-23T01:00:09Z",
  "breakpoints": [
    {"number": 1, "glob": "m.*", "condition": "step > 1"},
    {"number": 2, "glob": "latents", "watch": true, "condition": null}
  ],
  "steps": [
    {"step": 1, "step_type": "watch", "time": "2026-11-23T01:00:03Z", "duration": 0, "result": {"number": 2, "name": "latents@0",
      "point": "output", "shape": [1], "dtype": "float32",
      "stats": {"min": 0, "max": 1, "mean": 0.5, "std": 0, "nan": 1, "inf": 0}, "preview": [0]}},
    {"step": 2, "step_type": "continue", "time": "2026-11-23T01:00:04Z", "duration": 0, "name": "m.a@2", "reason": "breakpoint 1",
      "location": {"file": "m.go", "line": 7, "function": "F"},
      "code_context": {"before": [{"line": 6, "text": "a"}], "current": [{"line": 7, "text": "b"}],
        "after": [{"line": 8, "text": "c"}]},
      "call_stack": [{"name": "m", "class": "M"}],
      "variables": {"out": {"name": "out", "point": "output", "shape": [2], "dtype": "float32",
        "stats": {"min": "NaN", "max": 1, "mean": 0, "std": 0, "nan": 1, "inf": 0}, "preview": ["NaN", 1]}}},
    {"step": 3, "step_type": "evaluation", "time": "2026-11-23T01:00:05Z", "duration": 0.1, "expression": "out[\"0\"] > 1",
      "error": "no key"},
    {"step": 4, "step_type": "evaluation", "time": "2026-11-23T01:00:06Z", "duration": 0.1, "expression": "x = 1\nx",
      "output": ["printed"], "result": "1"},
    {"step": 5, "step_type": "set", "time": "2026-11-23T01:00:07Z", "duration": 0, "arguments": {"source": "mine"},
      "result": {"name": "m.a@2", "source": "mine"}},
    {"step": 6, "step_type": "out", "time": "2026-11-23T01:00:08Z", "duration": 0, "name": "m@2", "reason": "out"},
    {"step": 7, "step_type": "end", "time": "2026-11-23T01:00:09Z", "duration": 0,
      "result": {"session": "1", "state": "failed", "error": "no space"}, "error": "no space"}
  ],
  "total_steps": 7
}`
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(want)); err != nil {
		t.Fatal(err)
	}
	if code != 0 || strings.TrimSuffix(stdout, "\n") != compact.String() {
		t.Errorf("code %d,\n%s\nexpected\n%s", code, stdout, compact.String())
	}
}
