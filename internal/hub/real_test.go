package hub

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hubtest"
)

// TestReal pulls from stand-ins of the hub that do what the real one does, under
// the names that users give to the model.
func TestReal(t *testing.T) {
	tests := []struct {
		name, repo, revision, ref string
		change                    func(h *hubtest.Hub)
	}{
		{"renamed", "me/former", "", "main", func(h *hubtest.Hub) { h.Former = []string{"me/former"} }},
		{"renamed and gated", "me/former", "", "main", func(h *hubtest.Hub) { h.Former, h.Token = []string{"me/former"}, "secret" }},
		{"private", repo, "", "main", func(h *hubtest.Hub) { h.Private, h.Token = true, "secret" }},
		{"in Xet storage", repo, "", "main", func(h *hubtest.Hub) { h.Xet = true }},
		{"with links for one request", repo, "", "main", func(h *hubtest.Hub) { h.Uses = 1 }},
		{"of a pull request", repo, "refs/pr/1", "refs/pr/1", func(h *hubtest.Hub) { h.Revisions = append(h.Revisions, "refs/pr/1") }},
		{"by the beginning of a commit", repo, "SHORT", "SHORT", func(*hubtest.Hub) {}},
		{"by a commit", repo, "COMMIT", "", func(*hubtest.Hub) {}},
		{"of a mirror with a path", repo, "", "main", func(h *hubtest.Hub) { h.Prefix, h.URL = "/api/hf", h.URL+"/api/hf/" }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := newCache(t)
			h := hubtest.New(t, repo, pipeline())
			h.Set(func() { test.change(h) })
			t.Setenv("HF_TOKEN", h.Token)
			named := strings.NewReplacer("COMMIT", h.Commit(), "SHORT", h.Commit()[:7])
			test.revision, test.ref = named.Replace(test.revision), named.Replace(test.ref)
			c := fast(t, h)
			info, err := c.Info(t.Context(), test.repo, test.revision)
			if err != nil {
				t.Fatal(err)
			}
			p, err := c.Plan(t.Context(), info, false)
			if err != nil {
				t.Fatal(err)
			}
			folder, err := c.Pull(t.Context(), p, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkSnapshot(t, h, folder)
			if found, err := Find(test.repo, test.revision); err != nil || found != folder {
				t.Errorf("found %s, %v, expected %s", found, err, folder)
			}
			if refs, err := refsTo(filepath.Join(cache, folderName(test.repo), "refs"), h.Commit()); err != nil ||
				!slices.Equal(refs, slices.DeleteFunc([]string{test.ref}, func(ref string) bool { return ref == "" })) {
				t.Errorf("the commit has the names %q, %v", refs, err)
			}
			if leaked := h.Leaked(); len(leaked) > 0 {
				t.Errorf("the other host was sent %q", leaked)
			}
		})
	}
}

// TestOddNames pulls files with names that URLs write in another way, and checks
// what is told of the client.
func TestOddNames(t *testing.T) {
	newCache(t)
	files := map[string][]byte{}
	var names []string
	for i, name := range []string{"a b.safetensors", "c+d/e&f=g.safetensors", "#h?i;j.safetensors", "k%20l@m:n,$.safetensors",
		"é/日本.safetensors", "[o]{p}'(q)!*~.safetensors"} {
		files[name], names = []byte{byte(i)}, append(names, name)
	}
	h := hubtest.New(t, repo, files)
	var agents []string
	h.Fault = func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		h.Set(func() { agents = append(agents, r.UserAgent()+" "+r.Header.Get("Accept-Encoding")) })
		return false
	}
	c := fast(t, h)
	c.UserAgent = "gomflux/1.2.3"
	info, err := c.Info(t.Context(), repo, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Plan(t.Context(), info, false, names...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pull(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		path, err := FindFile(repo, "", name)
		if data, e := os.ReadFile(path); err != nil || !bytes.Equal(data, want) {
			t.Errorf("%s: %v, %v, %v", name, data, err, e)
		}
	}
	if agents = slices.Compact(agents); !slices.Equal(agents, []string{"gomflux/1.2.3 identity"}) {
		t.Errorf("the hosts were told %q", agents)
	}
}

// TestWaiting checks that a wait is told once, and is over at its end.
func TestWaiting(t *testing.T) {
	newCache(t)
	h := hubtest.New(t, repo, pipeline())
	h.Fault = func(host, path string, n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 0 || host != "hub" || path != "README.md" && path != weight { // two at once
			return false
		}
		w.Header().Set("RateLimit", `"resolvers";r=0;t=0`)
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	c := fast(t, h)
	var told []time.Duration
	c.Waiting = func(wait time.Duration) { told = append(told, wait) }
	if _, err := pull(t.Context(), c, ""); err != nil || !slices.Equal(told, []time.Duration{time.Second}) {
		t.Errorf("told %v, %v", told, err)
	}
}

func TestAskedToWait(t *testing.T) {
	for _, test := range []struct {
		status            int
		rateLimit, header string
		want              time.Duration
	}{
		{429, `"api";r=0;t=55`, "", 56 * time.Second},
		{429, `"api";r=0;t=300`, "7", 301 * time.Second},
		{429, `"api" ; r = 0 ; t = 5`, "", 6 * time.Second},
		{429, `"api";r=9;t=55`, "7", 7 * time.Second}, // another limit is the reason
		{429, `api`, "", 0},
		{429, "", "120", 2 * time.Minute},
		{503, `"api";r=0;t=55`, "3", 3 * time.Second},
		{200, `"api";r=0;t=55`, "", 0},
	} {
		header := http.Header{"Ratelimit": {test.rateLimit}, "Retry-After": {test.header}}
		if got := askedToWait(&http.Response{StatusCode: test.status, Header: header}); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if longestWait < 301*time.Second {
		t.Error("a window of the hub is too long to wait for its end")
	}
}

// share moves a file to the store that repositories share, as huggingface_hub does
// with files in Xet storage, and links the blobs to it.
func share(t *testing.T, cache, name string, blobs ...string) (shared string) {
	t.Helper()
	shared = filepath.Join(cache, "blobs", name[:2], name)
	var refs []byte
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.MkdirAll(filepath.Dir(shared), 0o777))
	check(os.WriteFile(filepath.Join(cache, sharedMarker), []byte("1\n"), 0o666))
	data, err := os.ReadFile(blobs[0])
	check(err)
	check(os.WriteFile(shared, data, 0o444))
	for _, blob := range blobs {
		check(os.Remove(blob))
		check(os.Symlink(filepath.Join("../../blobs", name[:2], name), blob))
		path, err := filepath.Rel(cache, blob)
		check(err)
		refs = append(refs, path+"\n"...)
	}
	check(os.WriteFile(shared+".refs", append(refs, "models--me--gone/blobs/x\n../x\n/x\n"...), 0o666))
	return shared
}

// TestShared checks that weights which repositories share are used, and removed
// with the last that has them.
func TestShared(t *testing.T) {
	cache := newCache(t)
	files := pipeline()
	h := hubtest.New(t, repo, files)
	later := maps.Clone(files)
	later[weight] = []byte("other weights")
	other := hubtest.New(t, "me/other", files)
	newer := hubtest.New(t, repo, later)
	newer.Revisions = []string{"newer"}
	blob := func(repo string) string {
		return filepath.Join(cache, folderName(repo), "blobs", hubtest.Hash(weight, files[weight]))
	}
	get := func(h *hubtest.Hub, revision string, verify bool) *Plan {
		t.Helper()
		c := fast(t, h)
		info, err := c.Info(t.Context(), h.Repo, revision)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Plan(t.Context(), info, verify)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Pull(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, h := range []*hubtest.Hub{h, other} {
		get(h, "", false)
	}
	get(newer, "newer", false)
	const name = "ab0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd"
	shared := share(t, cache, name, blob(repo), blob("me/other"))
	for _, h := range []*hubtest.Hub{h, other} {
		if p := get(h, "", true); p.Missing() > 0 {
			t.Errorf("%s: %d bytes were missing", h.Repo, p.Missing())
		}
	}
	size := int64(len(files[weight]))
	steps := []struct {
		repo, revision string
		frees, left    bool
	}{
		{repo, "main", false, true},
		{"me/other", "", true, false},
	}
	for _, step := range steps {
		r, err := remove(step.repo, step.revision)
		if err != nil || (r.Bytes >= size) != step.frees {
			t.Errorf("%s: removed %+v, %v", step.repo, r, err)
		}
		if _, err := os.Stat(shared); (err == nil) != step.left {
			t.Errorf("%s: the shared file: %v", step.repo, err)
		}
	}
	if left, err := filepath.Glob(shared + "*"); err != nil || len(left) != 1 { // its lock
		t.Errorf("left %v, %v", left, err)
	}

	// what is not known to be unused stays
	changes := map[string]func(shared string) error{
		"no list":       func(shared string) error { return os.Remove(shared + ".refs") },
		"no marker":     func(string) error { return os.Remove(filepath.Join(cache, sharedMarker)) },
		"other version": func(string) error { return os.WriteFile(filepath.Join(cache, sharedMarker), []byte("2\n"), 0o666) },
		"no access": func(shared string) error { // a name that is too long stands for any error
			return os.WriteFile(shared+".refs", []byte(strings.Repeat("x", 300)+"\n"), 0o666)
		},
		"locked": func(shared string) error {
			_, err := tryLock(shared + ".lock")
			return err
		},
	}
	for what, change := range changes {
		get(h, "", false)
		shared := share(t, cache, name, blob(repo))
		if err := change(shared); err != nil {
			t.Fatal(err)
		}
		if _, err := remove(repo, ""); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(shared); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := os.RemoveAll(filepath.Join(cache, "blobs")); err != nil {
			t.Fatal(err)
		}
	}
}
