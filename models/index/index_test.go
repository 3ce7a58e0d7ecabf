package index

import (
	"io/fs"
	"maps"
	"testing"
	"testing/fstest"
)

// TestModular reads indexes of modular pipelines, whose components may be in folders of other names or repositories.
func TestModular(t *testing.T) {
	fsys := fstest.MapFS{
		ModularFile: {Data: []byte(`{"_class_name": "Flux3ModularPipeline", "is_distilled": true,
			"transformer": ["diffusers", "T", {"pretrained_model_name_or_path": "a/b", "subfolder": "transformer"}],
			"vae": [null, null, {"pretrained_model_name_or_path": "c/d", "subfolder": "vae", "type_hint": ["diffusers", "V"]}],
			"tokenizer": [null, null, {"pretrained_model_name_or_path": "a/b", "subfolder": "text_encoder",
				"type_hint": ["transformers", "P"]}],
			"text_encoder": ["transformers", "E"], "guider": [null, null], "none": [null, null, null]}`)},
		"transformer/config.json":     {},
		"text_encoder/tokenizer.json": {},
	}
	x, err := Read(fsys)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want map[string]string
	}{
		{"Components", x.Components, map[string]string{"transformer": "T", "tokenizer": "P", "text_encoder": "E"}},
		{"Elsewhere", x.Elsewhere, map[string]string{"vae": "c/d"}},
		{"Subfolders", x.Subfolders, map[string]string{"tokenizer": "text_encoder"}},
	} {
		if !maps.Equal(c.got, c.want) {
			t.Errorf("%s: got %v, expected %v", c.what, c.got, c.want)
		}
	}
	if x.Class != "Flux3ModularPipeline" || Name(fsys) != ModularFile || !Exists(fsys) {
		t.Errorf("class %s, file %s", x.Class, Name(fsys))
	}
	fsys[File] = &fstest.MapFile{Data: []byte(`{"_class_name": "FluxPipeline"}`)}
	if x, err := Read(fsys); err != nil || x.Class != "FluxPipeline" {
		t.Errorf("%s does not come first: %v, %v", File, x, err)
	}
	if Exists(fstest.MapFS{"config.json": {Mode: fs.ModePerm}}) {
		t.Error("a folder without an index has one")
	}
	fsys = fstest.MapFS{ModularFile: {Data: []byte(`{"../a": ["b", "C", {}]}`)}}
	if _, err := Read(fsys); err == nil {
		t.Error("a name with a period is accepted as a folder")
	}
}
