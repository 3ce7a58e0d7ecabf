// Package hubtest is a fake Hugging Face hub for tests. To huggingface_hub it looks
// like the real one: it redirects requests for large files to links of another
// host that are signed, and those for others to its cache of resolved files.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A Hub is a hub with one repository.
type Hub struct {
	URL   string
	Repo  string
	Files map[string][]byte
	// Token is required to download files, unless it is "". Other tokens are those
	// of accounts without access; what begins with "unknown" is no token.
	Token string
	// Refusal is the hub's message for accounts without access; "" is its usual one.
	Refusal string
	// Private hides the repository from who has no Token.
	Private bool
	// Disabled means that nobody has access.
	Disabled bool
	// Former are former names of the repository, which redirect to it.
	Former []string
	// Revisions are the names of the commit, main by default. What it begins with,
	// at least 7 digits, is one too.
	Revisions []string
	// Xet means that large files are in Xet storage too.
	Xet bool
	// Uses is how often a signed link works before it has expired; 0 is always.
	Uses int
	// Page is the number of entries on a page of the repository's tree, 1000 by
	// default.
	Page int
	// Prefix begins the path of every URL, as with some mirrors. It belongs to URL too.
	Prefix string
	// Fault, if not nil, is called before a file is served for the n-th time,
	// counted from 0. host is hub or store. Fault reports whether it has written
	// the response.
	Fault func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool

	store  string
	hashes map[string]string // of Files, as they were at the start

	mu     sync.Mutex
	asked  map[string]int
	links  []int // how often each was used
	leaked []string
	sent   int64
}

// New starts a fake hub that runs until the test ends.
func New(t testing.TB, repo string, files map[string][]byte) *Hub {
	h, stop := Start(repo, files)
	t.Cleanup(stop)
	return h
}

// Start starts a fake hub.
func Start(repo string, files map[string][]byte) (h *Hub, stop func()) {
	h = &Hub{Repo: repo, Files: files, Revisions: []string{"main"}, asked: map[string]int{}}
	h.hashes = map[string]string{}
	for name, data := range files {
		h.hashes[name] = Hash(name, data)
	}
	main := httptest.NewServer(http.HandlerFunc(h.serveHub))
	store := httptest.NewServer(http.HandlerFunc(h.serveStore))
	// to some versions of huggingface_hub another port is not another host
	h.Set(func() { h.URL, h.store = main.URL, strings.Replace(store.URL, "127.0.0.1", "localhost", 1) })
	return h, func() {
		main.CloseClientConnections()
		store.CloseClientConnections()
		main.Close()
		store.Close()
	}
}

// Set changes fields of a running hub.
func (h *Hub) Set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// Hold lets the second host send half of each range that it is asked for, and the rest after
// release is called. begin returns the first byte of the last range.
func (h *Hub) Hold() (release func(), begin func() int) {
	released := make(chan struct{})
	var last atomic.Int64
	hold := func(host, path string, _ int, w http.ResponseWriter, r *http.Request) bool {
		var begin, end int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end); err != nil || host != "store" {
			return false
		}
		last.Store(int64(begin))
		data := h.Files[path]
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end, len(data)))
		w.Header().Set("Content-Length", fmt.Sprint(end+1-begin))
		w.WriteHeader(http.StatusPartialContent)
		half := (begin + end + 1) / 2
		w.Write(data[begin:half])
		w.(http.Flusher).Flush()
		select {
		case <-released:
			w.Write(data[half : end+1])
		case <-r.Context().Done():
		}
		return true
	}
	h.Set(func() { h.Fault = hold })
	return sync.OnceFunc(func() { close(released) }), func() int { return int(last.Load()) }
}

// ReadFiles returns the contents of all files of a folder by path.
func ReadFiles(fsys fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[name], err = fs.ReadFile(fsys, name)
		return err
	})
}

// Commit returns the name of the only commit.
func (h *Hub) Commit() string {
	sum := sha1.New()
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		fmt.Fprintf(sum, "%s %s\n", name, h.hashes[name])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// LFS reports whether a file is in large file storage.
func LFS(name string) bool { return strings.HasSuffix(name, ".safetensors") }

// Hash returns a file's name in the cache.
func Hash(name string, data []byte) string {
	if LFS(name) {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

// Asked returns the number of requests for a file to either host.
func (h *Hub) Asked(host, path string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[host+" "+path]
}

// Sent returns the number of bytes of large files that were sent.
func (h *Hub) Sent() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent
}

// Leaked returns the credentials that the second host received.
func (h *Hub) Leaked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaked
}
