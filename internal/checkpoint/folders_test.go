package checkpoint_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

func TestWeightFolders(t *testing.T) {
	for files, want := range map[string][]string{
		"":                                 nil,
		"model_index.json vae/config.json": nil,
		"b/x.safetensors a/model.safetensors.index.json c/x.bin": {"a", "b"},
		"x.safetensors a/config.json":                            {"."},
		"x.safetensors a/x.safetensors":                          {"a"}, // those of the folders in it come first
		"a/deep/x.safetensors":                                   nil,
		"[a]/x.safetensors":                                      nil, // no name of a component
	} {
		fsys := fstest.MapFS{}
		for name := range strings.FieldsSeq(files) {
			fsys[name] = &fstest.MapFile{}
		}
		if dirs, err := checkpoint.WeightFolders(fsys); err != nil || !slices.Equal(dirs, want) {
			t.Errorf("%s: found %q, %v, expected %q", files, dirs, err, want)
		}
	}
	fsys, err := fs.Sub(fstest.MapFS{}, "none")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.WeightFolders(checkpoint.Folder{FS: fsys, Name: "gone"}); err == nil ||
		!strings.HasPrefix(err.Error(), "model folder gone: ") {
		t.Errorf("a folder that is not there: error %v", err)
	}
}
