package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hubtest"
)

const (
	repo   = "me/mine"
	weight = "transformer/diffusion_pytorch_model.safetensors"
)

// pipeline is a small model whose weights take several ranges.
func pipeline() map[string][]byte {
	random := rand.NewChaCha8([32]byte{1})
	bytes := func(n int) []byte {
		b := make([]byte, n)
		random.Read(b)
		return b
	}
	return map[string][]byte{
		"README.md": []byte("---\nlicense: mit\n---\n"),
		"model_index.json": []byte(`{"_class_name": "ZImagePipeline", "transformer": ["diffusers", "A"], "vae": ` +
			`["diffusers", "B"], "feature_extractor": [null, null]}`),
		"transformer/config.json": []byte("{}"),
		weight:                    bytes(3<<20 + 7),
		"vae/config.json":         []byte(`{"a": 1}`),
		"vae/diffusion_pytorch_model.safetensors": bytes(10),
		"vae/empty.txt": {},
		"transformer/diffusion_pytorch_model.bin": bytes(10),
		"single.safetensors":                      bytes(10),
		"assets/teaser.png":                       bytes(10),
	}
}

// fast returns a client without pauses between retries.
func fast(t *testing.T, h *hubtest.Hub) *Client {
	t.Helper()
	t.Setenv("HF_ENDPOINT", h.URL)
	c, err := NewClient()
	if err != nil {
		t.Fatal(err)
	}
	c.stall, c.waitMin, c.waitMax = 300*time.Millisecond, time.Millisecond, 2*time.Millisecond
	return c
}

// pull downloads the model into the cache of HF_HUB_CACHE.
func pull(ctx context.Context, c *Client, revision string) (string, error) {
	info, err := c.Info(ctx, repo, revision)
	if err != nil {
		return "", err
	}
	p, err := c.Plan(ctx, info, false)
	if err != nil {
		return "", err
	}
	return c.Pull(ctx, p, nil)
}

// whole lists the files that a pull of pipeline downloads.
var whole = []string{"README.md", "model_index.json", "transformer/config.json", weight, "vae/config.json",
	"vae/diffusion_pytorch_model.safetensors", "vae/empty.txt"}

// checkSnapshot compares a snapshot's files with the hub's, and fails on leftover
// files.
func checkSnapshot(t *testing.T, h *hubtest.Hub, folder string) {
	t.Helper()
	var names []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		names = append(names, name)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, h.Files[name]) {
			return fmt.Errorf("%s has other bytes than the hub's", name)
		}
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if want := strings.Repeat("../", strings.Count(name, "/")) + "../../blobs/" + hubtest.Hash(name, data); target != want {
			return fmt.Errorf("%s leads to %s, expected %s", name, target, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if !slices.Equal(names, whole) {
		t.Errorf("the snapshot has %q, expected %q", names, whole)
	}
	repo := filepath.Dir(filepath.Dir(folder))
	blobs, err := os.ReadDir(filepath.Join(repo, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	if len(blobs) != len(whole) {
		t.Errorf("%d blobs, expected %d: %v", len(blobs), len(whole), blobs)
	}
}

// checkBlobs checks that the contents of every blob match its name, a hash.
func checkBlobs(t *testing.T, cache string) {
	t.Helper()
	blobs, err := filepath.Glob(filepath.Join(cache, "models--*", "blobs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range blobs {
		name := filepath.Base(path)
		if strings.Contains(name, ".") {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		kind := ""
		if len(name) == 64 {
			kind = weight
		}
		if got := hubtest.Hash(kind, data); got != name {
			t.Errorf("the blob %s has the hash %s", name, got)
		}
	}
}

func newCache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HF_HUB_CACHE", dir)
	t.Setenv("HF_HOME", filepath.Join(dir, "home"))
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"} {
		t.Setenv(name, "")
	}
	return dir
}

func TestPull(t *testing.T) {
	cache := newCache(t)
	h := hubtest.New(t, repo, pipeline())
	c := fast(t, h)
	var told []Progress
	info, err := c.Info(t.Context(), repo, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Plan(t.Context(), info, false)
	if err != nil {
		t.Fatal(err)
	}
	if p.Complete() || p.Here != 0 || p.Missing() != p.Bytes || info.Licence != "mit" {
		t.Errorf("plan %+v of %+v", p, info)
	}
	folder, err := c.Pull(t.Context(), p, func(p Progress) { told = append(told, p) })
	if err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, h, folder)
	if found, err := Find(repo, ""); err != nil || found != folder {
		t.Errorf("found %s, %v, expected %s", found, err, folder)
	}
	if last := told[len(told)-1]; last.Here != p.Bytes || last.Bytes != p.Bytes {
		t.Errorf("told %+v last, of %d bytes", last, p.Bytes)
	}
	if ref, err := os.ReadFile(filepath.Join(cache, "models--me--mine/refs/main")); err != nil || string(ref) != h.Commit() {
		t.Errorf("refs/main is %s, %v", ref, err)
	}

	// a second pull has nothing to do
	sent := h.Sent()
	if p, err = c.Plan(t.Context(), info, true); err != nil || !p.Complete() || p.Missing() != 0 {
		t.Errorf("plan %+v, %v of what is whole", p, err)
	}
	if again, err := c.Pull(t.Context(), p, nil); err != nil || again != folder || h.Sent() != sent {
		t.Errorf("again %s, %v and %d bytes", again, err, h.Sent()-sent)
	}

	// another name of the same commit, and a damaged file
	h.Revisions = append(h.Revisions, "v1/rc.1")
	if again, err := pull(t.Context(), c, "v1/rc.1"); err != nil || again != folder {
		t.Errorf("the tag is at %s, %v", again, err)
	}
	for _, revision := range []string{"v1/rc.1", h.Commit()} {
		if found, err := Find(repo, revision); err != nil || found != folder {
			t.Errorf("%s: found %s, %v", revision, found, err)
		}
	}
	blob := filepath.Join(cache, "models--me--mine/blobs", hubtest.Hash(weight, h.Files[weight]))
	damaged := bytes.Clone(h.Files[weight])
	damaged[77] ^= 1
	if err := os.WriteFile(blob, damaged, 0o666); err != nil {
		t.Fatal(err)
	}
	if p, err = c.Plan(t.Context(), info, true); err != nil || p.Missing() != int64(len(damaged)) {
		t.Errorf("plan %+v, %v of what is damaged", p, err)
	}
	if folder, err = c.Pull(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, h, folder)
}

// TestPullNamed checks that a pull of one file of a pipeline downloads no others.
func TestPullNamed(t *testing.T) {
	newCache(t)
	h := hubtest.New(t, repo, pipeline())
	client := fast(t, h)
	info, err := client.Info(t.Context(), repo, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Plan(t.Context(), info, false, "nothing.safetensors"); !errors.Is(err, ErrNoAccess) {
		t.Errorf("a file that is not there: %v", err)
	}
	p, err := client.Plan(t.Context(), info, false, "single.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if p.Index != nil || len(p.Files) != 2 {
		t.Errorf("planned %+v", p)
	}
	folder, err := client.Pull(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	path, err := FindFile(repo, "", "single.safetensors")
	if err != nil || path != filepath.Join(folder, "single.safetensors") {
		t.Errorf("found %q, %v", path, err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(data, h.Files["single.safetensors"]) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := os.Lstat(filepath.Join(folder, indexName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it looks like a pipeline: %v", err)
	}
	if folder, err = pull(t.Context(), client, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, indexName)); err != nil {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	body := pipeline()[weight]
	cut := func(n int) func(w http.ResponseWriter, r *http.Request, header string) {
		return func(w http.ResponseWriter, r *http.Request, header string) {
			begin, end, _ := asked(r)
			w.Header().Set("Content-Range", header)
			w.Header().Set("Content-Length", fmt.Sprint(end-begin))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(body[begin:min(end, begin+n)])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	partial := func(w http.ResponseWriter, header string, data []byte) {
		w.Header().Set("Content-Range", header)
		w.WriteHeader(http.StatusPartialContent)
		w.Write(data)
	}
	contentRange := func(begin, end, size int) string { return fmt.Sprintf("bytes %d-%d/%d", begin, end-1, size) }
	damaged := bytes.Clone(body)
	damaged[2<<20] ^= 1
	tests := []struct {
		name  string
		host  string // store if not given
		until int    // how often it happens; 0 is always
		fault func(w http.ResponseWriter, r *http.Request)
		// expected error if the fault persists; "" if the pull succeeds anyway
		err string
	}{
		{"cut", "", 3, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			cut(100_000)(w, r, contentRange(begin, end, len(body)))
		}, ""},
		{"cut always", "", 0, func(w http.ResponseWriter, r *http.Request) { // what comes is kept
			begin, end, _ := asked(r)
			cut(500_000)(w, r, contentRange(begin, end, len(body)))
		}, ""},
		{"cut before any byte", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			cut(0)(w, r, contentRange(begin, end, len(body)))
		}, "connection was cut"},
		{"ended early", "", 0, func(w http.ResponseWriter, r *http.Request) { // chunked, so that nothing says it was cut
			begin, end, _ := asked(r)
			w.Header().Set("Content-Range", contentRange(begin, end, len(body)))
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush()
		}, "unexpected EOF"},
		{"another range", "", 2, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			partial(w, contentRange(begin+1, end, len(body)), body[begin+1:end])
		}, ""},
		{"another range always", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			partial(w, contentRange(begin+1, end, len(body)), body[begin+1:end])
		}, "the server sent bytes 1 to"},
		{"longer range", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, _, _ := asked(r)
			partial(w, contentRange(begin, len(body), len(body)), body[begin:])
		}, ", expected "},
		{"shorter ranges", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			end = min(end, begin+300_000)
			partial(w, contentRange(begin, end, len(body)), body[begin:end])
		}, ""},
		{"range of nothing", "", 0, func(w http.ResponseWriter, r *http.Request) { partial(w, "bytes 5-2/9", body[:5]) },
			"impossible Content-Range"},
		{"no Content-Range", "", 0, func(w http.ResponseWriter, r *http.Request) { partial(w, "", body) }, "invalid Content-Range"},
		{"another length in all", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			partial(w, contentRange(begin, end, len(body)+1), body[begin:end])
		}, "its size is"},
		{"range ignored", "", 0, func(w http.ResponseWriter, r *http.Request) { w.Write(body) }, ""},
		{"range ignored and cut", "", 4, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:2<<20])
			panic(http.ErrAbortHandler)
		}, ""},
		{"range ignored and cut always", "", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:2<<20])
			panic(http.ErrAbortHandler)
		}, "connection was cut"},
		{"range ignored and too short", "", 0, func(w http.ResponseWriter, r *http.Request) { w.Write(body[:len(body)-1]) },
			"connection was cut"},
		{"range ignored and another length", "", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)-1))
			w.Write(body[:len(body)-1])
		}, "its size is"},
		{"corrupted once", "", 1, func(w http.ResponseWriter, r *http.Request) { w.Write(damaged) }, ""},
		{"corrupted", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			partial(w, contentRange(begin, end, len(body)), damaged[begin:end])
		}, "file is damaged: SHA-256 "},
		{"too long", "", 0, func(w http.ResponseWriter, r *http.Request) { w.Write(append(bytes.Clone(body), 1)) }, ""}, // the rest is left
		{"429", "hub", 2, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}, ""},
		{"429 of a window", "hub", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("RateLimit", `"resolvers";r=0;t=3599`)
			w.WriteHeader(http.StatusTooManyRequests)
		}, "too many requests: the hub asks to wait 1h0m0s"},
		{"408", "hub", 2, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusRequestTimeout) }, ""},
		{"429 for an hour", "hub", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}, "too many requests: the hub asks to wait 1h0m0s"},
		{"500", "hub", 3, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, ""},
		{"500 always", "hub", 0, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"500 Internal Server Error"},
		{"503 of the store", "", 3, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, ""},
		{"a link that is no longer valid", "", 2, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }, ""},
		{"404 of the store", "", 0, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotFound) }, "answered 404"},
		{"416", "", 0, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) }, "416"},
		{"redirects in a circle", "hub", 0, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}, "redirects"},
		{"another etag", "hub", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Linked-Etag", `"`+hubtest.Hash(weight, damaged)+`"`)
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "file does not match the hub's listing: its etag is"},
		{"another size", "hub", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Linked-Size", "5")
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "its size is 5"},
		{"compressed", "", 0, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			w.Write(body)
		}, "encoding"},
		{"stalled", "", 1, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			w.Header().Set("Content-Range", contentRange(begin, end, len(body)))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(body[begin : begin+9])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, ""},
		{"slow", "", 0, func(w http.ResponseWriter, r *http.Request) {
			begin, end, _ := asked(r)
			w.Header().Set("Content-Range", contentRange(begin, end, len(body)))
			w.WriteHeader(http.StatusPartialContent)
			for ; begin < end; begin += 400_000 {
				w.Write(body[begin:min(begin+400_000, end)])
				w.(http.Flusher).Flush()
				time.Sleep(20 * time.Millisecond)
			}
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := newCache(t)
			h := hubtest.New(t, repo, pipeline())
			h.Token = "secret"
			t.Setenv("HF_TOKEN", h.Token)
			host := test.host
			if host == "" {
				host = "store"
			}
			h.Fault = func(at, path string, n int, w http.ResponseWriter, r *http.Request) bool {
				if at != host || path != weight || test.until > 0 && n >= test.until {
					return false
				}
				test.fault(w, r)
				return true
			}
			folder, err := pull(t.Context(), fast(t, h), "")
			checkBlobs(t, cache)
			if leaked := h.Leaked(); len(leaked) > 0 {
				t.Errorf("the other host was sent %q", leaked)
			}
			if test.err == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkSnapshot(t, h, folder)
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, expected %q", err, test.err)
			} else if !strings.Contains(err.Error(), weight) && host == "store" {
				t.Errorf("the error does not name the file: %v", err)
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error contains the token: %v", err)
			}
			if found, err := Find(repo, ""); err == nil {
				t.Errorf("a model is found: %s", found)
			}
			// without the fault the same pull succeeds
			h.Set(func() { h.Fault = nil })
			if folder, err = pull(t.Context(), fast(t, h), ""); err != nil {
				t.Fatal(err)
			}
			checkSnapshot(t, h, folder)
		})
	}
}

// asked returns the range of a request.
func asked(r *http.Request) (begin, end int, err error) {
	_, err = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end)
	return begin, end + 1, err
}

func TestRefused(t *testing.T) {
	const pending = "Your request to access model me/mine is awaiting a review from the repo authors."
	nothing := func(*hubtest.Hub) {}
	private := func(h *hubtest.Hub) { h.Private = true }
	tests := []struct {
		name, repo, revision, token string
		change                      func(h *hubtest.Hub)
		want                        string
	}{
		{"gated", repo, "", "", nothing,
			"is gated (accept its conditions at URL/me/mine; set HF_TOKEN to your token from URL/settings/tokens)"},
		{"gated, and no token may be sent", repo, "", "forbidden", nothing, "HF_HUB_DISABLE_IMPLICIT_TOKEN forbids to send your token"},
		{"gated with another's token", repo, "", "other", nothing,
			"is gated (accept its conditions at URL/me/mine; the account of the token that was sent has no access)"},
		{"gated, not yet granted", repo, "", "other", func(h *hubtest.Hub) { h.Refusal = pending }, `has no access): "` + pending + `"`},
		{"no revision", repo, "nope", "secret", nothing, "no revision nope (see URL/me/mine/commits/main)"},
		{"no repository", "me/nope", "", "", nothing, "me/nope: not available from the hub: the repository does not exist"},
		{"no repository, with a token", "me/nope", "", "secret", nothing,
			"the repository does not exist, or it is private or gated (if so, see URL/me/nope, and the account of the token"},
		{"private", repo, "", "", private,
			"the repository does not exist, or it is private or gated (if so, see URL/me/mine, and set HF_TOKEN"},
		{"private, with another's token", repo, "", "other", private, "and the account of the token that was sent has no access)"},
		{"a token that the hub does not know", repo, "", "unknown", nothing,
			"the token that was sent is not valid (set HF_TOKEN to one from"},
		{"disabled", repo, "", "secret", func(h *hubtest.Hub) { h.Disabled = true }, "the hub has disabled access to the repository"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := newCache(t)
			h := hubtest.New(t, repo, pipeline())
			h.Token = "secret"
			test.change(h)
			t.Setenv("HF_TOKEN", test.token)
			if test.token == "forbidden" {
				t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "yes")
			}
			c := fast(t, h)
			info, err := c.Info(t.Context(), test.repo, test.revision)
			if err == nil {
				_, err = c.Plan(t.Context(), info, false)
			}
			if err == nil || !errors.Is(err, ErrNoAccess) || !strings.Contains(err.Error(), strings.ReplaceAll(test.want, "URL", h.URL)) {
				t.Errorf("error %v, expected %q", err, test.want)
			}
			if _, err := os.Stat(filepath.Join(cache, "models--me--mine")); err == nil {
				t.Error("something was written")
			}
		})
	}
	newCache(t)
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	c, err := NewClient()
	if err != nil {
		t.Fatal(err)
	}
	c.waitMin, c.waitMax = time.Millisecond, time.Millisecond
	if _, err := c.Info(t.Context(), repo, ""); err == nil ||
		!strings.Contains(err.Error(), "me/mine: cannot reach the hub: 127.0.0.1:1: ") {
		t.Errorf("nobody there: %v", err)
	}
}

// TestNoDowngrade checks that redirects from HTTPS to HTTP are refused.
func TestNoDowngrade(t *testing.T) {
	c := &Client{}
	from, _ := http.NewRequest("GET", "https://a.example/x", nil)
	to, _ := http.NewRequest("GET", "http://a.example/x", nil)
	if err := c.checkRedirect(to, []*http.Request{from}); !errors.Is(err, errDowngrade) {
		t.Errorf("error %v", err)
	}
}

// TestTokenStays checks that the token is not sent to a subdomain, another port or
// another scheme, but to the hub itself if a mirror redirects there.
func TestTokenStays(t *testing.T) {
	c := &Client{}
	for address, stays := range map[string]bool{
		"https://hub.example/y": true, "https://cdn.hub.example/y": false, "https://hub.example:8443/y": false, "https://example/y": false,
		"https://huggingface.co/y": true, "https://hf.co/y": true, "https://cdn.huggingface.co/y": false,
		"https://huggingface.co.example": false,
	} {
		for _, sent := range []bool{true, false} {
			from, _ := http.NewRequest("GET", "https://hub.example/x", nil)
			to, err := http.NewRequest("GET", address, nil)
			if err != nil {
				t.Fatal(err)
			}
			last := from.Clone(t.Context())
			if from.Header.Set("Authorization", "Bearer x"); sent {
				last = from
			}
			err = c.checkRedirect(to, []*http.Request{from, last})
			if got := to.Header.Get("Authorization"); err != nil || (got != "") != (stays && sent) {
				t.Errorf("%s: %q, %v", address, got, err)
			}
		}
	}
}

// TestStopped checks that a cancelled pull is resumed.
func TestStopped(t *testing.T) {
	newCache(t)
	h := hubtest.New(t, repo, pipeline())
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("stopped")
	size := len(h.Files[weight])
	h.Fault = func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if host != "store" || path != weight || ctx.Err() != nil {
			return false
		}
		begin, end, _ := asked(r)
		if begin < 1<<20 {
			return false
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end-1, size))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(h.Files[path][begin : 2<<20])
		w.(http.Flusher).Flush()
		time.Sleep(50 * time.Millisecond)
		cancel(why)
		panic(http.ErrAbortHandler)
	}
	if _, err := pull(ctx, fast(t, h), ""); !errors.Is(err, why) {
		t.Fatalf("error %v", err)
	}
	repos, err := List()
	if err != nil || len(repos) != 1 || len(repos[0].Unfinished) == 0 || repos[0].Snapshot != "" {
		t.Errorf("listed %+v, %v", repos, err)
	}
	before := h.Sent()
	folder, err := pull(t.Context(), fast(t, h), "")
	if err != nil {
		t.Fatal(err)
	}
	checkSnapshot(t, h, folder)
	if sent := h.Sent() - before; sent > 2<<20 {
		t.Errorf("%d bytes were sent again", sent)
	}
}

// TestBeginning checks that partial downloads of older versions of huggingface_hub
// are resumed, and downloaded again if they are not the file's beginning.
func TestBeginning(t *testing.T) {
	for name, wrong := range map[string]bool{"right": false, "wrong": true} {
		t.Run(name, func(t *testing.T) {
			cache := newCache(t)
			h := hubtest.New(t, repo, pipeline())
			half := bytes.Clone(h.Files[weight][:2<<20])
			if wrong {
				half[9] ^= 1
			}
			blob := filepath.Join(cache, "models--me--mine/blobs", hubtest.Hash(weight, h.Files[weight]))
			if err := os.MkdirAll(filepath.Dir(blob), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(blob+".incomplete", half, 0o666); err != nil {
				t.Fatal(err)
			}
			folder, err := pull(t.Context(), fast(t, h), "")
			if err != nil {
				t.Fatal(err)
			}
			checkSnapshot(t, h, folder)
			if sent := h.Sent(); (sent > 2<<20) != wrong {
				t.Errorf("%d bytes were sent", sent)
			}
		})
	}
}

// TestTogether checks that concurrent pulls download each file once.
func TestTogether(t *testing.T) {
	newCache(t)
	h := hubtest.New(t, repo, pipeline())
	c := fast(t, h)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			folder, err := pull(t.Context(), c, "")
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(filepath.Join(folder, weight)); err != nil || !bytes.Equal(data, h.Files[weight]) {
				t.Errorf("other bytes, or %v", err)
			}
		})
	}
	wait.Wait()
	if sent, want := h.Sent(), int64(len(h.Files[weight])+10); sent != want {
		t.Errorf("%d bytes were sent, expected %d", sent, want)
	}
}

// TestWithoutLinks checks that what is downloaded is moved into the snapshot where
// there are no links, and that blobs that another snapshot has stay.
func TestWithoutLinks(t *testing.T) {
	for _, forbidden := range []bool{false, true} {
		cache := newCache(t)
		files := pipeline()
		files["vae/diffusion_pytorch_model.safetensors"] = files[weight] // twice
		h := hubtest.New(t, repo, files)
		old := maps.Clone(files)
		delete(old, weight)
		old["vae/diffusion_pytorch_model.safetensors"] = []byte("older")
		old["model_index.json"] = []byte(`{"vae": ["diffusers", "B"]}`)
		if _, err := pull(t.Context(), fast(t, hubtest.New(t, repo, old)), ""); err != nil {
			t.Fatal(err)
		}
		if forbidden {
			t.Setenv("HF_HUB_DISABLE_SYMLINKS", "1")
		} else {
			symlink = func(string, string) error { return errors.ErrUnsupported }
			t.Cleanup(func() { symlink = os.Symlink })
		}
		folder, err := pull(t.Context(), fast(t, h), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range whole {
			data, err := os.ReadFile(filepath.Join(folder, name))
			info, _ := os.Lstat(filepath.Join(folder, name))
			if err != nil || !info.Mode().IsRegular() || !bytes.Equal(data, h.Files[name]) {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		blobs, err := filepath.Glob(filepath.Join(cache, "models--me--mine/blobs/*"))
		if err != nil || len(blobs) != 5 { // those of the older snapshot
			t.Errorf("left the blobs %v, %v", blobs, err)
		}
		broken, err := filepath.Glob(filepath.Join(cache, "models--me--mine/snapshots/*/*/*"))
		for _, path := range broken {
			if _, e := os.Stat(path); e != nil {
				t.Errorf("%v, %v", e, err)
			}
		}
		// what is in another file of the snapshot is not downloaded again
		if err := os.Remove(filepath.Join(folder, "vae/diffusion_pytorch_model.safetensors")); err != nil {
			t.Fatal(err)
		}
		before := h.Sent()
		if _, err := pull(t.Context(), fast(t, h), ""); err != nil || h.Sent() != before {
			t.Errorf("again: %v, and %d bytes", err, h.Sent()-before)
		}
		symlink = os.Symlink
	}
}

func TestSpace(t *testing.T) {
	cache := newCache(t)
	of := freeSpace
	t.Cleanup(func() { freeSpace = of })
	freeSpace = func(dir string) (int64, error) {
		if dir != cache {
			return 0, fs.ErrNotExist
		}
		return 3 << 20, nil
	}
	h := hubtest.New(t, repo, pipeline())
	_, err := pull(t.Context(), fast(t, h), "")
	if !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), cache+" has 3.1 MB free") {
		t.Errorf("error %v", err)
	}
	if h.Sent() > 0 {
		t.Errorf("%d bytes were sent", h.Sent())
	}
	if free, err := of(cache); err != nil || free <= 0 {
		t.Errorf("free space %d, %v", free, err)
	}
}

// remove calls Removable and Remove.
func remove(repo, revision string) (*Removal, error) {
	r, err := Removable(repo, revision)
	if err == nil {
		err = r.Remove()
	}
	return r, err
}

func TestRemove(t *testing.T) {
	cache := newCache(t)
	h := hubtest.New(t, repo, pipeline())
	if _, err := remove(repo, ""); !errors.Is(err, ErrNotCached) {
		t.Errorf("removed what is not there: %v", err)
	}
	if _, err := pull(t.Context(), fast(t, h), ""); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(cache, "models--me--mine--too", "blobs", "x")
	if err := os.MkdirAll(other, 0o777); err != nil {
		t.Fatal(err)
	}
	release, err := tryLock(filepath.Join(locksFolder(cache, repo), hubtest.Hash(weight, h.Files[weight])+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remove(repo, ""); !errors.Is(err, errLocked) {
		t.Errorf("removed what is locked: %v", err)
	}
	release()
	if r, err := remove(repo, "v9"); !errors.Is(err, ErrNotCached) {
		t.Errorf("removed a revision that is not there: %+v, %v", r, err)
	}
	var want int64
	for _, name := range whole {
		want += int64(len(h.Files[name]))
	}
	want += int64(len(h.Commit())) // refs/main
	r, err := remove(repo, "main") // the only one
	if err != nil || r.Bytes != want || r.Commit != "" {
		t.Errorf("removed %+v, %v, expected %d bytes", r, err, want)
	}
	left, err := filepath.Glob(filepath.Join(cache, "[^.]*"))
	if err != nil || !slices.Equal(left, []string{filepath.Join(cache, "models--me--mine--too")}) {
		t.Errorf("left %v, %v", left, err)
	}
	if err := os.Symlink(cache, filepath.Join(cache, "models--me--linked")); err != nil {
		t.Fatal(err)
	}
	if _, err := remove("me/linked", ""); err == nil {
		t.Error("a link was followed")
	}
}

func TestRemoveRevision(t *testing.T) {
	cache := newCache(t)
	files := pipeline()
	first := hubtest.New(t, repo, files)
	first.Revisions = []string{"v1", "refs/pr/1"}
	later := maps.Clone(files)
	later[weight] = []byte("other weights")
	delete(later, "vae/empty.txt")
	second := hubtest.New(t, repo, later)
	for _, p := range []struct {
		hub      *hubtest.Hub
		revision string
	}{{first, "v1"}, {first, "refs/pr/1"}, {second, ""}} {
		if _, err := pull(t.Context(), fast(t, p.hub), p.revision); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(cache, "models--me--mine")
	folder := filepath.Join(dir, "snapshots", first.Commit())
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	own := "a file of its own, and no link"
	for path, text := range map[string]string{elsewhere: "not the cache's", filepath.Join(folder, "own.txt"): own,
		filepath.Join(dir, "snapshots", ".DS_Store"): ""} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(elsewhere, filepath.Join(folder, "link.txt")); err != nil {
		t.Fatal(err)
	}
	r, err := Removable(repo, "v1")
	if err != nil {
		t.Fatal(err)
	}
	want := int64(len(files[weight]) + len(own)) // and vae/empty.txt
	if r.Commit != first.Commit() || r.Folder != folder || r.Bytes != want || !slices.Equal(r.Refs, []string{"refs/pr/1", "v1"}) ||
		len(r.blobs) != 2 {
		t.Errorf("found %+v, expected %d bytes", r, want)
	}
	if err := r.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{folder, filepath.Join(dir, "refs", "v1"), filepath.Join(dir, "refs", "refs", "pr", "1"),
		filepath.Join(dir, "blobs", hubtest.Hash(weight, files[weight]))} {
		if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Error(err)
	}
	// the other snapshot is complete
	client := fast(t, second)
	info, err := client.Info(t.Context(), repo, "")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := client.Plan(t.Context(), info, true); err != nil || !p.Complete() {
		t.Errorf("of the other snapshot %d bytes are missing, %v", p.Missing(), err)
	}
	if r, err = remove(repo, second.Commit()); err != nil || r.Commit != "" {
		t.Errorf("the last one: %+v, %v", r, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestToken(t *testing.T) {
	cache := newCache(t)
	home := filepath.Join(cache, "home")
	if err := os.MkdirAll(home, 0o777); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		if got, err := token(); err != nil || got != want {
			t.Errorf("token %q, %v, expected %q", got, err, want)
		}
	}
	check("")
	for path, text := range map[string]string{
		home + "/token": "\ufeffof-home\r\n", cache + "/elsewhere": " of-path ", cache + "/two": "one two",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("of-home")
	t.Setenv("HF_TOKEN_PATH", cache+"/elsewhere")
	check("of-path")
	t.Setenv("HUGGING_FACE_HUB_TOKEN", "older")
	check("older")
	t.Setenv("HF_TOKEN", " newer\n")
	check("newer")
	t.Setenv("HF_TOKEN", "in\r\nlines")
	check("inlines")
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true")
	check("")
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")
	for name, value := range map[string]string{"HF_TOKEN": "one two", "HF_TOKEN_PATH": cache + "/two"} {
		t.Setenv("HF_TOKEN", "")
		t.Setenv("HUGGING_FACE_HUB_TOKEN", "")
		t.Setenv(name, value)
		if got, err := token(); err == nil || !strings.Contains(err.Error(), cmp.Or(strings.TrimPrefix(value, "one two"), name)) {
			t.Errorf("%s: token %q, %v", name, got, err)
		}
	}
}

func TestOffline(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "1": true, "true": true, "Yes": true, "on": true, "no": false} {
		for _, older := range []string{"", "1"} { // which only counts without the other
			t.Setenv("HF_HUB_OFFLINE", value)
			t.Setenv("TRANSFORMERS_OFFLINE", older)
			if Offline() != (want || value == "" && older == "1") {
				t.Errorf("HF_HUB_OFFLINE=%s, TRANSFORMERS_OFFLINE=%s: %v", value, older, Offline())
			}
		}
	}
}

func TestEndpoint(t *testing.T) {
	newCache(t)
	for value, want := range map[string]string{"": DefaultEndpoint, "http://localhost:8080/hub//": "http://localhost:8080/hub",
		"localhost:8080": "", "ftp://x": "", "https://": ""} {
		t.Setenv("HF_ENDPOINT", value)
		c, err := NewClient()
		if (err == nil) != (want != "") || err == nil && c.Endpoint != want {
			t.Errorf("%q: %+v, %v", value, c, err)
		}
	}
}
