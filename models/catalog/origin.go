package catalog

import (
	"io/fs"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// Origin returns the name of the model that a source is, or was saved from: a built-in
// model's name or the repository of a preset, "" if it is unknown.
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
	saved := savedModelName(s.Folder)
	if _, ok := builtins[saved]; ok {
		return saved
	}
	p, _ := presetByName(saved)
	return p.Repo
}

// savedDefaults returns the recommended settings of the model that a folder was saved
// from, nil if it is unknown.
func savedDefaults(folder string) *family.Defaults {
	name := savedModelName(folder)
	if b, ok := builtins[name]; ok {
		return &b.Defaults
	}
	if p, ok := presetByName(name); ok {
		return &p.Defaults
	}
	return nil
}

// savedModelName returns the name of the model that gomflux or mflux saved a folder
// from, "" if it is unknown.
func savedModelName(folder string) string {
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		return ""
	}
	var members map[string]any
	if checkpoint.ReadJSON(fsys, index.Name(fsys), &members) == nil {
		if name, _ := members[index.OriginKey].(string); name != "" {
			return name
		}
	}
	return mfluxModelName(fsys)
}

// mfluxModelName returns the name of the preset that mflux saved a folder from, which
// it records in index.MFluxFile, or "" if it is unknown.
func mfluxModelName(fsys fs.FS) string {
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
		if p, ok := presetByName(name); ok {
			return p.Name
		}
	}
	return ""
}
