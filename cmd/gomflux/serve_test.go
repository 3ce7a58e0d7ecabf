package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
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
	"github.com/gomflux/gomflux/internal/logtest"
)

// startServe starts gomflux serve on a free port, and waits for its address.
func startServe(t *testing.T, args ...string) (cmd *exec.Cmd, address string, stderr *logtest.Log) {
	t.Helper()
	return startServeIn(t, t.TempDir(), args...)
}

// startServeIn is startServe in a folder, which is the Hugging Face cache too.
func startServeIn(t *testing.T, folder string, args ...string) (cmd *exec.Cmd, address string, stderr *logtest.Log) {
	t.Helper()
	return startServeBy(t, folder, exec.Command("gomflux", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...))
}

// startServeBy is startServeIn by a command.
func startServeBy(t *testing.T, folder string, cmd *exec.Cmd) (_ *exec.Cmd, address string, stderr *logtest.Log) {
	t.Helper()
	cmd.Dir = folder
	env := append(os.Environ(), "GOMFLUX_MLX="+absolute(libraries), "HF_HUB_CACHE="+cmd.Dir, "XDG_DATA_HOME="+cmd.Dir)
	cmd.Env = append(env, cmd.Env...)
	stderr = &logtest.Log{}
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
	if cmd.ProcessState.ExitCode() != cli.ExitFailure || string(out) != want {
		t.Errorf("%v, %q", err, out)
	}
}

// TestServeHTTPS: a certificate that is renewed while the server runs, the URL of a proxy, and a page
// of another server.
func TestServeHTTPS(t *testing.T) {
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	roots := writeServedCertificate(t, cert, key)
	_, address, _ := startServe(t, "--model", "shapes", "--device", "cpu", "--no-gallery", "--tls-cert", cert, "--tls-key", key,
		"--base-url", "https://images.example.org/", "--allowed-origin", "http://localhost:3000")
	if !strings.HasPrefix(address, "https://127.0.0.1:") {
		t.Fatalf("address %s", address)
	}
	ask := func(method, path, body string, roots *x509.CertPool) (*http.Response, string) {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
		r, err := http.NewRequest(method, address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "images.example.org" // as a proxy sends it
		r.Header.Set("Origin", "http://localhost:3000")
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}
	resp, text := ask("POST", "v1/images/generations", `{"prompt":"p","steps":1,"size":"32x32","response_format":"url"}`, roots)
	if resp.StatusCode != 200 || !strings.Contains(text, `"url":"https://images.example.org/v1/files/`) ||
		resp.Header.Get("Access-Control-Allow-Origin") != "http://localhost:3000" {
		t.Errorf("%s, %v: %s", resp.Status, resp.Header, text)
	}
	renewed := writeServedCertificate(t, cert, key)
	time.Sleep(1100 * time.Millisecond) // after which the files are looked at again
	if resp, text := ask("GET", "healthz", "", renewed); resp.StatusCode != 200 {
		t.Errorf("%s: %s", resp.Status, text)
	}
}

// writeServedCertificate writes a certificate of this machine and its key, and returns what clients
// trust that know it.
func writeServedCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return roots
}
