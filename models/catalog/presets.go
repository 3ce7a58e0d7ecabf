package catalog

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/family"
)

// A Preset is a published model that is known by name.
type Preset = family.Model

// Presets holds the published models of all families.
var Presets = func() (presets []Preset) {
	for _, f := range family.All {
		presets = append(presets, f.Models...)
	}
	return presets
}()

// Names are the names that models are known by, without aliases: built-in ones,
// then published ones.
func Names() []string {
	names := slices.Sorted(maps.Keys(builtins))
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return names
}

// Published takes the name of a published model apart: its repository, "" for
// a name that is none's, and the revision after @, "" for the main branch. The
// preset is nil for a model that is not known by name.
func Published(name string) (repo, revision string, preset *Preset) {
	plain, revision, pinned := strings.Cut(name, "@")
	if pinned && !hub.IsRevision(revision) {
		return "", "", nil
	}
	if p, ok := findNamed(plain); ok {
		return p.Repo, revision, &p // the cache minds the case
	}
	if hub.IsRepo(plain) {
		return plain, revision, nil
	}
	return "", "", nil
}

// FindPreset returns the preset of a short name, an alias, a repository, or a
// folder: a snapshot of its repository in a Hugging Face cache, or one that has its
// name or that of its repository. Find takes a folder that is there for no alias.
func FindPreset(model string) (Preset, bool) {
	if p, ok := findNamed(model); ok {
		return p, true
	}
	return presetOf(model)
}

// findNamed returns the preset that has a name, in any case: its own, an alias
// or its repository.
func findNamed(name string) (Preset, bool) {
	is := func(own string) bool { return strings.EqualFold(name, own) }
	for _, p := range Presets {
		if is(p.Name) || is(p.Repo) || slices.ContainsFunc(p.Aliases, is) {
			return p, true
		}
	}
	return Preset{}, false
}

// presetOf returns the preset of a folder. One of another name can hold anything.
func presetOf(folder string) (Preset, bool) {
	folder = filepath.Clean(folder)
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs // the name of . and .. too
	}
	base := filepath.Base(folder)
	if repo, ok := hub.RepoOf(folder); ok {
		_, base, _ = strings.Cut(repo, "/")
	}
	for _, p := range Presets {
		if strings.EqualFold(base, p.RepoName()) || strings.EqualFold(base, p.Name) {
			return p, true
		}
	}
	return Preset{}, false
}
