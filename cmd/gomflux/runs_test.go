package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/parity/runs"
)

// TestRunStates stops runs while they record statistics: the lines stay, and the list of runs has
// the reason.
func TestRunStates(t *testing.T) {
	for signal, want := range map[syscall.Signal]runs.State{syscall.SIGKILL: runs.Killed, syscall.SIGTERM: runs.Interrupted} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			cmd, dir := generateIn(t, "-H", "64", "-W", "64", "-s", "1000", "--debug-stats", "*", "--debug-stats", "!text_encoder*")
			cmd.Env = append(cmd.Env, "GOMFLUX_LOG_DIR=")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			folder := filepath.Join(dir, "logs", "runs", "latest", "gomflux")
			lines := func() int {
				text, _ := os.ReadFile(filepath.Join(folder, filepath.FromSlash(runs.StatsFile)))
				return bytes.Count(text, []byte("\n"))
			}
			for end := time.Now().Add(time.Minute); lines() < 500; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d lines after a minute", lines())
				}
			}
			if s := stateOf(t, dir); s != runs.Running {
				t.Errorf("the run is %s, expected %s", s, runs.Running)
			}
			before := lines()
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
			cmd.Wait()
			if s := stateOf(t, dir); s != want {
				t.Errorf("after %v the run is %s, expected %s", signal, s, want)
			}
			records, err := runs.ReadStats(os.DirFS(folder))
			if err != nil || len(records) < before {
				t.Errorf("%d records, %v, expected at least %d", len(records), err, before)
			}
			log, err := os.ReadFile(filepath.Join(folder, runs.OutputFile))
			if err != nil || !strings.HasPrefix(string(log), "seed ") ||
				strings.HasSuffix(string(log), "\ngomflux: interrupted\n") != (want == runs.Interrupted) {
				t.Errorf("output.log: %q, %v", log, err)
			}
		})
	}
}

// stateOf returns the state of the only run in a folder, as the command lists it.
func stateOf(t *testing.T, dir string) runs.State {
	t.Helper()
	cmd := exec.Command("gomflux", "tensors", "runs", "--json")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOMFLUX_LOG_DIR=")
	out, err := cmd.Output()
	var list struct {
		Runs []struct {
			State runs.State `json:"state"`
		} `json:"runs"`
	}
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil || len(list.Runs) != 1 {
		t.Fatalf("%s, %v, expected one run", out, err)
	}
	return list.Runs[0].State
}
