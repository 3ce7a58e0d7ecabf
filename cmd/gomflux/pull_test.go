package main

import (
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/internal/randtest"
)

// cmdHub starts a stand-in of the Hugging Face hub that has a folder's files
// and, if a token is given, is gated: hub REPO FOLDER [TOKEN]. COMMIT is the
// commit, and the revision v1 is it too.
func cmdHub(ts *testscript.TestScript, _ bool, args []string) {
	files, err := hubtest.ReadFiles(os.DirFS(ts.MkAbs(args[1])))
	ts.Check(err)
	h, stop := hubtest.Start(args[0], files)
	ts.Defer(stop)
	h.Set(func() { h.Revisions = append(h.Revisions, "v1") })
	if len(args) > 2 {
		h.Set(func() { h.Token = args[2] })
	}
	ts.Setenv("HF_ENDPOINT", h.URL)
	ts.Setenv("COMMIT", h.Commit())
}

var kills = flag.Int("kills", 8, "how often TestKilledPull kills")

// TestKilledPull kills and interrupts pulls at random moments. The next one goes
// on from there, what has a file's name is always whole, and the model is not
// there before all of it is.
func TestKilledPull(t *testing.T) {
	files, err := hubtest.ReadFiles(os.DirFS(tinyModel))
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{7}).Read(large)
	files["text_encoder/model.safetensors"] = large // beside the shards, so not needed
	files["vae/diffusion_pytorch_model.safetensors"] = append(files["vae/diffusion_pytorch_model.safetensors"], large...)
	h := hubtest.New(t, "me/mine", files)
	var writes atomic.Int64
	random := randtest.New(t)
	fault := func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if host != "store" {
			time.Sleep(5 * time.Millisecond)
			return false
		}
		var begin, end int // slowly, and now and then cut
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end); err != nil {
			t.Errorf("%s is asked for with the range %q", path, r.Header.Get("Range"))
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end, len(files[path])))
		w.Header().Set("Content-Length", fmt.Sprint(end+1-begin))
		w.WriteHeader(http.StatusPartialContent)
		for begin <= end {
			next := min(begin+100_000, end+1)
			if _, err := w.Write(files[path][begin:next]); err != nil {
				return true
			}
			w.(http.Flusher).Flush()
			begin = next
			time.Sleep(5 * time.Millisecond)
			if writes.Add(1)%97 == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		return true
	}
	h.Set(func() { h.Fault = fault })
	var cache string
	command := func() *exec.Cmd {
		cmd := exec.Command("gomflux", "pull", "me/mine")
		cmd.Env = append(os.Environ(), "HF_ENDPOINT="+h.URL, "HF_HUB_CACHE="+cache, "HF_HOME="+cache, "HF_TOKEN=")
		return cmd
	}
	whole := func() bool { return checkPulled(t, h, cache) }

	cache = t.TempDir()
	began := time.Now()
	if out, err := command().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	took := time.Since(began)
	if !whole() {
		t.Fatal("nothing is there")
	}
	cache = t.TempDir()
	finished, told := 0, 0
	for killed := 0; killed < *kills && !t.Failed(); {
		signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGINT}[killed%3]
		cmd := command()
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(random.Int64N(int64(took) / 2))
		timer := time.AfterFunc(after, func() { cmd.Process.Signal(signal) })
		err := cmd.Wait()
		timer.Stop()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		is := whole()
		switch {
		case err == nil && is: // it had ended
			finished++
			cache = t.TempDir()
		case status.Signaled():
			killed++
		case status.ExitStatus() == cli.ExitInterrupted && strings.HasSuffix(stderr.String(), "gomflux: interrupted\n"):
			killed++
			if strings.HasSuffix(stderr.String(), "the downloaded parts are kept: gomflux pull me/mine resumes\ngomflux: interrupted\n") {
				told++
			}
		default:
			t.Errorf("after %v and signal %v: %v, whole: %v, and said %q", after, signal, cmd.ProcessState, is, stderr.String())
		}
	}
	if out, err := command().CombinedOutput(); err != nil {
		t.Errorf("the last: %v: %s", err, out)
	}
	if !whole() {
		t.Error("the last left nothing")
	}
	t.Logf("%d pulls killed at random points of %v, %d ended before; %d of the interrupted ones explained how to resume",
		*kills, took/2, finished, told)
}

// checkPulled compares everything in a cache that has a name of its own with
// the hub's files, and reports whether the model is there. If it is, it is complete.
func checkPulled(t *testing.T, h *hubtest.Hub, cache string) bool {
	t.Helper()
	hashes := map[string][]byte{}
	for name, data := range h.Files {
		hashes[hubtest.Hash(name, data)] = data
	}
	blobs, err := filepath.Glob(filepath.Join(cache, "models--me--mine", "blobs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range blobs {
		if name := filepath.Base(path); !strings.Contains(name, ".") {
			data, err := os.ReadFile(path)
			if err != nil || !slices.Equal(data, hashes[name]) {
				t.Errorf("%s has other bytes than the hub's, or %v", name, err)
			}
		}
	}
	folder := filepath.Join(cache, "models--me--mine", "snapshots", h.Commit())
	if _, err := os.Stat(filepath.Join(folder, "model_index.json")); err != nil {
		return false
	}
	for name, data := range h.Files {
		if name == "text_encoder/model.safetensors" {
			continue
		}
		got, err := fs.ReadFile(os.DirFS(folder), name)
		if err != nil || !slices.Equal(got, data) {
			t.Errorf("%s: %d bytes, expected %d, %v", name, len(got), len(data), err)
		}
	}
	return true
}
