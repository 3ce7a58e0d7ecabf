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

// WideModels lists what [Wide] makes models of, one for every way of the families
// to be run.
func WideModels() (names []string) {
	for _, m := range Models {
		if m.configs != nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// Wide writes one of [WideModels] with random weights in bfloat16, the
// autoencoder's as they are, and returns its folder.
func Wide(t testing.TB, name string) string {
	t.Helper()
	dir := Copy(t, Folder(t, name))
	for _, m := range Models {
		if m.Name != name {
			continue
		}
		for component, changes := range m.configs {
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
		WriteRandom(t, filepath.Join(dir, c.Dir, "model.safetensors"), c.Model, r)
	}
	return dir
}

// WriteRandom writes a file of random weights in bfloat16 for a model.
func WriteRandom(t testing.TB, path string, model any, r *rand.Rand) {
	t.Helper()
	var list []*checkpoint.Array
	for _, parameter := range nn.Parameters(model) {
		list = append(list, randomTensor(r, parameter))
	}
	if err := checkpoint.WriteFile(path, list, nil); err != nil {
		t.Fatal(err)
	}
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
	Merge(config, with)
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

// Merge replaces keys of a config, those of objects in objects too.
func Merge(config, with map[string]any) {
	for key, value := range with {
		inner, ok := config[key].(map[string]any)
		if changes, isMap := value.(map[string]any); ok && isMap {
			Merge(inner, changes)
		} else {
			config[key] = value
		}
	}
}

// Spread returns the deviation and the mean of random values for a parameter that keep what goes
// through it at its size.
func Spread(p nn.Parameter) (deviation, mean float64) {
	shape := p.Stored()
	switch {
	case p.Kind() == nn.EmbeddingWeight:
		return 1, 0
	case len(shape) == 1 && (strings.HasSuffix(p.Name, "weight") || strings.HasSuffix(p.Name, "running_var")): // of a norm
		return 0.1, 1
	case len(shape) == 1:
		return 0.1, 0
	}
	return 1 / math.Sqrt(float64(checkpoint.Len(shape[1:]))), 0
}

// randomTensor is a parameter that keeps what goes through it at its size.
func randomTensor(r *rand.Rand, p nn.Parameter) *checkpoint.Array {
	deviation, mean := Spread(p)
	var data []byte
	for range checkpoint.Len(p.Stored()) {
		bits := math.Float32bits(float32(mean + deviation*r.NormFloat64()))
		data = append(data, byte(bits>>16), byte(bits>>24))
	}
	return &checkpoint.Array{Name: p.Name, Dtype: checkpoint.BF16, Shape: p.Stored(), Data: data}
}
