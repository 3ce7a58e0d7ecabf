package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/randtest"
	"github.com/gomflux/gomflux/picture"
)

// launchServe is a server of two processes.
func launchServe(args ...string) *exec.Cmd {
	return exec.Command("gomflux", append([]string{"launch", "--local", "2", "--", "serve"}, args...)...)
}

// equalTogether reports whether two processes have generated the image that one has: bit for bit, or within 1 of 255
// if they split its tokens.
func equalTogether(want, got []byte) bool {
	found, err := picture.ReadSettings(bytes.NewReader(got))
	if err != nil || found.Settings.Ranks != 2 {
		return false
	}
	a, err := picture.Decode(bytes.NewReader(want))
	if err != nil {
		return false
	}
	b, err := picture.Decode(bytes.NewReader(got))
	if err != nil || a.Image.Rect != b.Image.Rect {
		return false
	}
	tolerance := 0
	if found.Settings.Split == "sequence" {
		tolerance = 1
	}
	for i, v := range a.Image.Pix {
		if d := int(v) - int(b.Image.Pix[i]); d < -tolerance || d > tolerance {
			return false
		}
	}
	return true
}

// TestServeGroup starts a server of two processes that generate images in each of the ways, stop when a job is
// cancelled, and end when one of them is killed.
func TestServeGroup(t *testing.T) {
	folder := t.TempDir()
	cmd, address, stderr := startServeBy(t, folder,
		launchServe("--listen", "127.0.0.1:0", "--model", "shapes", "--device", "cpu", "--no-gallery"))
	if _, text := askServe(t, "GET", address+"healthz", "", ""); text != `{"ranks":2,"status":"ok"}`+"\n" {
		t.Errorf("health: %q", text)
	}
	for i, test := range []struct{ split, flags, fields string }{
		{"passes", "-S 1 -s 2 -H 64 -W 48 -g 3 -n blue", `"seed": 1, "guidance": 3, "negative_prompt": "blue"`},
		{"sequence", "-S 2 -s 2 -H 64 -W 48 -g 0", `"seed": 2, "guidance": 0`},
		{"pictures", "-S 3 4 -s 2 -H 64 -W 48", `"seed": 3, "count": 2`},
	} {
		want := generated(t, folder, fmt.Sprint(i), "a green star", test.flags)
		got := askJob(t, address, `{"prompt": "a green star", "steps": 2, "height": 64, "width": 48, `+test.fields+`}`)
		if len(got) != len(want) {
			t.Fatalf("%s: %d images, expected %d", test.split, len(got), len(want))
		}
		for k := range want {
			found, err := picture.ReadSettings(bytes.NewReader(got[k]))
			if err != nil || found.Settings.Split != test.split || !equalTogether(want[k], got[k]) {
				t.Errorf("image %d by %s differs: %v, %s", k, test.split, err, fileDifference(want[k], got[k]))
			}
		}
	}
	for _, count := range []int{1, 2} { // passes, pictures
		job := submitServed(t, address, fmt.Sprintf(`{"prompt": "x", "height": 64, "width": 64, "steps": 1000, "count": %d}`, count))
		awaitServed(t, address, job, "running")
		askServe(t, "DELETE", address+"api/v1/jobs/"+job, "", "")
		awaitServed(t, address, job, "canceled")
	}
	awaitServed(t, address, submitServed(t, address, `{"prompt": "x", "height": 64, "width": 64, "steps": 1}`), "done")

	if err := syscall.Kill(childrenOf(t, cmd.Process.Pid)[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cmd.Wait()
	const want = "gomflux: rank 1: was killed (signal 9, killed)\n"
	if took := time.Since(began); took > 30*time.Second || cmd.ProcessState.ExitCode() != cli.ExitFailure ||
		!strings.HasSuffix(stderr.String(), want) || strings.Count(stderr.String(), "gomflux: ") != 1 {
		t.Errorf("ended after %v with %v: %s", took, cmd.ProcessState, stderr)
	}
}

// submitServed starts a job, and returns its id.
func submitServed(t *testing.T, address, body string) string {
	t.Helper()
	var job struct{ ID string }
	decodeServed(t, postServed(t, address+"api/v1/jobs", "application/json", strings.NewReader(body)), &job)
	return job.ID
}

// awaitServed waits until a job is in a state, and returns its error.
func awaitServed(t *testing.T, address, job, state string) string {
	t.Helper()
	var found struct {
		State string
		Error struct{ Message string }
	}
	for began := time.Now(); found.State != state; time.Sleep(20 * time.Millisecond) {
		_, text := askServe(t, "GET", address+"api/v1/jobs/"+job, "", "")
		if err := json.Unmarshal([]byte(text), &found); err != nil || time.Since(began) > time.Minute {
			t.Fatalf("expected state %s, found %v, %s", state, err, text)
		}
	}
	return found.Error.Message
}

// TestServedImagesTogether is TestServedImages with two processes.
func TestServedImagesTogether(t *testing.T) {
	if randtest.Times(0, 1) == 0 {
		t.Skip("make nightly runs it")
	}
	testServed(t, launchServe(), equalTogether)
}

// TestServeGroupDiffers starts two processes with MLX's variables, as mlx.launch does, of which one lacks a LoRA:
// jobs with it fail with the reason, and others go on. Ctrl-C ends both.
func TestServeGroupDiffers(t *testing.T) {
	if randtest.Times(0, 1) == 0 {
		t.Skip("make nightly runs it")
	}
	folder := t.TempDir()
	var hosts [][]string
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		hosts, listeners = append(hosts, []string{l.Addr().String()}), append(listeners, l)
	}
	for _, l := range listeners { // only now, so that the ports differ
		l.Close()
	}
	text, err := json.Marshal(hosts)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "hosts.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := modeltest.WriteLoRA(filepath.Join(folder, "ink.safetensors"), "../../models/shapes/model", 1); err != nil {
		t.Fatal(err)
	}
	var cmds []*exec.Cmd
	for rank := range 2 {
		cmd := exec.Command("gomflux", "serve", "--listen", "127.0.0.1:0", "--model", "shapes", "--device", "cpu", "--no-gallery")
		cmd.Env = []string{fmt.Sprint("MLX_RANK=", rank), "MLX_HOSTFILE=" + file, "LORA_LIBRARY_PATH=" + folder}
		cmds = append(cmds, cmd)
	}
	other := cmds[1]
	other.Dir = t.TempDir()
	other.Env = append(append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+other.Dir), other.Env...)
	other.Env = append(other.Env, "LORA_LIBRARY_PATH="+other.Dir)
	var said strings.Builder
	other.Stderr = &said
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Process.Kill() })
	cmd, address, stderr := startServeBy(t, folder, cmds[0])
	const small = `"prompt": "x", "height": 64, "width": 64, "steps": 1`
	for range 2 {
		message := awaitServed(t, address, submitServed(t, address, `{`+small+`, "loras": [{"path": "ink"}]}`), "failed")
		if !strings.Contains(message, "rank 1 (") || !strings.Contains(message, "ink") {
			t.Errorf("refused with %q", message)
		}
		awaitServed(t, address, submitServed(t, address, `{`+small+`}`), "done")
	}
	for _, cmd := range []*exec.Cmd{other, cmd} {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
	}
	for _, cmd := range []*exec.Cmd{other, cmd} {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s%s", err, stderr, &said)
		}
	}
	if _, err := http.Get(address); err == nil {
		t.Error("the server is there")
	}
}
