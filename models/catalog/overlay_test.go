package catalog

import (
	"errors"
	"io/fs"
	"maps"
	"testing"
	"testing/fstest"
)

// TestOverlay reads a folder put together of two.
func TestOverlay(t *testing.T) {
	under := fstest.MapFS{"model_index.json": {Data: []byte("{}")}, "vae/config.json": {Data: []byte("1")},
		"transformer/config.json": {Data: []byte("2")}, "transformer/a.bin": {}}
	from := fstest.MapFS{"x/weights": {Data: []byte("three")}}
	o := &overlay{name: "here", lower: under, hidden: map[string]bool{"transformer": true}, files: map[string]overlayFile{
		"transformer/config.json": {text: []byte("four")},
		"transformer/weights":     {fsys: from, path: "x/weights"},
	}}
	if err := fstest.TestFS(o, "model_index.json", "vae/config.json", "transformer/config.json", "transformer/weights"); err != nil {
		t.Error(err)
	}
	got := map[string]string{}
	fs.WalkDir(o, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data, _ := fs.ReadFile(o, name)
			got[name] = string(data)
		}
		return err
	})
	want := map[string]string{"model_index.json": "{}", "vae/config.json": "1", "transformer/config.json": "four",
		"transformer/weights": "three"}
	if !maps.Equal(got, want) {
		t.Errorf("found %v, expected %v", got, want)
	}
	if _, err := fs.Stat(o, "transformer/a.bin"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a hidden file: %v", err)
	}
}
