package models_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
)

// TestTruncatedFile truncates a file while its tensors are read.
func TestTruncatedFile(t *testing.T) {
	for at, name := range map[string]string{
		"transformer": "transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
		"vae":         "vae/diffusion_pytorch_model.safetensors",
	} {
		t.Run(at, func(t *testing.T) {
			dir := modeltest.Copy(t, modeltest.Folder(t, "zimage-ordinary"))
			file := filepath.Join(dir, name)
			folder, err := checkpoint.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			err = mlx.Do(t.Context(), func() error {
				p, err := models.Load(folder, models.LoadOptions{Progress: func(p models.Progress) {
					if p.Component == at {
						os.Truncate(file, 9000)
					}
				}})
				if err == nil {
					p.Close()
				}
				return err
			})
			// MLX notices some reads that fail, and nn those that MLX does not
			if err == nil || !strings.Contains(err.Error(), file+": tensor ") || !strings.Contains(err.Error(),
				"cut short") && !strings.Contains(err.Error(), "Unable to read") {
				t.Errorf("error %v", err)
			}
		})
	}
}
