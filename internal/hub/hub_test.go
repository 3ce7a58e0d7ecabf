package hub_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hub"
)

// cache creates a cache with the given files.
func cache(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HF_HUB_CACHE", dir)
	return dir
}

func TestRepoOf(t *testing.T) {
	for folder, want := range map[string]string{
		"/c/models--me--mine/snapshots/c0ffee":     "me/mine",
		"models--me--mine--2/snapshots/c0ffee/":    "me/mine--2",
		"/c/models--me--mine/snapshots":            "",
		"/c/models--me--mine/snapshots/c0ffee/vae": "",
		"/c/models--me--mine/refs/c0ffee":          "",
		"/c/models--mine/snapshots/c0ffee":         "",
		"/c/datasets--me--mine/snapshots/c0ffee":   "",
		"/c/models--me--mine/snapshots/../c0ffee":  "",
		"": "",
	} {
		if got, ok := hub.RepoOf(folder); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, expected %q", folder, got, ok, want)
		}
	}
}

func TestFind(t *testing.T) {
	dir := cache(t, map[string]string{
		"models--a--branch/refs/main":                      "c1\n",
		"models--a--branch/snapshots/c0/model_index.json":  "{}",
		"models--a--branch/snapshots/c1/model_index.json":  "{}",
		"models--a--single/snapshots/c7/model_index.json":  "{}",
		"models--a--several/snapshots/c1/model_index.json": "{}",
		"models--a--several/snapshots/c2/model_index.json": "{}",
		"models--a--gone/refs/main":                        "c9",
		"models--a--escape/refs/main":                      "../../../elsewhere",
		"models--a--empty/blobs/x":                         "",
		"models--a--file/refs/main":                        "c1",
		"models--a--file/snapshots":                        "",
	})
	tests := []struct {
		repo, want, err string
		missing         bool
	}{
		{repo: "a/branch", want: "models--a--branch/snapshots/c1"},
		{repo: "a/single", want: "models--a--single/snapshots/c7"},
		{repo: "a/several", err: "2 snapshots"},
		{repo: "a/gone", err: "c9", missing: true},
		{repo: "a/file", err: "snapshots/c1: not a directory"},
		{repo: "a/escape", err: "expected the name of a snapshot"},
		{repo: "a/empty", err: "gomflux pull a/empty", missing: true},
		{repo: "a/nothing", err: "gomflux pull a/nothing", missing: true},
		{repo: "a", err: "owner/name"},
		{repo: "../a", err: "owner/name"},
		{repo: "a/b/c", err: "owner/name"},
	}
	for _, test := range tests {
		got, err := hub.Find(test.repo, "")
		switch {
		case test.err == "" && (err != nil || got != filepath.Join(dir, test.want)):
			t.Errorf("%s: %s, %v, expected %s", test.repo, got, err, test.want)
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%s: %s, error %v, expected %q", test.repo, got, err, test.err)
		case errors.Is(err, hub.ErrNotCached) != test.missing:
			t.Errorf("%s: error %v, not cached: %v", test.repo, err, test.missing)
		}
	}
}

func TestFindRevision(t *testing.T) {
	dir := cache(t, map[string]string{
		"models--a--b/refs/main":                  "c1",
		"models--a--b/refs/v1":                    "c2\n",
		"models--a--b/refs/refs/pr/1":             "c3",
		"models--a--b/refs/gone":                  "c9",
		"models--a--b/refs/out":                   "..",
		"models--a--b/snapshots/c1/x/model.json":  "{}",
		"models--a--b/snapshots/c2/x/model.json":  "{}",
		"models--a--b/snapshots/c3/x/model.json":  "{}",
		"models--a--b/snapshots/v1/model.json":    "{}",
		"models--a--only/snapshots/c1/model.json": "{}",
	})
	for revision, want := range map[string]string{
		"": "c1", "main": "c1", "v1": "c2", "refs/pr/1": "c3", "c3": "c3", // a branch wins over a commit of its name
		"refs": "!not in the Hugging Face cache", "c1/x": "!not in the", "nope": "!at revision nope (to get it: gomflux pull a/b@nope)",
		"gone": "!gone is at c9, but this snapshot does not exist", "out": "!expected the name of a snapshot",
		"../x": "!not a valid name of a revision", "..": "!not a valid name of a revision",
	} {
		got, err := hub.Find("a/b", revision)
		if text, wrong := strings.CutPrefix(want, "!"); wrong {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%q: %s, error %v, expected %q", revision, got, err, text)
			}
			continue
		}
		if err != nil || got != filepath.Join(dir, "models--a--b/snapshots", want) {
			t.Errorf("%q: %s, %v, expected %s", revision, got, err, want)
		}
	}
	if got, err := hub.Find("a/only", "main"); !errors.Is(err, hub.ErrNotCached) {
		t.Errorf("a revision that is not recorded: %s, %v", got, err)
	}
}

func TestAddress(t *testing.T) {
	for address, want := range map[string][3]string{
		"a/b":                      {"a/b", "", ""},
		"a/b@v1":                   {"a/b", "v1", ""},
		"a/b:x.safetensors":        {"a/b", "", "x.safetensors"},
		"a/b@refs/pr/1:d/x y@z:.s": {"a/b", "refs/pr/1", "d/x y@z:.s"},
		"a":                        {}, "a:x": {}, "a/b:": {}, "a/b@": {}, "a/b@:x": {}, "a/b:../x": {}, "a/b:/x": {},
		"a/b@../x": {}, "a/b/c": {}, "": {}, "a/b:x\n": {},
	} {
		repo, revision, file, ok := hub.ParseAddress(address)
		if got := [3]string{repo, revision, file}; got != want || ok != (want[0] != "") {
			t.Errorf("%q: %q, %v, expected %q", address, got, ok, want)
		}
		if ok && hub.Address(repo, revision, file) != address {
			t.Errorf("%q: put together as %q", address, hub.Address(repo, revision, file))
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("a/b@v1:x.safetensors")
	f.Fuzz(func(t *testing.T, address string) {
		repo, revision, file, ok := hub.ParseAddress(address)
		if ok && hub.Address(repo, revision, file) != address {
			t.Errorf("%q, %q, %q of %q", repo, revision, file, address)
		}
		if ok && (!filepath.IsLocal(filepath.FromSlash(file)) && file != "" || !hub.IsRepo(repo)) {
			t.Errorf("accepted %q, %q", repo, file)
		}
	})
}

func TestFindFile(t *testing.T) {
	dir := cache(t, map[string]string{
		"models--a--b/refs/main":                        "c1",
		"models--a--b/snapshots/c1/x.safetensors":       "",
		"models--a--b/snapshots/c1/sub/y.safetensors":   "",
		"models--a--b/snapshots/c2/sub/z.safetensors":   "",
		"models--a--only/snapshots/c1/z.safetensors":    "",
		"models--a--begun/refs/main":                    "c1",
		"models--a--begun/snapshots/c1/README.md":       "",
		"models--a--begun/blobs/abc.gomflux.incomplete": "",
	})
	if err := os.Symlink("../../blobs/abc", filepath.Join(dir, "models--a--begun/snapshots/c1/x.safetensors")); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"a/b:x.safetensors":        "models--a--b/snapshots/c1/x.safetensors",
		"a/b:sub/y.safetensors":    "models--a--b/snapshots/c1/sub/y.safetensors",
		"a/b@c2:sub/z.safetensors": "models--a--b/snapshots/c2/sub/z.safetensors",
		"a/only:z.safetensors":     "models--a--only/snapshots/c1/z.safetensors",
		"a/b:sub/z.safetensors":    "!(to get it: gomflux pull a/b:sub/z.safetensors)",
		"a/b@v1:x.safetensors":     "!(to get it: gomflux pull a/b@v1:x.safetensors)",
		"a/c:x.safetensors":        "!(to get it: gomflux pull a/c:x.safetensors)",
		"a/b:x.safetensors/y":      "!: no x.safetensors/y",
		"a/begun:x.safetensors":    "!: no x.safetensors",
		"a/b:sub":                  "?is not a regular file",
		"a/b:../c1/x.safetensors":  "?is not a valid name of a file",
	} {
		repo, file, _ := strings.Cut(address, ":")
		repo, revision, _ := strings.Cut(repo, "@")
		got, err := hub.FindFile(repo, revision, file)
		if kind := want[:1]; kind == "!" || kind == "?" {
			if err == nil || !strings.Contains(err.Error(), want[1:]) || errors.Is(err, hub.ErrNotCached) != (kind == "!") {
				t.Errorf("%s: %q, error %v, expected %q", address, got, err, want)
			}
		} else if err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s: %q, %v, expected %q", address, got, err, want)
		}
	}
}

func TestList(t *testing.T) {
	dir := cache(t, map[string]string{
		"models--b--whole/refs/main":                     "c1",
		"models--b--whole/snapshots/c1/model_index.json": "{}",
		"models--b--whole/blobs/abc":                     "{}",
		"models--a--begun/refs/main":                     "c9",
		"models--a--begun/blobs/def.incomplete":          "{",
		"models--a--begun/blobs/abc.01234567.incomplete": "{",
		"models--a--begun/.no_exist/c9/adapter.json":     "",
		"models--b--whole/trees/c1.json":                 "{}",
		"CACHEDIR.TAG":                                   "",
		"blobs/.huggingface-shared-blobs":                "1\n",
		"models--a--b-c/snapshots/c7/model_index.json":   "{}",
		"models--gpt2/snapshots/c7/config.json":          "{}", // from before names had owners
		"models--a--b--c/blobs/x":                        "",
		"datasets--a--b/snapshots/c1/x":                  "",
		"models----/x":                                   "",
		"models--a--..--x/x":                             "",
		"version.txt":                                    "1",
	})
	type repo struct {
		name, snapshot string
		unfinished     int
		cached         bool
	}
	want := []repo{
		{name: "a/b--c"},
		{name: "a/b-c", snapshot: "models--a--b-c/snapshots/c7", cached: true},
		{name: "a/begun", unfinished: 2},
		{name: "b/whole", snapshot: "models--b--whole/snapshots/c1", cached: true},
	}
	repos, err := hub.List()
	if err != nil {
		t.Fatal(err)
	}
	var got []repo
	for _, r := range repos {
		if r.Snapshot != "" {
			if r.Snapshot, err = filepath.Rel(dir, r.Snapshot); err != nil {
				t.Fatal(err)
			}
		}
		if r.Err != nil && !errors.Is(r.Err, hub.ErrNotCached) {
			t.Errorf("%s: error %v", r.Name, r.Err)
		}
		for _, file := range r.Unfinished {
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", r.Name, err)
			}
		}
		got = append(got, repo{r.Name, r.Snapshot, len(r.Unfinished), r.Err == nil})
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, expected %v", got, want)
	}
}

func TestListNothing(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "nowhere"))
	if repos, err := hub.List(); err != nil || len(repos) > 0 {
		t.Errorf("no cache: %v, %v", repos, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HF_HUB_CACHE", file)
	if repos, err := hub.List(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file: %v, %v", repos, err)
	}
}

func TestCache(t *testing.T) {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "/home/me")
	steps := []struct{ name, value, want string }{
		{"HOME", "/home/me", "/home/me/.cache/huggingface/hub"},
		{"XDG_CACHE_HOME", "/xdg", "/xdg/huggingface/hub"},
		{"HF_HOME", "/hf", "/hf/hub"},
		{"HF_HOME", "~/hf", "/home/me/hf/hub"},
		{"HF_HOME", "~", "/home/me/hub"},
		{"HUGGINGFACE_HUB_CACHE", "~/older", "/home/me/older"},
		{"HF_HUB_CACHE", "/hub", "/hub"},
		{"HF_HUB_CACHE", "~/hub", "/home/me/hub"},
		{"HF_HUB_CACHE", "$HOME/${XDG_CACHE_HOME}/$NOT_SET/${NOT_SET}/~", "/home/me/xdg/$NOT_SET/${NOT_SET}/~"},
	}
	for _, step := range steps {
		t.Setenv(step.name, step.value)
		if got, err := hub.Cache(); err != nil || got != step.want {
			t.Errorf("%s=%s: %s, %v, expected %s", step.name, step.value, got, err, step.want)
		}
	}
}
