package publishedtest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/publishedtest"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// refused are formats of quantized weights that are not read, with what tensors the programs that write them have
// for a layer's weight. ComfyUI's and mflux's are read.
var refused = map[string][]string{
	"SVDQuant":                        {".qweight", ".wscales", ".smooth_factor", ".proj_down", ".proj_up"},
	"bitsandbytes NF4":                {".weight", ".weight.absmax", ".weight.quant_map", ".weight.quant_state.bitsandbytes__nf4"},
	"bitsandbytes LLM.int8":           {".weight", ".SCB", ".weight_format"},
	"torchao":                         {"._weight_qdata", "._weight_scale"},
	"optimum-quanto":                  {".weight._data", ".weight._scale", ".input_scale", ".output_scale"},
	"optimum-quanto with 2 or 4 bits": {".weight._data._data", ".weight._scale", ".weight._shift"},
	"GPTQ":                            {".qweight", ".qzeros", ".g_idx", ".scales"},
}

// TestForms finds all tensors of models in every form that is read, and the reason in one that is not. Of the models
// that have the same tensors it takes the first.
func TestForms(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range models(t) {
		folder := filepath.Join(t.TempDir(), filepath.Base(m.Name))
		if err := m.Write(folder, true); err != nil {
			t.Fatal(err)
		}
		smallest(t, folder)
		x, err := index.Read(os.DirFS(folder))
		if err != nil {
			t.Fatal(err)
		}
		components, err := modeltest.Declared(os.DirFS(folder))
		if err != nil {
			t.Fatal(err)
		}
		var shapes strings.Builder
		for _, c := range components {
			tensors, err := m.Tensors(folder, c)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range tensors {
				fmt.Fprint(&shapes, c.Dir, x.Name, x.Shape)
			}
		}
		if seen[shapes.String()] {
			continue
		}
		seen[shapes.String()] = true
		if err := m.WriteWeights(folder); err != nil {
			t.Fatal(err)
		}
		for _, form := range publishedtest.WriteForms(t, folder) {
			t.Run(m.Name+"/"+form.Name, func(t *testing.T) {
				s, err := catalog.FindWith(form.Path, folder)
				if err != nil {
					t.Fatal(err)
				}
				d, err := family.Declare(&component.Folder{FS: s.FS, Points: &hooks.Points{}}, x)
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range d.Components {
					ck, err := c.Open(s.FS)
					if err != nil {
						t.Fatal(err)
					}
					if _, mismatch := c.Match(ck); mismatch != nil {
						t.Error(mismatch)
					}
					ck.Close()
				}
			})
		}
		for format, suffixes := range refused {
			for form, tensors := range map[string]map[string]*checkpoint.Array{
				"made":      modeltest.Original(t, filepath.Join(folder, component.Transformers)),
				"diffusers": modeltest.Read(t, filepath.Join(folder, component.Transformers)),
			} {
				for name, x := range tensors {
					if module, ok := strings.CutSuffix(name, ".weight"); ok && len(x.Shape) == 2 {
						delete(tensors, name)
						for _, suffix := range suffixes {
							tensors[module+suffix] = &checkpoint.Array{Dtype: checkpoint.I8, Shape: []int{1}, Data: []byte{1}}
						}
					}
				}
				path := filepath.Join(t.TempDir(), form+".safetensors")
				modeltest.Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": tensors})
				_, err := catalog.FindWith(path, folder)
				if !errors.Is(err, checkpoint.ErrUnsupported) || !strings.Contains(err.Error(), "quantization "+format) {
					t.Errorf("%s in %s: %v", m.Name, format, err)
				}
			}
		}
	}
	if len(seen) < 7 {
		t.Errorf("%d models with tensors of their own", len(seen))
	}
}

// smallest gives text encoders a small vocabulary and transformers one head, since no weights are loaded here.
func smallest(t *testing.T, folder string) {
	t.Helper()
	small := map[string]*regexp.Regexp{
		"${1}64":  regexp.MustCompile(`("vocab_size": )\d+`),
		"${1}1":   regexp.MustCompile(`("(?:num_attention_|num_key_value_|n_|n_kv_)heads": )\d+`),
		"${1}128": regexp.MustCompile(`("dim": )\d+`),
	}
	configs, err := filepath.Glob(filepath.Join(folder, "t*", component.ConfigFile))
	if err != nil || len(configs) < 2 {
		t.Fatalf("%s: configs %q (%v)", folder, configs, err)
	}
	for _, path := range configs {
		text, err := os.ReadFile(path)
		for to, from := range small {
			text = from.ReplaceAll(text, []byte(to))
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestNames: with all models in the cache, a file of a transformer with a published name belongs to its
// model. All have the published dimensions, and files of zeros that take no room.
func TestNames(t *testing.T) {
	all := models(t)
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	files := map[string]string{}
	for _, m := range all {
		repo := filepath.Join(cache, "models--"+strings.ReplaceAll(m.Name, "/", "--"))
		revision := strings.Repeat("a", 40)
		folder := filepath.Join(repo, "snapshots", revision)
		err := m.Write(folder, false)
		if err == nil {
			err = os.MkdirAll(filepath.Join(repo, "refs"), 0o777)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(repo, "refs", "main"), []byte(revision), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
		components, err := modeltest.Declared(os.DirFS(folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range components {
			list, err := m.Tensors(folder, c)
			if err != nil {
				t.Fatal(err)
			}
			shapes, tensors := map[string][]int{}, map[string]*checkpoint.Array{}
			for _, x := range list {
				shapes[x.Name] = x.Shape
				tensors[x.Name] = &checkpoint.Array{Name: x.Name, Dtype: x.Dtype, Shape: x.Shape}
			}
			name := "model.safetensors"
			if c.Class.Library == "diffusers" {
				name = "diffusion_pytorch_model.safetensors"
			}
			sparse(t, filepath.Join(folder, c.Dir, name), shapes)
			if c.Dir == component.Transformers {
				clear(shapes)
				for name, x := range modeltest.AsMade(t, c.Class, tensors) {
					shapes[name] = x.Shape
				}
				files[m.Name] = filepath.Join(t.TempDir(), "makers.safetensors")
				sparse(t, files[m.Name], shapes)
			}
		}
	}
	for _, m := range all {
		for _, name := range m.Single {
			path := filepath.Join(t.TempDir(), name+".safetensors")
			if err := os.Symlink(files[m.Name], path); err != nil {
				t.Fatal(err)
			}
			if s, err := catalog.Find(path); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if s.Base != m.Name {
				t.Errorf("%s: base model %s, expected %s", name, s.Base, m.Name)
			}
		}
	}
}
