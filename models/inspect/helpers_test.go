package inspect_test

import (
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/inspect"
)

// vaeFile is the one file of the tiny model's autoencoder.
const vaeFile = "vae/diffusion_pytorch_model.safetensors"

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
