// Package hubtest is a fake Hugging Face hub for tests. Like the real one, it
// redirects requests for large files to another host.
package hubtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Hub is a hub with one repository.
type Hub struct {
	URL   string
	Repo  string
	Files map[string][]byte
	// Token is required to download files, unless it is "".
	Token string
	// Revisions are the names of the commit, main by default.
	Revisions []string
	// Fault, if not nil, is called before a file is served for the n-th time,
	// counted from 0. host is hub or store. Fault reports whether it has written
	// the response.
	Fault func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool

	store  string
	hashes map[string]string // of Files, as they were at the start

	mu     sync.Mutex
	asked  map[string]int
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
	h.Set(func() { h.URL, h.store = main.URL, store.URL })
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

func (h *Hub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.Set(func() {}) // what has been set before is seen from here on
	api, isAPI := strings.CutPrefix(r.URL.Path, "/api/models/"+h.Repo+"/")
	resolve, isFile := strings.CutPrefix(r.URL.Path, "/"+h.Repo+"/resolve/")
	switch {
	case isAPI && h.faulty("hub", "api", w, r):
	case isAPI:
		what, revision, _ := strings.Cut(api, "/")
		if !h.known(revision) {
			refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if what == "tree" {
			json.NewEncoder(w).Encode(h.tree())
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"id": h.Repo, "sha": h.Commit(), "gated": h.gate(), "siblings": h.siblings(),
			"cardData": map[string]any{"license": "mit"}})
	case isFile:
		revision, path, _ := strings.Cut(resolve, "/")
		data, ok := h.Files[path]
		switch {
		case !h.known(revision):
			refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
			return
		case !ok:
			refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
			return
		case h.Token != "" && r.Header.Get("Authorization") == "":
			refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to model "+h.Repo+" is restricted.")
			return
		case h.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.Token:
			refuse(w, http.StatusForbidden, "GatedRepo", "Access to model "+h.Repo+" is restricted.")
			return
		}
		w.Header().Set("X-Repo-Commit", h.Commit())
		if h.faulty("hub", path, w, r) {
			return
		}
		if LFS(path) {
			w.Header().Set("X-Linked-Etag", `"`+h.hashes[path]+`"`)
			w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
			http.Redirect(w, r, h.store+"/"+path+"?signature=secret", http.StatusFound)
			return
		}
		h.serve(w, r, path)
	default:
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Invalid username or password.")
	}
}

func (h *Hub) gate() any {
	if h.Token != "" {
		return "auto"
	}
	return false
}

func (h *Hub) known(revision string) bool {
	return revision == h.Commit() || slices.Contains(h.Revisions, revision)
}

func (h *Hub) serveStore(w http.ResponseWriter, r *http.Request) {
	h.Set(func() {})
	path := strings.TrimPrefix(r.URL.Path, "/")
	if a := r.Header.Get("Authorization"); a != "" {
		h.mu.Lock()
		h.leaked = append(h.leaked, a)
		h.mu.Unlock()
	}
	if h.faulty("store", path, w, r) {
		return
	}
	h.serve(counter{w, h}, r, path)
}

// faulty counts a request and calls Fault.
func (h *Hub) faulty(host, path string, w http.ResponseWriter, r *http.Request) bool {
	h.mu.Lock()
	n := h.asked[host+" "+path]
	h.asked[host+" "+path]++
	fault := h.Fault
	h.mu.Unlock()
	return fault != nil && fault(host, path, n, w, r)
}

// A counter counts the bytes sent.
type counter struct {
	http.ResponseWriter
	hub *Hub
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.hub.mu.Lock()
	c.hub.sent += int64(n)
	c.hub.mu.Unlock()
	return n, err
}

// serve serves a file without faults.
func (h *Hub) serve(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Etag", `"`+h.hashes[path]+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.Files[path]))
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", message)
	http.Error(w, message, status)
}

func (h *Hub) siblings() (list []map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		data := h.Files[name]
		entry := map[string]any{"rfilename": name, "size": len(data), "blobId": h.blob(name)}
		if LFS(name) {
			entry["lfs"] = map[string]any{"sha256": h.hashes[name], "size": len(data), "pointerSize": 134}
		}
		list = append(list, entry)
	}
	return list
}

func (h *Hub) tree() (list []map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		data := h.Files[name]
		entry := map[string]any{"type": "file", "path": name, "size": len(data), "oid": h.blob(name)}
		if LFS(name) {
			entry["lfs"] = map[string]any{"oid": h.hashes[name], "size": len(data), "pointerSize": 134}
		}
		list = append(list, entry)
	}
	return list
}

// blob returns the hash of the git object. For a large file the real hub would
// return that of the LFS pointer, which no client uses.
func (h *Hub) blob(name string) string {
	if LFS(name) {
		return Hash("", []byte(h.hashes[name]))
	}
	return h.hashes[name]
}
