package modeltest

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// wides are small models whose matrices are wide enough to be quantized: those of
// some folders, with other numbers in the configs of some components.
var wides = []struct {
	name    string
	configs map[string]string // by component, what replaces keys of its config
}{
	{"flux1-dev-small", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], ` +
			`"joint_attention_dim": 128, "pooled_projection_dim": 64}`,
		"text_encoder":   `{"hidden_size": 64, "intermediate_size": 128, "projection_dim": 64}`,
		"text_encoder_2": `{"d_model": 128, "d_ff": 128, "d_kv": 32}`,
	}},
	{"flux1-fill", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], ` +
			`"joint_attention_dim": 128, "pooled_projection_dim": 64}`,
		"text_encoder":   `{"hidden_size": 64, "intermediate_size": 128, "projection_dim": 64, "num_attention_heads": 2}`,
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
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
			"rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
	{"krea-2-raw", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 384,
			"axes_dims_rope": [8, 12, 12], "text_hidden_dim": 128, "text_num_attention_heads": 4, "text_intermediate_size": 256}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32},
			"vision_config": {"out_hidden_size": 128}}`,
	}},
	{"qwen-image-21", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "context_in_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32},
			"vision_config": {"hidden_size": 64, "num_heads": 2, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
	{"qwen-edit-plus", map[string]string{
		"transformer": `{"attention_head_dim": 32, "num_attention_heads": 4, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 128}`,
		"text_encoder": `{"text_config": {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4,
			"rope_parameters": {"mrope_section": [4, 6, 6], "rope_theta": 20000.0, "rope_type": "default"}},
			"vision_config": {"hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 128}}`,
	}},
}

// WideModels lists what [Wide] makes models of, one for every way of the families
// to be run.
func WideModels() (names []string) {
	for _, wide := range wides {
		names = append(names, wide.name)
	}
	return names
}

// Wide writes one of [WideModels] with random weights in bfloat16, the
// autoencoder's as they are, and returns its folder.
func Wide(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(Folder(t, name))); err != nil {
		t.Fatal(err)
	}
	for _, wide := range wides {
		if wide.name != name {
			continue
		}
		for component, changes := range wide.configs {
			change(t, filepath.Join(dir, component), changes)
		}
	}
	fsys, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range Components(t, fsys) {
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

// change replaces keys of a component's config, and removes its weights.
func change(t testing.TB, folder, changes string) {
	t.Helper()
	file := filepath.Join(folder, component.ConfigFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var config, with map[string]any
	for target, text := range map[*map[string]any][]byte{&config: text, &with: []byte(changes)} {
		if err := json.Unmarshal(text, target); err != nil {
			t.Fatal(err)
		}
	}
	merge(config, with)
	if text, err = json.Marshal(config); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	old, _ := filepath.Glob(filepath.Join(folder, "*.safetensors*"))
	for _, name := range old {
		os.Remove(name)
	}
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
