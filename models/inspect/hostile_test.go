package inspect_test

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hostiletest"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/inspect"
)

// TestAttacks: each attack is found without a tensor being read, in bounded time
// and memory, the file is named, and nothing is written.
func TestAttacks(t *testing.T) {
	mlxtest.Do(t, func() {}) // MLX's library is found from this folder, which is left below
	from, err := filepath.Abs(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	for name, attack := range attacks(t) {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "") // without the attack's name
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			t.Chdir(dir)
			if err := os.CopyFS("m", os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir("outside", 0o777); err != nil {
				t.Fatal(err)
			}
			const secret = "root:x:0:0:secret"
			if err := os.WriteFile("outside/secret", []byte(secret), 0o666); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo("outside/pipe", 0o666); err != nil {
				t.Skip(err)
			}
			attack.change(t)
			before := tree(t)
			folder, err := checkpoint.OpenFolder("m")
			if err != nil {
				t.Fatal(err)
			}
			refused := func(by string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "m/"+attack.file) || !strings.Contains(err.Error(), attack.want) ||
					strings.Contains(err.Error(), secret) || len(err.Error()) > 20_000 {
					t.Errorf("%s: %v, expected an error about m/%s with %q", by, err, attack.file, attack.want)
				}
			}

			var info inspect.Info
			hostiletest.Bounded(t, func() { info = inspect.Model(folder) })
			err = info.Incomplete
			if err == nil {
				err = info.Unsupported
			}
			refused("Model", err)
			mlxtest.Do(t, func() {
				hostiletest.Bounded(t, func() {
					tensors := false
					p, err := models.Load(folder, models.LoadOptions{Progress: func(models.Progress) { tensors = true }})
					if err == nil {
						p.Close()
					}
					refused("Load", err)
					if tensors {
						t.Error("tensors were read")
					}
				})
			})
			if after := tree(t); !maps.Equal(before, after) {
				t.Errorf("files were %v and are %v", before, after)
			}

			// looking at the weights goes on with the components that are whole
			w, err := inspect.OpenWeights(folder)
			if err != nil {
				return
			}
			defer w.Close()
			ctx, stop := context.WithTimeout(t.Context(), time.Second) // which is not enough for 1 TB
			defer stop()
			hostiletest.Bounded(t, func() {
				if err := w.Read(ctx, nil); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		})
	}
}

// tree is every file from here on, with its mode and size.
func tree(t *testing.T) map[string]string {
	files := map[string]string{}
	if err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			files[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// TestFolderOfLinks: links are followed wherever they lead to, if it is to files
// and folders. The Hugging Face cache is made of them, and so are users' folders.
func TestFolderOfLinks(t *testing.T) {
	from, err := filepath.Abs(ordinary)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"model_index.json", "scheduler", "text_encoder", "tokenizer", "vae"} {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "transformer"), 0o777); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(from, "transformer/*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		if err := os.Symlink(file, filepath.Join(dir, "transformer", filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info := inspect.Model(folder); info.Incomplete != nil || info.Unsupported != nil {
		t.Error(info.Incomplete, info.Unsupported)
	}
	mlxtest.Do(t, func() {
		p, err := models.Load(folder, models.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
	})
}
