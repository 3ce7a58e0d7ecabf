package save_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/save"
)

// found converts a model that was found by name.
func found(s *catalog.Source) save.Source {
	return save.Source{FS: s.FS, Name: s.Name, Folder: s.Folder, Revision: s.Revision, Origin: s.Origin()}
}

// TestOrigin checks that a saved model keeps the recommended settings of its original, also
// when it is saved again.
func TestOrigin(t *testing.T) {
	parent := t.TempDir()
	turbo := filepath.Join(parent, "Z-Image-Turbo") // a folder of a preset's name
	if err := os.CopyFS(turbo, os.DirFS(modeltest.Folder(t, "zimage-ordinary"))); err != nil {
		t.Fatal(err)
	}
	preset, _ := catalog.FindPreset("z-image-turbo")
	plain, err := catalog.Find(modeltest.Folder(t, "zimage-ordinary"))
	if err != nil || plain.Defaults != nil {
		t.Fatalf("%+v, %v", plain, err)
	}
	for _, layout := range []string{save.LayoutDiffusers, save.LayoutMFlux} {
		from := turbo
		for _, name := range []string{"once", "twice"} {
			src, err := catalog.Find(from)
			if err != nil {
				t.Fatal(err)
			}
			from = filepath.Join(parent, layout+"-"+name)
			mlxtest.Do(t, func() {
				if _, err := save.Model(found(src), from, save.Options{Layout: layout}); err != nil {
					mlx.Throw(err)
				}
			})
			saved, err := catalog.Find(from)
			if err != nil {
				t.Fatal(err)
			}
			if saved.Defaults == nil || *saved.Defaults != preset.Defaults {
				t.Errorf("%s %s: found %+v, expected %+v", layout, name, saved.Defaults, preset.Defaults)
			}
		}
	}
	// a folder as mflux itself saves it says so elsewhere
	theirs := filepath.Join(parent, "theirs")
	if err := os.CopyFS(theirs, os.DirFS(modeltest.Folder(t, "zimage-ordinary"))); err == nil {
		err = os.WriteFile(filepath.Join(theirs, "mflux_model.json"),
			[]byte(`{"model_name": "z-image-turbo", "base_model": null, "upstream": null}`), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	}
	if saved, err := catalog.Find(theirs); err != nil || saved.Defaults == nil || *saved.Defaults != preset.Defaults {
		t.Errorf("%+v, %v", saved, err)
	}
}

// TestSingleFile makes whole folders of a file in the layout of the models'
// makers: as diffusers has it, with the names and shapes that it knows, and
// quantized.
func TestSingleFile(t *testing.T) {
	for _, folder := range []string{"flux1-schnell-ordinary", "flux2-klein", "zimage-ordinary", "qwen-image-ordinary"} {
		t.Run(folder, func(t *testing.T) {
			base := modeltest.Folder(t, folder)
			file := filepath.Join(t.TempDir(), "transformer.safetensors")
			var list []*checkpoint.Array
			for name, x := range modeltest.Original(t, filepath.Join(base, "transformer")) {
				list = append(list, &checkpoint.Array{Name: "model.diffusion_model." + name, Dtype: x.Dtype, Shape: x.Shape, Data: x.Data})
			}
			if err := checkpoint.WriteFile(file, list, nil); err != nil {
				t.Fatal(err)
			}
			src, err := catalog.FindWith(file, base)
			if err != nil {
				t.Fatal(err)
			}
			want := stored(t, base, "transformer")
			mlxtest.Do(t, func() {
				dir := t.TempDir()
				if _, err := save.Model(found(src), dir, save.Options{}); err != nil {
					mlx.Throw(err)
				}
				got := stored(t, dir, "transformer")
				if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
					t.Errorf("found %q, expected %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
				}
				for name, x := range want {
					if y := got[name]; y != nil && (!slices.Equal(x.Shape, y.Shape) || !bytes.Equal(x.Data, y.Data)) {
						t.Errorf("%s is not what it was", name)
					}
				}
				q := &mlx.Quantization{Mode: "affine", Bits: 8, Group: 32}
				packed := t.TempDir()
				if _, err := save.Model(found(src), packed, save.Options{Quantize: q}); err != nil {
					mlx.Throw(err)
				}
				fromFolder, _ := saveNew(t, base, save.Options{Quantize: q})
				a, b := stored(t, packed, "transformer"), stored(t, fromFolder, "transformer")
				for name, x := range b {
					if y := a[name]; len(a) != len(b) || y == nil || !bytes.Equal(x.Data, y.Data) {
						t.Errorf("%s is not what is quantized of the folder", name)
					}
				}
			})
		})
	}
}
