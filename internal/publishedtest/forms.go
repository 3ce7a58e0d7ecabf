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
	original := modeltest.Original(t, filepath.Join(folder, component.Transformers))
	eight, scaled := filepath.Join(t.TempDir(), "fp8.safetensors"), filepath.Join(t.TempDir(), "fp8_scaled.safetensors")
	modeltest.WriteEightBits(t, eight, original, false)
	modeltest.WriteEightBits(t, scaled, original, true)
	return []Form{
		{"a transformer by its makers", bare},
		{"a transformer for ComfyUI", comfy},
		{"a whole checkpoint for ComfyUI", all},
		{"a transformer in 8-bit floats", eight},
		{"a transformer in scaled 8-bit floats", scaled},
		{"a folder that mflux saved", modeltest.MFluxFolder(t, folder)},
	}
}
