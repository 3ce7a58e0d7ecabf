package publishedtest

import (
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/models/component"
)

// A Form is a form in which others publish models, besides folders.
type Form struct {
	Name, Path string
}

// WriteForms writes what is in a model folder with weights in all forms. What a form lacks is in the folder, which
// is its base model.
func WriteForms(t testing.TB, folder string) []Form {
	bare, comfy, all := modeltest.SingleFiles(t, folder)
	return []Form{
		{"a transformer by its makers", bare},
		{"a transformer for ComfyUI", comfy},
		{"a whole checkpoint for ComfyUI", all},
		{"a transformer in 8-bit floats", eightBits(t, folder, false)},
		{"a transformer in scaled 8-bit floats", eightBits(t, folder, true)},
		{"a folder that mflux saved", modeltest.MFluxFolder(t, folder)},
	}
}

// eightBits writes a transformer with [modeltest.WriteEightBits].
func eightBits(t testing.TB, folder string, scaled bool) string {
	path := filepath.Join(t.TempDir(), "fp8.safetensors")
	modeltest.WriteEightBits(t, path, modeltest.Original(t, filepath.Join(folder, component.Transformers)), scaled)
	return path
}
