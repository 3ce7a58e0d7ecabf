package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/errs"
)

// locate finds what is there of a name, whole or not.
func locate(name string) (*Source, error) {
	if b, ok := builtins[name]; ok {
		return &Source{Name: name, Defaults: &b.Defaults, FS: checkpoint.Folder{FS: b.FS, Name: name}}, nil
	}
	if name == "" {
		return nil, fmt.Errorf("%w: the model's name is empty", errs.ErrNotFound)
	}
	folder := ExpandHome(name)
	s := &Source{Name: name, Folder: folder}
	preset, known := presetOf(folder)
	_, err := os.Stat(folder)
	if err != nil {
		if s, preset, known, err = locateCached(name, err); err != nil {
			return nil, err
		}
	}
	if s.Defaults = &preset.Defaults; !known {
		s.Defaults = savedDefaults(s.Folder)
	}
	if s.FS, err = openSource(s.Folder); err != nil {
		return nil, err
	}
	return s, nil
}

// locateCached finds a model in the Hugging Face cache, by a name that is no
// folder's, as missing says, and its preset, if it is known to have one.
func locateCached(name string, missing error) (s *Source, preset Preset, known bool, err error) {
	plain, file, _ := strings.Cut(name, ":")
	repo, revision, published := Published(plain)
	switch {
	case repo == "" && errors.Is(missing, fs.ErrNotExist):
		err = errs.NotFound(fmt.Errorf("no model %s: it is no folder, no owner/name[@revision] of the Hugging Face hub, and none of %s", name, strings.Join(Names(), ", ")))
		return nil, preset, false, err
	case repo == "":
		return nil, preset, false, missing
	case published != nil:
		preset, known = *published, true
	default:
		preset, known = presetOf(repo)
	}
	found, snapshot, err := findCached(repo, revision, file)
	if errors.Is(err, hub.ErrNotCached) {
		if strings.Contains(name, "/") { // it may have been meant as one
			err = fmt.Errorf("no folder %s, and %w", name, err)
		}
		if published != nil && preset.Gated {
			err = fmt.Errorf("%w; it is gated: %s", err, preset.Access())
		}
		err = errs.NotFound(err)
	}
	if err != nil {
		return nil, preset, known, err
	}
	return &Source{Name: hub.Address(repo, "", file), Folder: found, Revision: filepath.Base(snapshot)}, preset, known, nil
}

// findCached is where a repository is in the Hugging Face cache, or a file of it,
// with the snapshot's folder.
func findCached(repo, revision, file string) (found, snapshot string, err error) {
	if file == "" {
		found, err = hub.Find(repo, revision)
		return found, found, err
	}
	found, err = hub.FindFile(repo, revision, file)
	return found, snapshotOf(found, file), err
}

// snapshotOf is the folder of the snapshot that a file was found in.
func snapshotOf(found, file string) string {
	return strings.TrimSuffix(found, string(filepath.Separator)+filepath.FromSlash(file))
}

// openSource opens what is at a path: a folder or a safetensors file.
func openSource(name string) (fs.FS, error) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return checkpoint.OpenFolder(name)
	}
	switch ext := strings.ToLower(filepath.Ext(name)); {
	case ext == safetensors || ext == ".sft":
		dir, _ := filepath.Split(name)
		return checkpoint.Folder{FS: os.DirFS(filepath.Join(dir, ".")), Name: dir}, nil
	case ext == ".gguf":
		return nil, fmt.Errorf("%w: %s: is a GGUF file: MLX cannot read all of its quantizations (not Q3_K, Q5_0, Q5_1, Q5_K and the IQ ones), and most others only "+
			"as float16 and all at once; take the safetensors of the same model, and --quantize", errs.ErrUnsupported, name)
	case checkpoint.IsPickle(name):
		return nil, fmt.Errorf("%w: %s: is a pickle file, which can run any code: take the safetensors of the same model", errs.ErrUnsupported, name)
	}
	return checkpoint.OpenFolder(name)
}
