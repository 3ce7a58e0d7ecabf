// Package grouptest runs a test in several processes, as the members of a group of MLX (ring, over the
// loopback address).
package grouptest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Member reports whether this process is one of those that [Run] started.
func Member() bool { return os.Getenv("GROUPTEST") != "" }

// Run runs the running test again in n processes, with MLX's environment variables for a ring, and fails
// if it fails in one of them or takes more than two minutes, ten with more than two processes: all that wait for another
// compute meanwhile, so that they share few cores. It returns what each of them wrote to the
// file [Output].
func Run(t *testing.T, n int, env ...string) [][]byte {
	t.Helper()
	dir := t.TempDir()
	hosts := make([][]string, n)
	for i, port := range ports(t, n) {
		hosts[i] = []string{fmt.Sprintf("127.0.0.1:%d", port)}
	}
	text, err := json.Marshal(hosts)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "hosts.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	limit := 2 * time.Minute
	if n > 2 {
		limit = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() {
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.count=1")
			cmd.Env = append(os.Environ(), "GROUPTEST="+output(dir, rank), "MLX_RANK="+strconv.Itoa(rank), "MLX_HOSTFILE="+file)
			cmd.Env = append(cmd.Env, env...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("rank %d: %v\n%s", rank, err, out)
				cancel() // the others wait for it without end
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	written := make([][]byte, n)
	for rank := range n {
		if written[rank], err = os.ReadFile(output(dir, rank)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return written
}

func output(dir string, rank int) string { return filepath.Join(dir, fmt.Sprintf("out%d", rank)) }

// Output is the file of a member whose contents [Run] returns.
func Output() string { return os.Getenv("GROUPTEST") }

// ports returns n ports that nothing listens on.
func ports(t *testing.T, n int) []int {
	all := make([]int, n)
	for i := range all {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // only now, so that the ports differ
		all[i] = l.Addr().(*net.TCPAddr).Port
	}
	return all
}

// Planted runs a test of this package in a build in which a file, relative to the package, has other texts: pairs of
// an old and a new one. It returns the output, and the error of a test that fails.
func Planted(t *testing.T, file, run string, texts ...string) (string, error) {
	t.Helper()
	source, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(texts); i += 2 {
		if !strings.Contains(string(text), texts[i]) {
			t.Fatalf("%s has no %q", file, texts[i])
		}
	}
	dir := t.TempDir()
	replaced, overlay := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: replaced}})
	if err == nil {
		err = os.WriteFile(replaced, []byte(strings.NewReplacer(texts...).Replace(string(text))), 0o600)
	}
	if err == nil {
		err = os.WriteFile(overlay, list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	// -count=1, because Go would take a result before: it does not see which variables the members read
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-run=^"+run+"$", ".")
	cmd.Env = append(os.Environ(), "GOMFLUX_FAULTS=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
