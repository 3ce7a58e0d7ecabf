package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/generate"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/profile"
	"github.com/gomflux/gomflux/models/profile/tracetest"
)

// cmdTrace checks a trace, and that it has slices of these names: trace FILE NAME...
func cmdTrace(ts *testscript.TestScript, neg bool, args []string) {
	all, facts, err := tracetest.Check([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	if facts["pipeline"] == nil || facts["device"] == nil || facts["program"] == nil {
		ts.Fatalf("facts %v", facts)
	}
	names := map[string]bool{}
	for _, s := range all {
		names[s.Name] = true
	}
	for _, name := range args[1:] {
		if names[name] == neg {
			ts.Fatalf("%s: a slice %s: %v", args[0], name, names[name])
		}
	}
}

// TestProfile compares the times of --profile with each other, and with those that generate measures
// itself.
func TestProfile(t *testing.T) {
	cmd, _ := generateIn(t, "-H", "128", "-W", "128", "-s", "3", "-g", "2", "-S", "7", "--profile", "p.json", "--json")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var image generate.JSONPicture
	var p profile.JSONLine
	for line := range strings.Lines(string(out)) {
		for start, v := range map[string]any{`{"message_type":"picture"`: &image, `{"message_type":"profile"`: &p} {
			if strings.HasPrefix(line, start) {
				if err := json.Unmarshal([]byte(line), v); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	measured := map[string]float64{"encode": image.Seconds.Encode, "step": image.Seconds.Steps, "decode": image.Seconds.Decode}
	for _, phase := range p.Phases {
		sum := phase.Self + phase.Host
		for _, m := range p.Modules {
			if m.Phase == phase.Name {
				sum += m.Self
			}
		}
		if math.Abs(sum-phase.Seconds) > 0.01*phase.Seconds+0.001 {
			t.Errorf("%+v: its parts add up to %v", phase, sum)
		}
		if want, ok := measured[phase.Name]; ok && math.Abs(want-phase.Seconds) > 0.05*want+0.003 {
			t.Errorf("%+v: generate measured %v s", phase, want)
		}
		delete(measured, phase.Name)
	}
	if len(measured) > 0 || len(p.Steps) != 3 {
		t.Errorf("%d steps, no phases %v", len(p.Steps), measured)
	}
	highest := 0
	for _, m := range p.Modules {
		highest = max(highest, m.Peak)
	}
	if highest == 0 || image.PeakMemory < highest {
		t.Errorf("peak memory %d, of a module %d", image.PeakMemory, highest)
	}
}

// TestProfileInterrupted: a run that is interrupted leaves a whole trace of what has run, and
// nothing else.
func TestProfileInterrupted(t *testing.T) {
	cmd, dir := generateIn(t, "-H", "256", "-W", "256", "-s", "1000", "-S", "7", "--profile", "p.json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitForTrace(t, cmd, dir)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted || !strings.Contains(stderr.String(), "\ntrace in p.json") {
		t.Errorf("exit code %d, and %q", code, stderr.String())
	}
	text, err := os.ReadFile(filepath.Join(dir, "p.json"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tracetest.Check(text); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("found %v, %v", entries, err)
	}
}

// waitForTrace waits until a run has written a part of its trace.
func waitForTrace(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	for range 600 {
		names, _ := filepath.Glob(filepath.Join(dir, ".gomflux-*.tmp"))
		for _, name := range names {
			if info, err := os.Stat(name); err == nil && info.Size() > 0 {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	cmd.Process.Kill()
	t.Fatal("the run writes no trace")
}
