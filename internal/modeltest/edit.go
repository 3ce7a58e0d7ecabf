package modeltest

import (
	"os"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// Copy copies a model folder to one of its own.
func Copy(t testing.TB, model string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(model)); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Edit rewrites a safetensors file with what change makes of its tensors, by their
// names.
func Edit(t testing.TB, path string, change func(map[string]*checkpoint.Array)) {
	t.Helper()
	all := map[string]*checkpoint.Array{}
	readFile(t, path, all)
	change(all)
	Write(t, path, nil, map[string]map[string]*checkpoint.Array{"": all})
}

// Fill gives a tensor other elements, made from its own.
func Fill(x *checkpoint.Array, f func(i int, v float32) float32) {
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
