package save_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/filelock"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/save"
)

// TestRefused checks the errors about models and folders that cannot be saved, and that
// nothing is left behind.
func TestRefused(t *testing.T) {
	plain := modeltest.Wide(t, "zimage-small")
	// changed is the model with other tensors of its transformer
	changed := func(change func(map[string]*checkpoint.Array)) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(plain)); err != nil {
			t.Fatal(err)
		}
		all := stored(t, dir, "transformer")
		change(all)
		if err := checkpoint.WriteFile(filepath.Join(dir, "transformer", "model.safetensors"), slices.Collect(maps.Values(all)),
			nil); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	prefixed := modeltest.Copy(t, plain)
	if err := os.WriteFile(filepath.Join(prefixed, "tokenizer", "tokenizer_config.json"),
		[]byte(`{"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "note.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	for _, c := range []refusal{
		{"not empty", plain, full, save.Options{}, []string{full, "not empty", "--overwrite"}},
		{"no model to replace", plain, full, save.Options{Overwrite: true}, []string{full, "is not a model folder"}},
		{"a file", plain, filepath.Join(full, "note.txt"), save.Options{}, []string{"note.txt", "cannot be used as a folder"}},
		{"unknown layout", plain, "", save.Options{Layout: "gguf"}, []string{`layout "gguf"`, "diffusers or mflux"}},
		{"quantized for diffusers", plain, "", save.Options{Layout: save.LayoutDiffusers, Quantize: q},
			[]string{"layout diffusers: does not support quantized weights"}},
		{"NaN", changed(func(all map[string]*checkpoint.Array) {
			copy(all["layers.1.attention.to_v.weight"].Data, []byte{0xff, 0xff})
		}), "", save.Options{Quantize: q}, []string{"model.safetensors", "tensor layers.1.attention.to_v.weight", "NaN"}},
		{"too large for float16", changed(func(all map[string]*checkpoint.Array) {
			copy(all["layers.1.attention_norm1.weight"].Data, []byte{0x80, 0x47}) // 65536
		}), "", save.Options{Dtype: new(mlx.Float16)}, []string{"tensor layers.1.attention_norm1.weight", "float16 ends at 65504"}},
		{"tokenizer", prefixed, "", save.Options{}, []string{"tokenizer/tokenizer_config.json: add_prefix_space true is not supported"}},
		{"missing", changed(func(all map[string]*checkpoint.Array) { delete(all, "cap_pad_token") }), "", save.Options{},
			[]string{"missing: cap_pad_token"}},
	} {
		t.Run(c.name, c.test)
	}
	t.Run("no room", func(t *testing.T) {
		defer func(free func(string) int64) { *save.FreeBytes = free }(*save.FreeBytes)
		*save.FreeBytes = func(string) int64 { return 1000 }
		refusal{"", plain, "", save.Options{}, []string{"GB", "free"}}.test(t)
	})
}

// A refusal is a model that cannot be saved to a folder, "" for one that is not
// there, and parts of the reason.
type refusal struct {
	name, from, to string
	o              save.Options
	want           []string
}

func (c refusal) test(t *testing.T) {
	parent := t.TempDir()
	if c.to == "" {
		c.to = filepath.Join(parent, "new", "saved")
	}
	err := mlxtest.Try(func() {
		if _, err := save.Model(source(t, c.from), c.to, c.o); err != nil {
			mlx.Throw(err)
		}
	})
	if err == nil {
		t.Fatal("was saved")
	}
	mlxtest.Contains(t, err.Error(), c.want...)
	leftovers(t, parent)
}

// leftovers looks for files.
func leftovers(t *testing.T, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.Contains(path, "incomplete")) {
			t.Errorf("%s is left", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestStopped stops it at many points: nothing is left.
func TestStopped(t *testing.T) {
	src := source(t, modeltest.Wide(t, "flux2-klein-base"))
	stop := errors.New("enough")
	for _, share := range []float64{0, 0.1, 0.5, 0.9, 0.99} {
		ctx, cancel := context.WithCancelCause(t.Context())
		parent := t.TempDir()
		err := mlx.Do(ctx, func() error {
			_, err := save.Model(src, filepath.Join(parent, "saved"), save.Options{
				Quantize: &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64},
				Progress: func(component string, done, total int64) {
					if component == "" || total == 0 || done > total {
						t.Errorf("%q: %d of %d bytes", component, done, total)
					}
					if float64(done) > share*float64(total) {
						cancel(stop)
					}
				},
			})
			return err
		})
		cancel(nil)
		if !errors.Is(err, stop) {
			t.Errorf("stopped at %g of it: %v", share, err)
		}
		leftovers(t, parent)
	}
}

// TestAfterKill removes what one who was killed has left, and not what one has
// who is still at it.
func TestAfterKill(t *testing.T) {
	parent := t.TempDir()
	for _, name := range []string{".a.gomflux-1.incomplete", ".b.gomflux-2.incomplete", ".c.gomflux-3", "d.gomflux-4.incomplete"} {
		if err := os.MkdirAll(filepath.Join(parent, name, "vae"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	release, err := filelock.TryFolder(filepath.Join(parent, ".b.gomflux-2.incomplete"))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	src := source(t, modeltest.Folder(t, "zimage-ordinary"))
	mlxtest.Do(t, func() {
		if _, err := save.Model(src, filepath.Join(parent, "saved"), save.Options{}); err != nil {
			mlx.Throw(err)
		}
	})
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if want := []string{".b.gomflux-2.incomplete", ".c.gomflux-3", "d.gomflux-4.incomplete", "saved"}; !slices.Equal(names, want) {
		t.Errorf("found %q, expected %q", names, want)
	}
}

// TestOverwrite replaces models by others and by themselves, and keeps the existing model
// if saving fails.
func TestOverwrite(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "saved")
	q := &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
	mlxtest.Do(t, func() {
		for _, c := range []struct {
			from string
			o    save.Options
		}{
			{modeltest.Wide(t, "zimage-small"), save.Options{Quantize: q}},
			{modeltest.Folder(t, "zimage-ordinary"), save.Options{Overwrite: true}}, // of mflux by one of diffusers
			{dir, save.Options{Overwrite: true, Dtype: new(mlx.Float16)}},           // by itself
		} {
			report, err := save.Model(source(t, c.from), dir, c.o)
			if err != nil {
				mlx.Throw(err)
			}
			if report.Folder != dir {
				t.Errorf("saved to %s", report.Folder)
			}
			if _, err := os.Stat(filepath.Join(dir, "mflux_model.json")); (err == nil) != (report.Layout == save.LayoutMFlux) {
				t.Errorf("%s: %v", report.Layout, err)
			}
		}
		if x := stored(t, dir, "vae")["decoder.conv_in.bias"]; x.Dtype != checkpoint.F16 {
			t.Errorf("%s is %s", x.Name, x.Dtype)
		}
		bad := modeltest.Wide(t, "zimage-small")
		if err := os.Remove(filepath.Join(bad, "vae", "config.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := save.Model(source(t, bad), dir, save.Options{Overwrite: true}); err == nil {
			t.Error("half a model was saved")
		}
		stored(t, dir, "transformer")
	})
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the folder there is %v, %v", entries, err)
	}
}
