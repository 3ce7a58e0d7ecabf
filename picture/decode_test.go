package picture

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDecodeIsPillows(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "want", "*.*.png"))
	if err != nil || len(names) < 20 {
		t.Fatalf("found %d references: %v", len(names), err)
	}
	for _, want := range names {
		base := filepath.Base(want)
		name := base[:len(base)-len(".png")]
		t.Run(name, func(t *testing.T) {
			p, err := ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			most := 0 // levels; libjpeg and libwebp round otherwise
			if ext := filepath.Ext(name); ext == ".jpg" || strings.HasPrefix(name, "lossy") {
				most = 2
			}
			if d := worst(t, p.Image, readPNG(t, want)); d > most {
				t.Errorf("off by up to %d levels", d)
			}
		})
	}
}
