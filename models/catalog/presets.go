package catalog

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/family"
)

// A Preset is a published model with a short name.
type Preset = family.Model

// Presets holds the published models of all families.
var Presets = func() (presets []Preset) {
	for _, f := range family.All {
		presets = append(presets, f.Models...)
	}
	return presets
}()

// Names returns the names of all known models, without aliases: built-in models, then
// published ones.
func Names() []string {
	names := slices.Sorted(maps.Keys(builtins))
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return names
}

// Published splits the name of a published model into its repository and the revision
// after @, which is empty for the main branch. The repository is empty if the name
// cannot be that of a published model. The preset is nil for a model without one.
func Published(name string) (repo, revision string, preset *Preset) {
	plain, revision, pinned := strings.Cut(name, "@")
	if pinned && !hub.IsRevision(revision) {
		return "", "", nil
	}
	if p, ok := presetByName(plain); ok {
		return p.Repo, revision, &p // in the spelling of the cache, which is case-sensitive
	}
	if hub.IsRepo(plain) {
		return plain, revision, nil
	}
	return "", "", nil
}

// FindPreset returns the preset with a short name, an alias or a repository, or the
// preset of a folder: a snapshot of its repository in a Hugging Face cache, or a folder
// with the preset's name or that of its repository. An alias is not looked for among
// the names of folders.
func FindPreset(model string) (Preset, bool) {
	if p, ok := presetByName(model); ok {
		return p, true
	}
	return presetOfFolder(model)
}

// presetByName returns the preset with a name, an alias or a repository, ignoring case.
func presetByName(name string) (Preset, bool) {
	is := func(own string) bool { return strings.EqualFold(name, own) }
	for _, p := range Presets {
		if is(p.Name) || is(p.Repo) || slices.ContainsFunc(p.Aliases, is) {
			return p, true
		}
	}
	return Preset{}, false
}

// presetOfFolder returns the preset of a folder, which it recognises by the folder's
// name.
func presetOfFolder(folder string) (Preset, bool) {
	folder = filepath.Clean(folder)
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs // so that . and .. have a name
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
