package models_test

import (
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
	}
	for model, want := range tests {
		if p, ok := models.FindPreset(model); p.Name != want || ok != (want != "") {
			t.Errorf("%s: preset %q, %v, expected %q", model, p.Name, ok, want)
		}
	}
}
