package parity

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHasModel looks for the models of runs, which are folders, or files of networks.
func TestHasModel(t *testing.T) {
	gone := t.TempDir()
	if err := os.WriteFile(filepath.Join(gone, "settings.json"), []byte(`{"model": "gone.safetensors"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	const project = "../../../../"
	for run, want := range map[string]bool{
		project + "upscaler/testdata/runs/real-esrgan/dump": true, project + "upscaler/testdata/runs/seedvr2/dump": true,
		project + "models/testdata/zimage-small/dump": true, gone: false, t.TempDir(): false,
	} {
		if hasModel(run) != want {
			t.Errorf("%s: expected %t", run, want)
		}
	}
}
