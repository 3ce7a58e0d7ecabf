package serve

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/family"
)

// TestOneBug: a model that meets a bug while it is inspected does not hide the others.
func TestOneBug(t *testing.T) {
	bug := &family.Family{Pipelines: []*family.Class{{
		Name: "BuggyPipeline", Configure: func(*family.Configs) (family.Pipeline, family.Networks) { panic("a bug") },
	}}}
	family.All = append(family.All, bug)
	defer func() { family.All = family.All[:len(family.All)-1] }()
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	folder := modeltest.Folder(t, "zimage-ordinary")
	hubtest.Cache(t, cache, "someone/sound", folder)
	text, err := os.ReadFile(filepath.Join(folder, "model_index.json"))
	if err != nil {
		t.Fatal(err)
	}
	buggy := filepath.Join(hubtest.Cache(t, cache, "someone/buggy", folder), "model_index.json")
	if err := os.WriteFile(buggy, bytes.Replace(text, []byte("ZImagePipeline"), []byte("BuggyPipeline"), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m := &servedModels{options: &serveOptions{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	found := map[string]string{}
	for _, info := range m.list() {
		found[info.Name] = info.Missing
	}
	const missing = "not supported: gomflux: internal error: a bug (this is a bug: please report it"
	if reason, ok := found["someone/sound"]; !ok || reason != "" || !strings.HasPrefix(found["someone/buggy"], missing) {
		t.Errorf("models %q", found)
	}
	if !strings.Contains(log.String(), "model=someone/buggy") || !strings.Contains(log.String(), "models_test.go") {
		t.Errorf("log: %s", log.String())
	}
}
