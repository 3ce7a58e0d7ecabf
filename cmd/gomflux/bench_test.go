package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// TestInterruptBench: a signal ends a benchmark, and nothing is printed.
func TestInterruptBench(t *testing.T) {
	cmd := exec.Command("gomflux", "bench", "--size", "512", "--steps", "1000", "--share")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	signaled := time.Now()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if lines := bufio.NewScanner(stdout); lines.Scan() {
		t.Errorf("standard output: %q", lines.Text())
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitInterrupted || stderr.String() != "gomflux: interrupted\n" {
		t.Errorf("exit code %d, said %q", code, &stderr)
	}
	if took := time.Since(signaled); took > 10*time.Second {
		t.Errorf("ended after %v", took)
	}
}
