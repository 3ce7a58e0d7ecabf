package inspect_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/inspect"
)

// FuzzFolder puts any text into one of a model's small files. Whether the model
// is judged whole or not, its weights can be opened or not, and nothing panics.
func FuzzFolder(f *testing.F) {
	small, all := fstest.MapFS{}, fstest.MapFS{}
	err := fs.WalkDir(os.DirFS(ordinary), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(ordinary + "/" + name)
		all[name] = &fstest.MapFile{Data: data}
		if len(data) < 10_000 {
			small[name] = all[name]
		}
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	small["vae/latent_rgb_factors.json"] = &fstest.MapFile{Data: []byte(
		`{"latent_rgb_factors": [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]], "latent_rgb_factors_bias": [0, 0, 1e308]}`)}
	names := slices.Sorted(maps.Keys(small))
	for i, name := range names {
		f.Add(uint8(i), small[name].Data)
	}
	f.Fuzz(func(t *testing.T, file uint8, data []byte) {
		model := maps.Clone(all)
		model[names[int(file)%len(names)]] = &fstest.MapFile{Data: data}
		info := inspect.Model(model)
		if info.Unsupported != nil && !errors.Is(info.Unsupported, errs.ErrUnsupported) {
			t.Errorf("not supported: %v", info.Unsupported)
		}
		w, err := inspect.OpenWeights(model)
		if err != nil {
			return
		}
		for _, c := range w.Components {
			c.Flags()
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}
