package models

import (
	"path/filepath"
	"strings"
)

// A Preset is a published model: its short name, where it is, and the settings
// its makers recommend where those are not its pipeline class's.
type Preset struct {
	Name     string
	Repo     string
	Defaults Defaults
}

// Presets holds the published models that are known by name.
var Presets = []Preset{
	{"z-image-turbo", "Tongyi-MAI/Z-Image-Turbo", Defaults{Steps: 8, Guidance: 0, Height: 1024, Width: 1024, MaxSequenceLength: 512}},
	{"z-image", "Tongyi-MAI/Z-Image", Defaults{Steps: 50, Guidance: 5, Height: 1024, Width: 1024, MaxSequenceLength: 512}},
}

// FindPreset returns the preset of a short name, of a repository, or of a
// folder that is named after one. A folder of another name can hold anything.
func FindPreset(model string) (Preset, bool) {
	base := filepath.Base(filepath.Clean(model))
	for _, p := range Presets {
		_, repo, _ := strings.Cut(p.Repo, "/")
		if strings.EqualFold(model, p.Name) || strings.EqualFold(model, p.Repo) || strings.EqualFold(base, repo) {
			return p, true
		}
	}
	return Preset{}, false
}
