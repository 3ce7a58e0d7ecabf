package models

import (
	"encoding/json"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
)

// wideModels are small models whose matrices are wide enough to be quantized:
// a folder of testdata each, with other numbers in the configs of some components.
var wideModels = []struct {
	folder  string
	configs map[string]string // by component, what replaces keys of its config
}{
	{"flux1-dev-small", map[string]string{
		"transformer":    `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 128, "pooled_projection_dim": 64}`,
		"text_encoder":   `{"hidden_size": 64, "intermediate_size": 128, "projection_dim": 64}`,
		"text_encoder_2": `{"d_model": 128, "d_ff": 128, "d_kv": 32}`,
	}},
	{"flux2-klein-base", map[string]string{
		"transformer":  `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 8, 8, 8], "joint_attention_dim": 384}`,
		"text_encoder": `{"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}`,
	}},
	{"zimage-small", map[string]string{
		"transformer":  `{"dim": 128, "n_heads": 4, "n_kv_heads": 4, "axes_dims": [8, 12, 12], "cap_feat_dim": 128}`,
		"text_encoder": `{"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}`,
	}},
	{"qwen-image-small", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
	{"qwen-edit-plus", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
}

// wideModel writes one of wideModels with random weights in bfloat16, the
// autoencoder's as they are, and returns its folder.
func wideModel(t testing.TB, folder string) string {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Join("testdata", folder, "model")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	for _, wide := range wideModels {
		if wide.folder != folder {
			continue
		}
		for folder, changes := range wide.configs {
			file := filepath.Join(dir, folder, "config.json")
			var config, with map[string]any
			for target, text := range map[*map[string]any][]byte{&config: read(t, file), &with: []byte(changes)} {
				if err := json.Unmarshal(text, target); err != nil {
					t.Fatal(err)
				}
			}
			merge(config, with)
			text, err := json.Marshal(config)
			if err == nil {
				err = os.WriteFile(file, text, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			old, _ := filepath.Glob(filepath.Join(dir, folder, "*.safetensors*"))
			for _, name := range old {
				os.Remove(name)
			}
		}
	}
	fsys, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range declared(t, fsys) {
		if c.Class.Role == component.Autoencoder {
			continue
		}
		var list []*checkpoint.Array
		for _, parameter := range nn.Parameters(c.Model) {
			list = append(list, randomTensor(r, parameter))
		}
		if err := checkpoint.WriteFile(filepath.Join(dir, c.Dir, "model.safetensors"), list, nil); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// declared are the components of a model folder, by their configs.
func declared(t testing.TB, fsys fs.FS) []component.Component {
	t.Helper()
	x, err := index.Read(fsys)
	if err != nil {
		t.Fatal(err)
	}
	d, err := family.Declare(&component.Folder{FS: fsys, Points: &hooks.Points{}}, x)
	if err != nil {
		t.Fatal(err)
	}
	return d.Components
}

func read(t testing.TB, file string) []byte {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// merge replaces keys, those of objects in objects too.
func merge(config, with map[string]any) {
	for key, value := range with {
		inner, ok := config[key].(map[string]any)
		if changes, isMap := value.(map[string]any); ok && isMap && !strings.HasPrefix(key, "rope") {
			merge(inner, changes)
		} else {
			config[key] = value
		}
	}
}

// randomTensor is a parameter that keeps what goes through it at its size.
func randomTensor(r *rand.Rand, p nn.Parameter) *checkpoint.Array {
	shape := p.Stored()
	n, in := 1, 1
	for i, d := range shape {
		n *= d
		if i > 0 {
			in *= d
		}
	}
	scale, mean := 1/math.Sqrt(float64(in)), 0.0
	switch {
	case p.Kind() == nn.EmbeddingWeight:
		scale = 1
	case len(shape) == 1 && strings.HasSuffix(p.Name, "weight"): // of a norm
		scale, mean = 0.1, 1
	case len(shape) == 1:
		scale = 0.1
	}
	data := make([]byte, 0, 2*n)
	for range n {
		bits := math.Float32bits(float32(mean + scale*r.NormFloat64()))
		data = append(data, byte(bits>>16), byte(bits>>24))
	}
	return &checkpoint.Array{Name: p.Name, Dtype: checkpoint.BF16, Shape: shape, Data: data}
}
