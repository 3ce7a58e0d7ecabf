package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// TestTensorsClearAsks answers on a terminal.
func TestTensorsClearAsks(t *testing.T) {
	for answer, removed := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "no\n": false, "\x04": false} {
		dir := t.TempDir()
		folder := filepath.Join(dir, "logs", "runs", "latest", "gomflux", "tensors")
		if err := os.MkdirAll(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		x, err := checkpoint.FromFloat32("x", []int{1}, []float32{1})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, "x.safetensors")
		if err := checkpoint.WriteFile(file, []*checkpoint.Array{x}, nil); err != nil {
			t.Fatal(err)
		}
		master, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := master.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		cmd := exec.Command("gomflux", "tensors", "clear")
		cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.Env = dir, tty, &stderr, append(os.Environ(), "GOMFLUX_LOG_DIR=")
		err = cmd.Run()
		tty.Close()
		master.Close()
		if err != nil || !strings.HasPrefix(stderr.String(), "remove all tensors of the latest run of gomflux (1 file, 0 kB)? [y/N] ") {
			t.Errorf("%q: %v, %s", answer, err, stderr.String())
		}
		if _, err := os.Stat(file); (err != nil) != removed {
			t.Errorf("%q: removed %v, expected %v", answer, err != nil, removed)
		}
	}
}
