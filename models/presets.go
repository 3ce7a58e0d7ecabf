package models

import (
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/hub"
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

// FindPreset returns the preset of a short name, of a repository, of a snapshot
// of that in a Hugging Face cache, or of a folder that is named after one. A
// folder of another name can hold anything.
func FindPreset(model string) (Preset, bool) {
	folder := filepath.Clean(model)
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs // the name of . and .. too
	}
	base := filepath.Base(folder)
	if repo, ok := hub.RepoOf(folder); ok {
		_, base, _ = strings.Cut(repo, "/")
	}
	for _, p := range Presets {
		_, repo, _ := strings.Cut(p.Repo, "/")
		if strings.EqualFold(model, p.Name) || strings.EqualFold(model, p.Repo) || strings.EqualFold(base, repo) {
			return p, true
		}
	}
	return Preset{}, false
}
