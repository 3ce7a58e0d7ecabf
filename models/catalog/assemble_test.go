package catalog

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/textenc/tokenizer"
)

// testModel is the folder of a tiny model.
func testModel(name string) string { return filepath.Join("..", "testdata", name, "model") }

// declare reads the configs of a source.
func declare(t *testing.T, s *Source) (*family.Declared, error) {
	t.Helper()
	x, err := s.Index()
	if err != nil {
		t.Fatal(err)
	}
	if missing := x.Missing(s.FS, true); len(missing) > 0 {
		t.Errorf("missing: %q", missing)
	}
	return family.Declare(&component.Folder{FS: s.FS}, x)
}

// checkWhole finds all tensors that a source's configs ask for, and no others.
func checkWhole(t *testing.T, s *Source) {
	t.Helper()
	d, err := declare(t, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Components {
		ck, err := c.Open(s.FS)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, mismatch := c.Match(ck); mismatch != nil {
			t.Error(mismatch)
		}
		if name := checkpoint.FullName(s.FS, c.Dir+"/config.json"); ck.Inferred != strings.Contains(name, "inferred") {
			t.Errorf("%s: inferred is %v", name, ck.Inferred)
		}
		ck.Close()
	}
}

// TestFile completes single files, with one component and with all of them.
func TestFile(t *testing.T) {
	for _, model := range modeltest.Singles() {
		t.Run(model.Name, func(t *testing.T) {
			base := testModel(model.Name)
			bare, comfy, all := modeltest.SingleFiles(t, base)
			for _, path := range []string{bare, comfy, all} {
				s, err := FindWith(path, base)
				if err != nil {
					t.Fatal(err)
				}
				if s.Name != path || s.Folder != path || s.Base != base || s.Err != nil {
					t.Errorf("%s: found %+v", path, s)
				}
				checkWhole(t, s)
			}
		})
	}
}

// TestQwen3VLWithoutVision completes folders and files whose text encoder has ComfyUI's names of a
// Qwen3-VL without its vision encoder, which are those of a Qwen3. The base model tells them apart.
func TestQwen3VLWithoutVision(t *testing.T) {
	for _, model := range []string{"krea-2", "qwen-image-21"} {
		t.Run(model, func(t *testing.T) {
			base := testModel(model)
			transformer, encoder := modeltest.Original(t, base+"/transformer"), map[string]*checkpoint.Array{}
			for name, x := range modeltest.Read(t, base+"/text_encoder") {
				if _, name, ok := strings.Cut("."+name, ".language_model."); ok {
					encoder["model."+name] = x
				}
			}
			dir := t.TempDir()
			for name, list := range map[string]map[string]*checkpoint.Array{"transformer": transformer, "text_encoder": encoder} {
				if err := os.MkdirAll(filepath.Join(dir, "folder", name), 0o777); err != nil {
					t.Fatal(err)
				}
				modeltest.Write(t, filepath.Join(dir, "folder", name, "model.safetensors"), nil,
					map[string]map[string]*checkpoint.Array{"": list})
			}
			paths := []string{filepath.Join(dir, "folder")}
			for _, prefix := range []string{"text_encoders.qwen3vl_4b.transformer.", "text_encoder."} {
				paths = append(paths, filepath.Join(dir, prefix+"safetensors"))
				modeltest.Write(t, paths[len(paths)-1], nil,
					map[string]map[string]*checkpoint.Array{"model.diffusion_model.": transformer, prefix: encoder})
			}
			for _, path := range paths {
				s, err := FindWith(path, base)
				if err != nil {
					t.Fatal(err)
				}
				checkWhole(t, s)
				ck, err := checkpoint.OpenCheckpoint(s.FS, "text_encoder")
				if err != nil {
					t.Fatal(err)
				}
				if len(ck.Tensors) == 0 || strings.HasPrefix(ck.Dir, base) {
					t.Errorf("%s: the text encoder is read from %s", path, ck.Dir)
				}
				ck.Close()
			}
			if _, err := FindWith(paths[0], testModel("qwen-image-ordinary")); err == nil ||
				!strings.Contains(err.Error(), "(choose another with --base-model)") {
				t.Errorf("with another base model: error %v", err)
			}
		})
	}
}

// TestTekken completes a folder of FLUX.2-dev whose text encoder has the tokenizer as a tensor, as ComfyUI's have: it needs no
// other model for it.
func TestTekken(t *testing.T) {
	text, err := os.ReadFile("../../textenc/tokenizer/testdata/tekken-3/tekken.json")
	if err != nil {
		t.Fatal(err)
	}
	array, err := checkpoint.NewArray("tekken_model", checkpoint.U8, []int{len(text)}, text)
	if err != nil {
		t.Fatal(err)
	}
	base := testModel("flux2-dev")
	folder := t.TempDir()
	encoder := filepath.Join(folder, "text_encoder", "model.safetensors")
	for _, name := range []string{"transformer", "text_encoder", "vae"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if name != "text_encoder" {
			modeltest.Write(t, filepath.Join(folder, name, "model.safetensors"), nil,
				map[string]map[string]*checkpoint.Array{"": modeltest.Read(t, base+"/"+name)})
		}
	}
	c := textenc.DefaultMistral3Config() // with heads as large as those of published models, which are assumed
	c.Text.HiddenSize, c.Text.IntermediateSize, c.Text.NumHiddenLayers = 20, 36, 5
	c.Text.NumAttentionHeads, c.Text.NumKeyValueHeads, c.Text.VocabSize = 2, 1, 480
	modeltest.WriteRandom(t, encoder, textenc.NewMistral3(c, []int{1, 2, 5}, mlx.Float32), rand.New(rand.NewPCG(1, 2)))
	modeltest.Edit(t, encoder, func(all map[string]*checkpoint.Array) {
		for _, name := range slices.Collect(maps.Keys(all)) {
			all["model."+strings.TrimPrefix(name, "language_model.")] = all[name]
			delete(all, name)
		}
		all["tekken_model"] = array
	})
	preset, _ := presetByName("flux2-dev")
	parts, err := componentsOfFolder(os.DirFS(folder))
	if err != nil || !isComplete(parts, &preset) {
		t.Errorf("the folder has %s, and needs others (%v)", describe(parts), err)
	}
	s, err := FindWith(folder, base)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := fs.ReadFile(s.FS, "tokenizer/tekken.json"); string(got) != string(text) || err != nil {
		t.Errorf("found %d bytes, %v, expected %d", len(got), err, len(text))
	}
	checkWhole(t, s)
	if err := tokenizer.Check(s.FS, "tokenizer"); err != nil {
		t.Error(err)
	}
	if parts, err = componentsOfFile(os.DirFS(filepath.Dir(encoder)), "model.safetensors"); err != nil || parts[tekkenFolder] == nil {
		t.Errorf("the file alone has %v, %v", parts, err)
	}
	if err := os.CopyFS(filepath.Join(folder, "tokenizer"), os.DirFS(base+"/tokenizer")); err != nil {
		t.Fatal(err)
	}
	if parts, err = componentsOfFolder(os.DirFS(folder)); err != nil || len(parts[tekkenFolder].files) < 2 {
		t.Errorf("the folder's own tokenizer is not used (%v)", err)
	}
}

// TestTransformerFolder completes a transformer's own folder, with and without a
// config, alone and in another.
func TestTransformerFolder(t *testing.T) {
	base := testModel("flux1-dev-small")
	for _, test := range []struct {
		name   string
		config bool
	}{{".", true}, {".", false}, {"transformer", true}, {"transformer", false}} {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, test.name), os.DirFS(base+"/transformer")); err != nil {
			t.Fatal(err)
		}
		if !test.config {
			if err := os.Remove(filepath.Join(dir, test.name, "config.json")); err != nil {
				t.Fatal(err)
			}
		}
		s, err := FindWith(dir, base)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, s)
	}
}

// TestMFluxFolder completes folders as mflux saves them.
func TestMFluxFolder(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	for model, test := range map[string]struct{ name, class string }{
		"flux1-dev-small": {"dev", "FluxPipeline"},
		"flux2-klein":     {"flux2-klein-4b", "Flux2KleinPipeline"},
		"zimage-ordinary": {"z-image-turbo", "ZImagePipeline"},
		"anima":           {"anima", "AnimaModularPipeline"},
		"flux3-klein":     {"flux3-klein", "Flux3DistilledModularPipeline"},
	} {
		t.Run(model, func(t *testing.T) {
			base := testModel(model)
			dir := modeltest.MFluxFolder(t, base)
			s, err := FindWith(dir, base)
			if err != nil {
				t.Fatal(err)
			}
			checkWhole(t, s)

			// the file of mflux names the published model; the only error is that this one is small
			saved := `{"model_name": "` + test.name + `", "base_model": null, "upstream": null}`
			if err := os.WriteFile(filepath.Join(dir, "mflux_model.json"), []byte(saved), 0o666); err != nil {
				t.Fatal(err)
			}
			if s, err = Find(dir); err != nil {
				t.Fatal(err)
			}
			preset, _ := FindPreset(test.name)
			if s.Base != preset.Name || *s.Defaults != preset.Defaults || s.Origin() != preset.Repo {
				t.Errorf("found %+v, expected %s", s, preset.Name)
			}
			if x, err := s.Index(); x.Class != test.class || err != nil {
				t.Errorf("class %q, %v", x.Class, err)
			}
			if _, err = declare(t, s); !errors.Is(err, errs.ErrUnsupported) {
				t.Fatal(err)
			}
			mlxtest.Contains(t, err.Error(), dir,
				"/config.json, inferred from the shapes of its tensors and published values of "+preset.Name)
		})
	}
}

// TestWritePublished writes and reads the published configs of all presets.
func TestWritePublished(t *testing.T) {
	for _, preset := range Presets {
		o := &overlay{name: preset.Name, files: map[string]overlayFile{}}
		written, err := o.writePublished(&preset, nil)
		if err != nil {
			t.Fatal(err)
		}
		x, err := index.Read(o)
		if err != nil || !reflect.DeepEqual(x, written) || x.Class != preset.Class {
			t.Errorf("%s: %+v, %v, expected %+v", preset.Name, x, err, written)
		}
		want := map[string]map[string]any{index.File: preset.Index}
		for _, m := range family.Find(preset.Class).Components {
			if x.Components[m.Folder] != m.ClassName() {
				t.Errorf("%s: %s is a %s, expected a %s", preset.Name, m.Folder, x.Components[m.Folder], m.ClassName())
			}
			switch m.Class.Role {
			case component.Scheduler:
				want[m.Folder+"/scheduler_config.json"] = preset.Scheduler
			case component.Processor:
				want[m.Folder+"/preprocessor_config.json"] = preset.Processor
			}
		}
		if len(o.files) != len(want) {
			t.Errorf("%s: %d files, expected %d", preset.Name, len(o.files), len(want))
		}
		for name, values := range want {
			var got map[string]any
			if err := checkpoint.ReadJSON(o, name, &got); err != nil {
				t.Error(err)
			}
			for key, value := range values {
				if a, b := asJSON(t, got[key]), asJSON(t, value); a != b {
					t.Errorf("%s: %s: %s is %s, expected %s", preset.Name, name, key, a, b)
				}
			}
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
