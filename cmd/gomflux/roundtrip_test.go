package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestRoundtripGolden takes diffusers' image to latents and back.
func TestRoundtripGolden(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "alone/vae"), os.DirFS(filepath.Join(tinyModel, "vae"))); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"alone", "alone/vae"} {
		stdout, stderr, code := runProgram(t, dir, "roundtrip",
			absolute(goldens+"zimage-ordinary/encode/picture.png"), "-m", model, "-o", "out.png", "--overwrite", "--json")
		if code != 0 || stderr != "" {
			t.Fatalf("%s: exit code %d, %s", model, code, stderr)
		}
		checkPixels(t, filepath.Join(dir, "out.png"), "zimage-ordinary/roundtrip/tensors.safetensors")
		var report struct {
			PSNR, Mean float64
			Largest    int
			File       string
		}
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatal(err)
		}
		// as NumPy has them for diffusers' image
		if math.Abs(report.PSNR-7.887) > 0.005 || math.Abs(report.Mean-84.498) > 0.05 || report.Largest != 255 || report.File != "out.png" {
			t.Errorf("%s: report %+v", model, report)
		}
	}
}
