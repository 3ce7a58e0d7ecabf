package publishedtest_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/publishedtest"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/lora"
)

// models lists the models, and skips the test if their files are not there.
func models(t *testing.T) []*publishedtest.Model {
	t.Helper()
	root := publishedtest.Root("../..")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (%s names their folder): %v", publishedtest.Env, err)
	}
	t.Setenv("HF_HOME", t.TempDir())
	models, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	return models
}

// TestPresets: every model that gomflux lists has a skeleton.
func TestPresets(t *testing.T) {
	names := map[string]bool{}
	for _, m := range models(t) {
		names[m.Name] = true
	}
	for _, p := range catalog.Presets {
		if !names[p.Repo] {
			t.Errorf("%s has no skeleton", p.Repo)
		}
	}
}

// TestList: files are there if their hash is known, and everything else has a source.
func TestList(t *testing.T) {
	for _, m := range models(t) {
		list, err := m.List()
		if err != nil {
			t.Fatal(err)
		}
		have := 0
		for _, f := range list {
			if f.Status == "have" {
				have++
			}
			if (f.Status == "agreed") != (len(f.Sources) > 1 && f.SHA256 != "") || f.Status == "guessed" && len(f.Sources) == 0 {
				t.Errorf("%s: %s is %s by %q", m.Name, f.Name, f.Status, f.Sources)
			}
		}
		if strings.HasPrefix(m.Name, "Tongyi-MAI/Z-Image-Turbo") && have != 9 {
			t.Errorf("%s: %d files have the published hash, expected 9", m.Name, have)
		}
	}
}

// TestWhole declares every published model in its own dimensions, and compares the names of its
// tensors with those of its indexes, and their size with that of the published files.
func TestWhole(t *testing.T) {
	indexes, sizes, counts := 0, 0, 0
	for _, m := range models(t) {
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		components, err := modeltest.Declared(os.DirFS(folder))
		if err != nil {
			t.Errorf("%s: %v", m.Name, err)
			continue
		}
		for _, c := range components {
			tensors, err := m.Tensors(folder, c)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			var size int64
			for _, x := range tensors {
				names = append(names, x.Name)
				n := int64(x.Dtype.Size())
				for _, d := range x.Shape {
					n *= int64(d)
				}
				size += n
			}
			slices.Sort(names)
			for file := range m.Files {
				if path.Dir(file) != c.Dir || !strings.HasSuffix(file, ".safetensors.index.json") {
					continue
				}
				text, err := m.Read(file)
				var index struct {
					Metadata struct {
						Size int64 `json:"total_size"`
					}
					WeightMap map[string]string `json:"weight_map"`
				}
				if err == nil {
					err = json.Unmarshal(text, &index)
				}
				if err != nil {
					t.Fatal(err)
				}
				if want := slices.Sorted(maps.Keys(index.WeightMap)); !slices.Equal(names, want) {
					t.Errorf("%s: %s: declared are %d tensors, published are %d", m.Name, file, len(names), len(want))
				}
				if !strings.Contains(m.Name, "Fill") && size != index.Metadata.Size { // Fill has the names of dev's index only
					t.Errorf("%s: %s: declared are %d bytes, published are %d", m.Name, file, size, index.Metadata.Size)
				}
				indexes++
			}
			if want, ok := m.Counts[c.Dir]; ok {
				if len(names) != want {
					t.Errorf("%s: %s: declared are %d tensors, published are %d", m.Name, c.Dir, len(names), want)
				}
				counts++
			}
			if want, ok := m.Bytes[c.Dir]; ok {
				// a header has 60 to 250 bytes for each tensor
				if header := want - size; header < 60*int64(len(names)) || header > 250*int64(len(names)) {
					t.Errorf("%s: %s: declared are %d tensors of %d bytes, published are %d", m.Name, c.Dir, len(names), size, want)
				}
				sizes++
			}
		}
	}
	if indexes != 10 || sizes != 20 || counts != 6 { // of FLUX.1; of manifests; of programs that check files
		t.Errorf("%d indexes, %d sizes and %d numbers of tensors were compared", indexes, sizes, counts)
	}
}

// publishedLoRAs has the models that the LoRAs in lora-keys fit, by parts of their names, and the error of
// all others.
var publishedLoRAs = map[string]struct{ fits, error string }{
	"flux_control_lora_format":               {"", "not supported: it has tensors of a control LoRA"},
	"flux_lora_diffusers_base_model_format":  {"FLUX.1", "it seems to be for FLUX.1"},
	"flux_lora_diffusers_no_proj_mlp_format": {"FLUX.1", "it seems to be for FLUX.1"},
	"flux_lora_kohya_with_te1_format":        {"FLUX.1", "it seems to be for FLUX.1"},
	"krea2_lora_kohya_format":                {"Krea-2", "it seems to be for Krea 2"},
	// samples, whose factors do not have the sizes of any layers
	"anima_lora_kohya_format":      {"", "it seems to be for Anima,found [2048 2048], the product of"},
	"anima_lora_lokr_format":       {"", "it seems to be for Anima,found [16384 16384], the Kronecker product of"},
	"flux_lokr_bfl_format":         {"", "for FLUX.1 or FLUX.2,found [1024 3072], the Kronecker product of"},
	"qwen_image_lora_kohya_format": {"", "for Qwen-Image,found [49152 49152], the Kronecker product of"},
}

// TestPublishedLoRAs: LoRAs with the names and shapes of published ones fit their models in their own
// dimensions, and no other. A file of zeros that fits is said to have no effect.
func TestPublishedLoRAs(t *testing.T) {
	root := publishedtest.Root("../..")
	files, err := filepath.Glob(filepath.Join(root, "lora-keys", "*.json"))
	if err != nil || len(files) == 0 {
		t.Skipf("the keys of published LoRAs are not there (%s names their folder)", publishedtest.Env)
	}
	seen := map[string]bool{} // classes of transformers, whose dimensions are the same
	for _, m := range models(t) {
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		components, err := modeltest.Declared(os.DirFS(folder))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(components, func(c component.Component) bool { return c.Class.Role == component.Transformer })
		if class := components[i].Class.Name; seen[class] {
			continue
		} else {
			seen[class] = true
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			var shapes map[string][]int
			if err == nil {
				err = json.Unmarshal(text, &shapes)
			}
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(filepath.Base(file), ".json")
			loader := component.Loader{}
			path := filepath.Join(t.TempDir(), "lora.safetensors")
			sparse(t, path, shapes)
			err = loader.OpenLoRAs([]lora.Spec{{Path: path, Scale: 1}}, components)
			known, ok := publishedLoRAs[name]
			want := strings.Split(known.error, ",found")
			switch {
			case !ok:
				t.Fatalf("no entry for %s", file)
			case err == nil:
				t.Errorf("%s fits %s, although all of its values are 0", name, m.Name)
			case known.fits != "" && strings.Contains(m.Name, known.fits):
				if !strings.Contains(err.Error(), "has no effect") {
					t.Errorf("%s does not fit %s: %v", name, m.Name, err)
				}
			case !slices.ContainsFunc(want, func(part string) bool { return strings.Contains(err.Error(), part) }):
				t.Errorf("%s with %s: found %v, expected %s", name, m.Name, err, known.error)
			}
		}
	}
}

// sparse writes a safetensors file of zeros that takes no room on the disk. Single numbers are 1.
func sparse(t *testing.T, path string, shapes map[string][]int) {
	t.Helper()
	at, header, begin := 0, map[string]any{}, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		size := 2
		for _, n := range shapes[name] {
			size *= n
		}
		header[name] = map[string]any{"dtype": "F16", "shape": shapes[name], "data_offsets": []int{at, at + size}}
		begin[name] = at
		at += size
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	if err = os.WriteFile(path, data, 0o666); err == nil {
		err = os.Truncate(path, int64(len(data)+at))
	}
	if file, openErr := os.OpenFile(path, os.O_RDWR, 0); err == nil {
		err = openErr
		for name, shape := range shapes {
			if len(shape) == 0 && err == nil {
				_, err = file.WriteAt([]byte{0, 0x3c}, int64(len(data)+begin[name]))
			}
		}
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
