package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzCachePaths checks that valid repositories, revisions and files have paths
// inside the cache.
func FuzzCachePaths(f *testing.F) {
	for _, s := range []string{
		"me/mine", "me/mine@main", "me/mine@refs/pr/1:a/b.safetensors", "me/..", "../me", "me/mine@../../x", "me/mine@/etc",
		"me/mine:../x", "a--b/c--d", "me/mine@v1.0+a",
		"me/mine@a\x00b", "me/mine@.", "me/mine:a\\b",
	} {
		f.Add(s)
	}
	const cache = "/c/hub"
	below := func(t *testing.T, dir, path string) {
		if rest, err := filepath.Rel(dir, path); err != nil || rest == "." || !filepath.IsLocal(rest) {
			t.Errorf("%q is not in %s", path, dir)
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		repo, revision, file, ok := ParseAddress(s)
		if !ok {
			return
		}
		dir := filepath.Join(cache, folderName(repo))
		if filepath.Dir(dir) != cache {
			t.Errorf("%q is not in %s", dir, cache)
		}
		if revision != "" {
			below(t, filepath.Join(dir, "refs"), filepath.Join(dir, "refs", filepath.FromSlash(revision)))
		}
		if file != "" {
			below(t, filepath.Join(dir, "snapshots", "c0ffee"), filepath.Join(dir, "snapshots", "c0ffee", filepath.FromSlash(file)))
		}
		if strings.ContainsAny(s, "\x00\\\x1b") {
			t.Errorf("%q is taken", s)
		}
	})
}

// FuzzComponents checks that the folders of a model_index.json are inside the
// snapshot.
func FuzzComponents(f *testing.F) {
	f.Add([]byte(`{"_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"], "image_encoder": [null, null]}`))
	f.Add([]byte(`{"../vae": ["diffusers", "AutoencoderKL"]}`))
	f.Add([]byte(`{".": ["a", "b"], "": ["a", "b"], "a\u0000": ["a", "b"], "a\\b": ["a", "b"]}`))
	f.Fuzz(func(t *testing.T, index []byte) {
		names, err := components(index)
		if err == nil && len(names) == 0 {
			t.Error("no components and no error")
		}
		for _, name := range names {
			if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." || strings.ContainsAny(name, "\x00\\\x1b") {
				t.Errorf("component %q", name)
			}
		}
	})
}

// FuzzRef checks that any contents of a file of refs/ lead to a snapshot of the
// repository or to an error.
func FuzzRef(f *testing.F) {
	for _, s := range []string{aCommit, aCommit + "\n", "", "..", ".", "/", "../../../etc", "a/b", "a\x00b", "c0ffee"} {
		f.Add([]byte(s))
	}
	cache := f.TempDir()
	dir := filepath.Join(cache, "models--me--mine")
	for _, name := range []string{"refs", "snapshots/c0ffee", "snapshots/" + aCommit} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o777); err != nil {
			f.Fatal(err)
		}
	}
	f.Setenv("HF_HUB_CACHE", cache)
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, "refs", "main"), text, 0o666); err != nil {
			t.Fatal(err)
		}
		folder, err := Find("me/mine", "")
		if err == nil && filepath.Dir(folder) != filepath.Join(dir, "snapshots") {
			t.Errorf("found %q", folder)
		}
		if err != nil && folder != "" {
			t.Errorf("%q and %v", folder, err)
		}
	})
}
