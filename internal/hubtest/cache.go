package hubtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Cache copies a model folder to a Hugging Face cache as the snapshot of a repository, and returns the
// copy.
func Cache(t testing.TB, cache, repo, model string) (folder string) {
	t.Helper()
	commit := strings.Repeat("0123", 10)
	root := filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"))
	folder = filepath.Join(root, "snapshots", commit)
	err := os.CopyFS(folder, os.DirFS(model))
	for _, name := range []string{"refs", "blobs"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(root, name), 0o777)
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "refs/main"), []byte(commit), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
