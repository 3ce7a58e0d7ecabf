package models

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
)

// A Builtin is a model inside the program.
type Builtin struct {
	FS       fs.FS
	Defaults Defaults
	About    string // one line for lists
}

var builtins = map[string]Builtin{}

// Register makes a built-in model known by name, for the packages that embed
// one.
func Register(name string, b Builtin) {
	if _, ok := builtins[name]; ok {
		panic("models: " + name + " is registered twice")
	}
	builtins[name] = b
}

// Builtins are the registered models by name.
func Builtins() map[string]Builtin { return maps.Clone(builtins) }

// A Source is where a model was found.
type Source struct {
	Name     string    // as Find takes it: a built-in or published model's name, a folder or a file
	Folder   string    // on disk, or the file; "" for a built-in model
	Revision string    // the commit, of a model in the Hugging Face cache
	Defaults *Defaults // nil: those of its pipeline class
	Base     string    // the model that what a single file lacks is taken from; "" for a whole model
	FS       fs.FS
}

// ErrNotFound is wrapped by Find's errors about models that are not on this
// machine.
var ErrNotFound = errors.New("not on this machine")

// Find looks for a model by name: a built-in one, a folder, or a published one
// in the Hugging Face cache, by its short name, an alias or its repository's,
// with @ and a branch, a tag or a commit where it is not to be the main branch,
// and with a colon and the name of a single file.
// A folder that is there wins over a published model of its name. A file, and a
// folder without a model_index.json, is completed as by FindWith.
func Find(name string) (*Source, error) { return FindWith(name, "") }

// find is Find for what is there.
func find(name string) (*Source, error) {
	if b, ok := builtins[name]; ok {
		return &Source{Name: name, Defaults: &b.Defaults, FS: checkpoint.Folder{FS: b.FS, Name: name}}, nil
	}
	if name == "" {
		return nil, fmt.Errorf("%w: the model's name is empty", ErrNotFound)
	}
	folder := ExpandHome(name)
	s := &Source{Name: name, Folder: folder}
	preset, known := presetOf(folder)
	_, err := os.Stat(folder)
	if err != nil {
		plain, file, _ := strings.Cut(name, ":")
		repo, revision, published := Published(plain)
		if published != nil {
			preset, known = *published, true
		} else if repo != "" {
			preset, known = presetOf(repo)
		}
		switch {
		case repo != "":
			found, snapshot, hubErr := findCached(repo, revision, file)
			if errors.Is(hubErr, hub.ErrNotCached) {
				if strings.Contains(name, "/") { // it may have been meant as one
					hubErr = fmt.Errorf("no folder %s, and %w", name, hubErr)
				}
				if published != nil && preset.Gated {
					hubErr = fmt.Errorf("%w; it is gated: %s", hubErr, preset.Access())
				}
				hubErr = notFound{hubErr}
			}
			if hubErr != nil {
				return nil, hubErr
			}
			s.Name, s.Folder, s.Revision = hub.Address(repo, "", file), found, filepath.Base(snapshot)
		case errors.Is(err, fs.ErrNotExist):
			return nil, notFound{fmt.Errorf("no model %s: it is no folder, no owner/name[@revision] of the Hugging Face hub, and none of %s", name, strings.Join(Names(), ", "))}
		default:
			return nil, err
		}
	}
	if s.Defaults = preset.Defaults; !known {
		s.Defaults = savedDefaults(s.Folder)
	}
	if s.FS, err = openSource(s.Folder); err != nil {
		return nil, err
	}
	return s, nil
}

// findCached is where a repository is in the Hugging Face cache, or a file of it,
// with the snapshot's folder.
func findCached(repo, revision, file string) (found, snapshot string, err error) {
	if file == "" {
		found, err = hub.Find(repo, revision)
		return found, found, err
	}
	found, err = hub.FindFile(repo, revision, file)
	return found, strings.TrimSuffix(found, string(filepath.Separator)+filepath.FromSlash(file)), err
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

// ExpandHome replaces a leading ~ or ~/ by the user's home folder.
func ExpandHome(name string) string {
	rest, ok := strings.CutPrefix(name+"/", "~/")
	if !ok {
		return name
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return name
	}
	return filepath.Join(home, rest)
}

// TildePath is a path as it can be shown to others: without the home folder's
// own name, with ~ in its place. Find takes it back.
func TildePath(name string) string {
	home, err := os.UserHomeDir()
	if home = filepath.Clean(home); err != nil || home == "/" || home == "." {
		return name
	}
	if name == home {
		return "~"
	}
	if rest, ok := strings.CutPrefix(name, home+string(filepath.Separator)); ok {
		return "~/" + rest
	}
	return name
}

// notFound is an error in its own words that is ErrNotFound.
type notFound struct{ error }

func (e notFound) Unwrap() error      { return e.error }
func (notFound) Is(target error) bool { return target == ErrNotFound }

// Names are the names that models are known by, without aliases: built-in ones,
// then published ones.
func Names() []string {
	names := slices.Sorted(maps.Keys(builtins))
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return names
}
