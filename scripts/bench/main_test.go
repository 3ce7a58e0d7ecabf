package main

import (
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/modeltest"
)

// TestStepFLOPs: a step has two passes where the family says that guidance asks for
// them, and a model that keeps what it made of images has no count.
func TestStepFLOPs(t *testing.T) {
	count := func(folder string, guidance float64, images int) (float64, error) {
		return stepFLOPs(os.DirFS(modeltest.Folder(t, folder)), &report{Guidance: guidance, Images: images, Image: 48, Tokens: 20})
	}
	for _, test := range []struct {
		folder   string
		off, on  float64 // values of guidance
		passes   float64 // with the latter
		pictures int
	}{
		{"zimage-ordinary", 0, 1, 2, 0},
		{"flux1-dev-small", 1, 3.5, 1, 0}, // an input of the transformer
		{"flux2-klein", 1, 1, 1, 2},
		{"flux2-klein-base", 1, 4, 2, 0},
		{"flux2-klein-kv", 1, 1, 1, 0},
		{"qwen-image-ordinary", 1, 4, 2, 0},
		{"qwen-edit-plus", 1, 4, 2, 2},
	} {
		off, err := count(test.folder, test.off, test.pictures)
		if err != nil || off <= 0 {
			t.Errorf("%s: %g FLOPs, %v", test.folder, off, err)
		}
		on, err := count(test.folder, test.on, test.pictures)
		if err != nil || on != test.passes*off {
			t.Errorf("%s: %g FLOPs with guidance %g and %g with %g, %v", test.folder, off, test.off, on, test.on, err)
		}
	}
	if _, err := count("flux2-klein-kv", 1, 1); err == nil || !strings.Contains(err.Error(), "no FLOP count for a Flux2KleinKVPipeline") {
		t.Errorf("error %v", err)
	}
}
