package publishedtest_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/textenc"
)

// TestBuiltinConfigs compares the configs that gomflux has of the published models, for benchmarks and
// memory estimates, with the published ones: every field that it reads, after defaults.
func TestBuiltinConfigs(t *testing.T) {
	compared := 0
	for _, m := range models(t) {
		preset, ok := catalog.FindPreset(m.Name)
		if !ok {
			continue // a copy
		}
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		fsys, err := checkpoint.OpenFolder(folder)
		if err != nil {
			t.Fatal(err)
		}
		builtin, err := catalog.FindConfigs(preset.Name)
		if err != nil {
			t.Fatal(err)
		}
		published, own := fieldsOf(t, &component.Folder{FS: fsys}), fieldsOf(t, &component.Folder{FS: builtin.FS})
		for _, name := range slices.Sorted(maps.Keys(published)) {
			if published[name] != own[name] {
				t.Errorf("%s: %s is %s, built in is %s", m.Name, name, published[name], own[name])
			}
			compared++
		}
		for name := range own {
			if _, ok := published[name]; !ok {
				t.Errorf("%s: %s is %s, and published configs have no such field", m.Name, name, own[name])
			}
		}
	}
	t.Log(compared, "fields were compared")
}

// fieldsOf returns the fields of the configs in a folder, as JSON.
func fieldsOf(t *testing.T, f *component.Folder) map[string]string {
	t.Helper()
	x, err := index.Read(f.FS)
	if err != nil {
		t.Fatal(err)
	}
	f.Points = &hooks.Points{}
	d, err := family.Declare(f, x)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	flatten(t, fields, "scheduler", d.Scheduler)
	for _, c := range d.Components {
		flatten(t, fields, c.Dir, reflect.ValueOf(c.Model).Elem().FieldByName("Config").Interface())
	}
	for dir, class := range x.Components {
		if c := component.Find(class); c != nil && c.Role == component.Processor {
			processor, err := textenc.LoadQwen2VLImageProcessor(f.FS, dir)
			if err != nil {
				t.Fatal(err)
			}
			flatten(t, fields, dir, processor)
		}
	}
	var options map[string]any
	if err := checkpoint.ReadJSON(f.FS, index.Name(f.FS), &options); err != nil {
		t.Fatal(err)
	}
	delete(options, "_diffusers_version")
	delete(options, "_blocks_class_name")
	for name, value := range options {
		if member, ok := value.([]any); ok && len(member) > 1 { // one of a modular pipeline says where it comes from too
			class, _ := member[1].(string)
			options[name] = []any{member[0], strings.TrimSuffix(class, "Fast")} // a tokenizer has either name
		}
	}
	flatten(t, fields, index.File, options)
	return fields
}

// flatten adds a value's fields, those of objects in objects too.
func flatten(t *testing.T, fields map[string]string, name string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".layer_types") || string(text) == "[]" { // no other layers are supported
		text = []byte("null")
	}
	var object map[string]any
	if json.Unmarshal(text, &object) != nil || object == nil {
		fields[name] = string(text)
		return
	}
	for key, value := range object {
		flatten(t, fields, name+"."+key, value)
	}
}
