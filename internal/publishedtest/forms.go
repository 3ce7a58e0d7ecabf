package publishedtest

import (
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/component"
)

// Forms are the forms in which others publish models, besides folders.
var Forms = []Form{
	{"a transformer by its makers", func(t testing.TB, folder string) string { return single(t, folder, 0) }},
	{"a transformer for ComfyUI", func(t testing.TB, folder string) string { return single(t, folder, 1) }},
	{"a whole checkpoint for ComfyUI", func(t testing.TB, folder string) string { return single(t, folder, 2) }},
	{"a transformer in 8-bit floats", func(t testing.TB, folder string) string { return eightBits(t, folder, false) }},
	{"a transformer in scaled 8-bit floats", func(t testing.TB, folder string) string { return eightBits(t, folder, true) }},
	{"a folder that mflux saved", func(t testing.TB, folder string) string { return modeltest.MFluxFolder(t, folder) }},
}

// A Form is a form in which others publish models.
type Form struct {
	Name string
	// Write writes what is in a model folder with weights, and returns the path. What it lacks is in the
	// folder, which is its base model.
	Write func(t testing.TB, folder string) string
}

// single writes one of [modeltest.SingleFiles].
func single(t testing.TB, folder string, which int) string {
	bare, comfy, all := modeltest.SingleFiles(t, folder)
	return []string{bare, comfy, all}[which]
}

// eightBits writes a transformer with [modeltest.WriteEightBits].
func eightBits(t testing.TB, folder string, scaled bool) string {
	path := filepath.Join(t.TempDir(), "fp8.safetensors")
	modeltest.WriteEightBits(t, path, modeltest.Original(t, filepath.Join(folder, component.Transformers)), scaled)
	return path
}
