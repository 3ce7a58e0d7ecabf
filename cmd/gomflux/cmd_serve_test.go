package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startServe starts gomflux serve on a free port, and waits for its address.
func startServe(t *testing.T, args ...string) (cmd *exec.Cmd, address string, stderr *strings.Builder) {
	t.Helper()
	cmd = exec.Command("gomflux", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+cmd.Dir, "XDG_DATA_HOME="+cmd.Dir)
	stderr = &strings.Builder{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	address, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		cmd.Wait()
		t.Fatalf("%v: %s", err, stderr)
	}
	return cmd, strings.TrimSpace(address), stderr
}

// askServe sends a request, with a token if it is not "".
func askServe(t *testing.T, method, url, token, body string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// TestServe starts a server, generates an image, and stops the server with each signal: it exits
// with 0, and its log has no prompt.
func TestServe(t *testing.T) {
	const secret = "0123456789abcdef"
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		tokens := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(tokens, []byte("ann:"+secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd, address, stderr := startServe(t, "--model", "shapes", "--token-file", tokens, "--device", "cpu")
		for _, test := range []struct {
			path, token string
			want        int
		}{{"healthz", "", 200}, {"metrics", "", 401}, {"metrics", secret, 200}, {"version", secret + "0", 401}} {
			if status, text := askServe(t, "GET", address+test.path, test.token, ""); status != test.want {
				t.Errorf("%s: status %d, expected %d: %s", test.path, status, test.want, text)
			}
		}
		status, text := askServe(t, "POST", address+"api/v1/jobs", secret, `{"prompt":"an unspeakable circle","steps":1,"seed":7}`)
		if status/100 != 2 {
			t.Fatalf("job: status %d: %s", status, text)
		}
		for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			_, text = askServe(t, "GET", address+"metrics", secret, "")
			if strings.Contains(text, "gomflux_images_total 1\n") {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("no image after a minute: %s", text)
			}
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", signal, err)
		}
		log := stderr.String()
		if strings.Contains(log, "unspeakable") || strings.Contains(log, secret) || !strings.Contains(log, "client=ann") {
			t.Errorf("log: %s", log)
		}
		if images, _ := filepath.Glob(filepath.Join(cmd.Dir, "gomflux/pictures/*.png")); len(images) != 1 {
			t.Errorf("stored images: %q", images)
		}
	}
}

// TestServePortInUse: a second server on the port is refused with one line.
func TestServePortInUse(t *testing.T) {
	_, address, _ := startServe(t, "--no-gallery")
	port := strings.TrimSuffix(address[strings.LastIndex(address, ":")+1:], "/")
	cmd := exec.Command("gomflux", "serve", "--model", "shapes", "--no-gallery", "--listen", "127.0.0.1:"+port)
	cmd.Env = append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries))
	out, err := cmd.CombinedOutput()
	want := fmt.Sprintf("gomflux: --listen 127.0.0.1:%s: bind: address already in use\n", port)
	if cmd.ProcessState.ExitCode() != exitFailure || string(out) != want {
		t.Errorf("%v, %q", err, out)
	}
}
