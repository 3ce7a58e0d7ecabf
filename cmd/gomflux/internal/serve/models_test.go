package serve

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/engine"
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

// TestGivenModels: clients see a name instead of a path, and can use both.
func TestGivenModels(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	folder := modeltest.Folder(t, "zimage-ordinary")
	dir := t.TempDir()
	var paths []string
	for _, name := range []string{"a/mine", "b/mine", "b/shapes"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(folder, path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	o := &serveOptions{models: append(paths, "shapes", paths[0])}
	m, err := newServedModels(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.log = slog.New(slog.DiscardHandler)
	want := []engine.ModelInfo{
		{Name: "mine", Path: paths[0], Default: true}, {Name: "mine-2", Path: paths[1]},
		{Name: "shapes-2", Path: paths[2]}, {Name: "shapes"},
	}
	list := m.list()
	if len(list) < len(want) {
		t.Fatalf("models %+v", list)
	}
	for i, w := range want {
		got := list[i]
		if got.Name != w.Name || got.Path != w.Path || got.Default != w.Default || got.Missing != "" || got.SizeMultiple == 0 {
			t.Errorf("model %d: %+v, expected %+v", i, got, w)
		}
		if !got.Is(w.Name) || w.Path != "" && !got.Is(w.Path) || got.Is("") {
			t.Errorf("%s is not known by its names", w.Name)
		}
	}
	model, err := m.open(t.Context(), "mine-2", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	model.Close()
	_, err = m.open(t.Context(), "mine", []gomflux.LoRA{{Path: "ink"}}, nil)
	if !errors.Is(err, gomflux.ErrNotFound) || strings.Contains(err.Error(), "safetensors") {
		t.Errorf("a missing LoRA: %v", err)
	}
}

// TestGivenLanguageModel: a folder with nothing but a language model is a model for texts, and is not the default one.
func TestGivenLanguageModel(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	folder, model := t.TempDir(), modeltest.Folder(t, "zimage-small")
	for _, part := range []string{"text_encoder", "tokenizer"} {
		if err := os.CopyFS(folder, os.DirFS(filepath.Join(model, part))); err != nil {
			t.Fatal(err)
		}
	}
	o := &serveOptions{models: []string{folder, model}, WeightFlags: cli.NewWeightFlags(), lowRAM: true}
	m, err := newServedModels(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.log = slog.New(slog.DiscardHandler)
	list := m.list()
	if l := list[1]; !list[0].Default || list[0].OnlyWrites || !l.OnlyWrites || !l.Writes || l.Sees || l.Path != folder || l.Missing == "" {
		t.Fatalf("models %+v", list[:2])
	}
	room := 0
	l, err := m.openLanguage(t.Context(), list[1].Name, &gomflux.LanguageOptions{MakeRoom: func() { room++ }})
	if err != nil || room != 1 { // nothing is next to it with --low-ram
		t.Fatalf("room was made %d times, %v", room, err)
	}
	defer l.Close()
	e, err := l.Enhance(t.Context(), list[0].Name, "a hat", nil, &gomflux.LanguageOptions{MaxTokens: 3})
	if err != nil || e.Tokens != 3 {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestWithoutPaths: a client reads the name of a LoRA that does not fit, and not where it is.
func TestWithoutPaths(t *testing.T) {
	library := t.TempDir()
	t.Setenv("LORA_LIBRARY_PATH", library)
	data, err := os.ReadFile("../../../../models/lora/testdata/flux-kohya.safetensors")
	if err == nil {
		err = os.WriteFile(filepath.Join(library, "ink.safetensors"), data, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &servedModels{options: &serveOptions{}, defaultModel: "shapes", log: slog.New(slog.DiscardHandler)}
	_, err = m.open(t.Context(), "shapes", []gomflux.LoRA{{Path: "ink"}}, nil)
	if lora, ok := errors.AsType[*gomflux.LoRAError](err); !ok || strings.Contains(err.Error(), library) ||
		!strings.HasPrefix(err.Error(), "LoRA ink: ") {
		t.Errorf("%v, %v", err, lora)
	}
}
