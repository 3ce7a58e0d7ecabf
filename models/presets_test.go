package models_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/models"
)

func TestFindPreset(t *testing.T) {
	tests := map[string]string{
		"z-image-turbo":              "z-image-turbo",
		"Tongyi-MAI/Z-Image-Turbo":   "z-image-turbo",
		"./Z-Image-Turbo":            "z-image-turbo",
		"/data/models/z-image-turbo": "z-image-turbo",
		"Z-Image/":                   "z-image",
		"Tongyi-MAI/Z-Image":         "z-image",
		"Z-Image-Turbo-mine":         "",
		"shapes":                     "",
		".":                          "",
		"/c/models--Tongyi-MAI--Z-Image-Turbo/snapshots/c0ffee/": "z-image-turbo",
		"/c/models--someone--Z-Image/snapshots/c0ffee":           "z-image",
		"/c/models--someone--mine/snapshots/Z-Image":             "",
	}
	for model, want := range tests {
		if p, ok := models.FindPreset(model); p.Name != want || ok != (want != "") {
			t.Errorf("%s: preset %q, %v, expected %q", model, p.Name, ok, want)
		}
	}

	dir := filepath.Join(t.TempDir(), "Z-Image-Turbo", "vae")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if p, ok := models.FindPreset(".."); !ok || p.Name != "z-image-turbo" {
		t.Errorf("..: preset %q, %v, expected z-image-turbo", p.Name, ok)
	}
}
