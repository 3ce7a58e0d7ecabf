package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
)

const (
	turbo   = "Tongyi-MAI/Z-Image-Turbo"
	schnell = "black-forest-labs/FLUX.1-schnell"
	klein   = "black-forest-labs/FLUX.2-klein-4B"
)

func TestFind(t *testing.T) {
	files := fstest.MapFS{"model_index.json": {Data: []byte(`{"_class_name": "embedded"}`)}}
	builtin := Builtin{FS: files, Defaults: family.Defaults{Steps: 9}, About: "a test"}
	Register("built-in", builtin)
	t.Cleanup(func() { delete(builtins, "built-in") })

	cache, home, here := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("HOME", home)
	t.Chdir(here)
	for _, dir := range []string{
		cache + "/models--Tongyi-MAI--Z-Image-Turbo/snapshots/c1",
		cache + "/models--Tongyi-MAI--Z-Image-Turbo/snapshots/c2",
		cache + "/models--someone--mine/snapshots/c3",
		cache + "/models--someone--Z-Image/snapshots/c4",
		cache + "/models--someone--several/snapshots/c5",
		cache + "/models--someone--several/snapshots/c6",
		cache + "/models--here--both/snapshots/c7",
		home + "/tuned",
		here + "/mine",
		here + "/built-in",
		here + "/here/both",
		here + "/elsewhere/z-image-turbo",
		here + "/schnell",
		here + "/at@main",
		cache + "/models--black-forest-labs--FLUX.1-schnell/snapshots/c8",
		cache + "/models--black-forest-labs--FLUX.2-klein-4B/snapshots/c9",
	} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/model_index.json", []byte(`{"_class_name": "`+filepath.Base(dir)+`"}`), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		cache + "/models--Tongyi-MAI--Z-Image-Turbo/refs/main": "c2",
		here + "/file": "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	snapshot := func(repo, commit string) string {
		return filepath.Join(cache, "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", commit)
	}
	found := []struct {
		name string
		want Source
		// the steps of its defaults; 0 is those of its class
		steps int
		class string
	}{
		{"mine", Source{Name: "mine", Folder: "mine"}, 0, "mine"},
		{here + "/mine", Source{Name: here + "/mine", Folder: here + "/mine"}, 0, "mine"},
		{"~/tuned", Source{Name: "~/tuned", Folder: home + "/tuned"}, 0, "tuned"},
		{"here/both", Source{Name: "here/both", Folder: "here/both"}, 0, "both"}, // as a repository of that name
		{"elsewhere/z-image-turbo", Source{Name: "elsewhere/z-image-turbo", Folder: "elsewhere/z-image-turbo"}, 8, "z-image-turbo"},
		{"z-image-turbo", Source{Name: turbo, Folder: snapshot(turbo, "c2"), Revision: "c2"}, 8, "c2"},
		{"Z-Image-Turbo", Source{Name: turbo, Folder: snapshot(turbo, "c2"), Revision: "c2"}, 8, "c2"},
		{turbo, Source{Name: turbo, Folder: snapshot(turbo, "c2"), Revision: "c2"}, 8, "c2"},
		{"tongyi-mai/z-image-turbo", Source{Name: turbo, Folder: snapshot(turbo, "c2"), Revision: "c2"}, 8, "c2"},
		{"schnell", Source{Name: "schnell", Folder: "schnell"}, 0, "schnell"}, // before the alias
		{"flux-schnell", Source{Name: schnell, Folder: snapshot(schnell, "c8"), Revision: "c8"}, 4, "c8"},
		{"flux1-schnell", Source{Name: schnell, Folder: snapshot(schnell, "c8"), Revision: "c8"}, 4, "c8"},
		{"FLUX2-klein", Source{Name: klein, Folder: snapshot(klein, "c9"), Revision: "c9"}, 4, "c9"},
		{"someone/mine", Source{Name: "someone/mine", Folder: snapshot("someone/mine", "c3"), Revision: "c3"}, 0, "c3"},
		{"someone/Z-Image", Source{Name: "someone/Z-Image", Folder: snapshot("someone/Z-Image", "c4"), Revision: "c4"}, 50, "c4"},
		{turbo + "@c1", Source{Name: turbo, Folder: snapshot(turbo, "c1"), Revision: "c1"}, 8, "c1"},
		{"z-image-turbo@main", Source{Name: turbo, Folder: snapshot(turbo, "c2"), Revision: "c2"}, 8, "c2"},
		{"ZIMAGE-turbo@c1", Source{Name: turbo, Folder: snapshot(turbo, "c1"), Revision: "c1"}, 8, "c1"},
		{"someone/Z-Image@c4", Source{Name: "someone/Z-Image", Folder: snapshot("someone/Z-Image", "c4"), Revision: "c4"}, 50, "c4"},
		{"at@main", Source{Name: "at@main", Folder: "at@main"}, 0, "at@main"}, // a folder of that name
		{"built-in", Source{Name: "built-in"}, 9, "embedded"},                 // before the folder of that name
		{"./built-in", Source{Name: "./built-in", Folder: "./built-in"}, 0, "built-in"},
	}
	for _, test := range found {
		s, err := Find(test.name)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if s.Name != test.want.Name || s.Folder != test.want.Folder || s.Revision != test.want.Revision {
			t.Errorf("%s: found %q in %q, revision %q, expected %+v", test.name, s.Name, s.Folder, s.Revision, test.want)
		}
		if (s.Defaults != nil) != (test.steps != 0) || s.Defaults != nil && s.Defaults.Steps != test.steps {
			t.Errorf("%s: defaults %+v, expected %d steps", test.name, s.Defaults, test.steps)
		}
		if x, err := s.Index(); x.Class != test.class || err != nil {
			t.Errorf("%s: class %q, %v, expected %q", test.name, x.Class, err, test.class)
		}
	}

	missing := []struct {
		name string
		want []string
		here bool // something is on this machine
	}{
		{"", []string{"name is empty"}, false},
		{"nothing", []string{"no model nothing", "or one of built-in", "z-image-turbo"}, false},
		{"./nothing", []string{"no model ./nothing"}, false},
		{"~/nothing", []string{"no model ~/nothing"}, false},
		{"someone/nothing", []string{"no folder someone/nothing", "gomflux pull someone/nothing", cache}, false},
		{"z-image", []string{"Tongyi-MAI/Z-Image: not in the Hugging Face cache", "gomflux pull Tongyi-MAI/Z-Image)"}, false},
		{"tongyi-mai/z-image", []string{"no folder tongyi-mai/z-image", "gomflux pull Tongyi-MAI/Z-Image)"}, false},
		{"dev", []string{
			"black-forest-labs/FLUX.1-dev: not in the Hugging Face cache", "gomflux pull black-forest-labs/FLUX.1-dev)",
			"it is gated: accept its conditions at https://huggingface.co/black-forest-labs/FLUX.1-dev, " +
				"and set HF_TOKEN to a token of yours",
		}, false},
		{"black-forest-labs/FLUX.2-klein-9B", []string{"no folder black-forest-labs/FLUX.2-klein-9B, and ", "it is gated: "}, false},
		{turbo + "@nope", []string{"no folder " + turbo + "@nope, and ",
			"at revision nope (to get it: gomflux pull " + turbo + "@nope)"}, false},
		{"z-image-turbo@../c1", []string{"no model z-image-turbo@../c1: "}, false},
		{"built-in@main", []string{"no model built-in@main: "}, false},
		{"someone/several", []string{"2 snapshots in ", "(choose one with someone/several@COMMIT)"}, true},
		{"file", []string{"file: expected a folder, found a file"}, true},
	}
	for _, test := range missing {
		s, err := Find(test.name)
		if err == nil {
			t.Errorf("%q: found %+v", test.name, s)
			continue
		}
		mlxtest.Contains(t, err.Error(), test.want...)
		if errors.Is(err, errs.ErrNotFound) == test.here {
			t.Errorf("%q: error %v, not found: %v", test.name, err, !test.here)
		}
	}
	for _, name := range []string{"z-image", "zimage", "flux2-base-4b", "someone/FLUX.1-dev"} {
		_, err := Find(name)
		if strings.Contains(err.Error(), "no folder") == !strings.Contains(name, "/") {
			t.Errorf("a short name is called a folder, or a repository is not: %v", err)
		}
		if strings.Contains(err.Error(), "gated") {
			t.Errorf("a model is called gated that is not: %v", err)
		}
	}

	if names := Names(); len(names) != 1+len(Presets) || !slices.Equal(names[:4],
		[]string{"built-in", "z-image-turbo", "z-image", "flux1-schnell"}) {
		t.Errorf("names %q", names)
	}
	all := Builtins()
	if all["built-in"].About != "a test" {
		t.Errorf("built-in models %v", all)
	}
	clear(all)
	if len(Builtins()) != 1 {
		t.Error("Builtins gave the list itself away")
	}
	defer func() {
		if recover() == nil {
			t.Error("a name was registered twice")
		}
	}()
	Register("built-in", builtin)
}

// TestNoIndex has folders that are no models, and were not tried to be made one.
func TestNoIndex(t *testing.T) {
	dir := t.TempDir()
	s, err := Find(dir)
	if err != nil || s.Err != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	const noIndex = ": has no model_index.json (gomflux reads the layout of Hugging Face diffusers)"
	if _, err := s.Index(); err == nil || err.Error() != "model folder "+dir+noIndex {
		t.Errorf("error %v", err)
	}
	_, err = FindWith(dir, "z-image")
	want := "--base-model z-image: does not apply to " + dir + ", which has neither a transformer nor a model_index.json"
	if err == nil || err.Error() != want || !errors.Is(err, errs.ErrRequest) {
		t.Errorf("error %v, expected %s", err, want)
	}
}
