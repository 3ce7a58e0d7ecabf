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

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/publishedtest"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/lora"
)

// TestWhole declares every published model in its own dimensions, and compares the names of its
// tensors with those of its indexes.
func TestWhole(t *testing.T) {
	root := publishedtest.Root("../..")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (%s names their folder): %v", publishedtest.Env, err)
	}
	t.Setenv("HF_HOME", t.TempDir())
	models, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, m := range models {
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		components, err := publishedtest.Components(folder)
		if err != nil {
			t.Errorf("%s: %v", m.Name, err)
			continue
		}
		for _, c := range components {
			for file := range m.Files {
				if path.Dir(file) != c.Dir || !strings.HasSuffix(file, ".safetensors.index.json") {
					continue
				}
				text, err := m.Read(file)
				var index struct {
					WeightMap map[string]string `json:"weight_map"`
				}
				if err == nil {
					err = json.Unmarshal(text, &index)
				}
				if err != nil {
					t.Fatal(err)
				}
				stored := &checkpoint.Checkpoint{Tensors: map[string]checkpoint.Tensor{}} // without shapes, which are not known
				for name := range index.WeightMap {
					stored.Tensors[name] = checkpoint.Tensor{Name: name}
				}
				if _, m := c.Match(stored); m != nil && len(m.Missing)+len(m.Unexpected) > 0 {
					t.Errorf("%s: %d declared tensors are missing, %d are not expected", file, len(m.Missing), len(m.Unexpected))
				}
				compared++
			}
		}
	}
	if compared != 4 { // of transformers and T5 of FLUX.1
		t.Errorf("%d indexes were compared", compared)
	}
}

// publishedLoRAs has the models that the LoRAs in lora-keys fit, by parts of their names, and the error of
// all others.
var publishedLoRAs = map[string]struct{ fits, error string }{
	"anima_lora_kohya_format":                {"", "it seems to be for Anima (or Cosmos Predict2)"},
	"anima_lora_lokr_format":                 {"", "it seems to be for Anima (or Cosmos Predict2)"},
	"flux_control_lora_format":               {"", "not supported: it has tensors of a control LoRA"},
	"flux_lora_diffusers_base_model_format":  {"FLUX.1", "it seems to be for FLUX.1"},
	"flux_lora_diffusers_no_proj_mlp_format": {"FLUX.1", "it seems to be for FLUX.1"},
	"flux_lora_kohya_with_te1_format":        {"FLUX.1", "it seems to be for FLUX.1"},
	"krea2_lora_kohya_format":                {"Krea-2", "it seems to be for Krea 2"},
	// samples, whose factors do not have the sizes of any layers
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
	t.Setenv("HF_HOME", t.TempDir())
	models, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{} // classes of transformers, whose dimensions are the same
	for _, m := range models {
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		components, err := publishedtest.Components(folder)
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
			err = loader.OpenLoRAs([]lora.Spec{{Path: sparse(t, shapes), Scale: 1}}, components)
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
func sparse(t *testing.T, shapes map[string][]int) string {
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
	path := filepath.Join(t.TempDir(), "lora.safetensors")
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
	return path
}
