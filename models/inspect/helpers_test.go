package inspect_test

import (
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/inspect"
)

// vaeFile is the one file of the tiny model's autoencoder.
const vaeFile = "vae/diffusion_pytorch_model.safetensors"

// copyModel copies the tiny model to a folder of its own.
func copyModel(t *testing.T) string {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(ordinary)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// edit rewrites a safetensors file.
func edit(t *testing.T, path string, change func(map[string]*checkpoint.Array)) {
	f, err := checkpoint.OpenArrays(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*checkpoint.Array{}
	for _, i := range f.Tensors() {
		if all[i.Name], err = f.Read(i.Name); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	change(all)
	var list []*checkpoint.Array
	for name, x := range all {
		x.Name = name
		list = append(list, x)
	}
	if err := checkpoint.WriteFile(path, list, nil); err != nil {
		t.Fatal(err)
	}
}

// fill gives a tensor other elements, made from its own.
func fill(x *checkpoint.Array, f func(i int, v float32) float32) {
	values := x.Float32s()
	for i, v := range values {
		values[i] = f(i, v)
	}
	changed, err := checkpoint.FromFloat32(x.Name, x.Shape, values)
	if err == nil {
		changed, err = changed.Cast(x.Dtype)
	}
	if err != nil {
		panic(err)
	}
	x.Data = changed.Data
}

func openWeights(t *testing.T, dir string) *inspect.Weights {
	folder, err := checkpoint.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := inspect.OpenWeights(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}
