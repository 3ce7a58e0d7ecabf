package publishedtest_test

import (
	"encoding/binary"
	"encoding/json"
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

// TestForeignLoRA: LoRAs of Anima, which no family here is, fit no model.
func TestForeignLoRA(t *testing.T) {
	root := publishedtest.Root("../..")
	files, err := filepath.Glob(filepath.Join(root, "lora-keys", "anima_*.json"))
	if err != nil || len(files) == 0 {
		t.Skipf("the keys of published LoRAs are not there (%s names their folder)", publishedtest.Env)
	}
	t.Setenv("HF_HOME", t.TempDir())
	models, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		folder := filepath.Join(t.TempDir(), "model")
		if err := m.Write(folder, false); err != nil {
			t.Fatal(err)
		}
		components, err := publishedtest.Components(folder)
		if err != nil {
			t.Fatal(err)
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
			loader := component.Loader{}
			if err := loader.OpenLoRAs([]lora.Spec{{Path: sparse(t, shapes), Scale: 1}}, components); err == nil ||
				!strings.Contains(err.Error(), "does not fit this model") {
				t.Errorf("%s with %s: %v", filepath.Base(file), m.Name, err)
			}
		}
	}
}

// sparse writes a safetensors file of zeros that takes no room on the disk.
func sparse(t *testing.T, shapes map[string][]int) string {
	t.Helper()
	at, header := 0, map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		size := 2
		for _, n := range shapes[name] {
			size *= n
		}
		header[name] = map[string]any{"dtype": "F16", "shape": shapes[name], "data_offsets": []int{at, at + size}}
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
	if err != nil {
		t.Fatal(err)
	}
	return path
}
