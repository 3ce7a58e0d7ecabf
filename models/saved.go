package models

import (
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// originKey is a key of model_index.json, which diffusers' pipelines have in
// memory: the model that a folder was saved of. Nothing else would tell the
// settings that a saved model is meant to be run with.
const originKey = "_name_or_path"

// savedOf is the name of the model that a folder was saved of, by gomflux or by
// mflux; "" for none that is known.
func savedOf(folder string) string {
	fsys, err := checkpoint.OpenFolder(folder)
	if err != nil {
		return ""
	}
	var index map[string]any
	if checkpoint.ReadJSON(fsys, indexFile, &index) == nil {
		if name, _ := index[originKey].(string); name != "" {
			return name
		}
	}
	return savedFrom(fsys)
}

// savedDefaults are those of the model that a folder was saved of; nil for none,
// and for those of the pipeline class.
func savedDefaults(folder string) *Defaults {
	name := savedOf(folder)
	if b, ok := builtins[name]; ok {
		return &b.Defaults
	}
	p, _ := findNamed(name)
	return p.Defaults
}

// origin is the name of the model that a source is of: a built-in one, or the
// repository of a preset; "" for one that is not known.
func (s *Source) origin() string {
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
