package catalog

import (
	"io/fs"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Origin is the name of the model that a source is of: a built-in one, or the
// repository of a preset; "" for one that is not known.
func (s *Source) Origin() string {
	if s.Folder == "" {
		return s.Name
	}
	if _, ok := builtins[s.Base]; ok {
		return s.Base
	}
	name, _, _ := strings.Cut(s.Name, ":")
	for _, name := range []string{s.Base, name, s.Folder} {
		if p, ok := FindPreset(name); ok && name != "" {
			return p.Repo
		}
	}
	saved := savedOf(s.Folder)
	if _, ok := builtins[saved]; ok {
		return saved
	}
	p, _ := findNamed(saved)
	return p.Repo
}

// savedDefaults are those of the model that a folder was saved of; nil for none.
func savedDefaults(folder string) *family.Defaults {
	name := savedOf(folder)
	if b, ok := builtins[name]; ok {
		return &b.Defaults
	}
	if p, ok := findNamed(name); ok {
		return &p.Defaults
	}
	return nil
}

// savedOf is the name of the model that a folder was saved of, by gomflux or by
// mflux; "" for none that is known.
func savedOf(folder string) string {
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		return ""
	}
	var members map[string]any
	if checkpoint.ReadJSON(fsys, index.File, &members) == nil {
		if name, _ := members[index.OriginKey].(string); name != "" {
			return name
		}
	}
	return savedByMFlux(fsys)
}

// savedByMFlux is the name of the preset that mflux saved a folder of, by the file
// that it puts there, "" for none that is known.
func savedByMFlux(fsys fs.FS) string {
	var saved struct {
		Model    string `json:"model_name"`
		Base     string `json:"base_model"`
		Upstream *struct {
			Repo string `json:"repo_id"`
		} `json:"upstream"`
	}
	if checkpoint.ReadJSON(fsys, index.MFluxFile, &saved) != nil {
		return ""
	}
	names := []string{saved.Model, saved.Base}
	if saved.Upstream != nil {
		names = append(names, saved.Upstream.Repo)
	}
	for _, name := range names {
		if p, ok := findNamed(name); ok {
			return p.Name
		}
	}
	return ""
}
