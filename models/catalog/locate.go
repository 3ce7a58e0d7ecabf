package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// locate finds the built-in model, folder, file or cached repository of a name. The
// result need not be a whole model.
func locate(name string) (*Source, error) {
	if b, ok := builtins[name]; ok {
		return &Source{Name: name, Defaults: &b.Defaults, FS: checkpoint.Folder{FS: b.FS, Name: name}}, nil
	}
	if name == "" {
		return nil, fmt.Errorf("%w: the model name is empty", errs.ErrNotFound)
	}
	folder := disk.ExpandHome(name)
	s := &Source{Name: name, Folder: folder}
	preset, known := presetOfFolder(folder)
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
	s.FS, err = withSubfolders(s.FS, s.Folder)
	return s, err
}

// withSubfolders returns a model's folder in which each component has a folder of its name, also those for which the
// index of a modular pipeline names another one, such as a tokenizer next to the text encoder, or which have another
// one in mflux's layout.
func withSubfolders(fsys fs.FS, name string) (fs.FS, error) {
	x, err := index.Read(fsys)
	if err != nil {
		return fsys, nil // the error is reported when the model is opened
	}
	folders := map[string]string{}
	maps.Copy(folders, x.Subfolders)
	class := family.Find(x.Class)
	if _, err := fs.Stat(fsys, index.MFluxFile); err == nil && class != nil {
		for _, m := range class.Components {
			if m.MFluxFolder != "" {
				folders[m.Folder] = m.MFluxFolder
			}
		}
	}
	if len(folders) == 0 {
		return fsys, nil
	}
	o := &overlay{name: name, lower: fsys, hidden: map[string]bool{}, files: map[string]overlayFile{}}
	for dir, sub := range folders {
		part, err := listFiles(fsys, sub)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for file, f := range part.files {
			class := x.Components[dir] // "" for a tokenizer that only mflux's layout has elsewhere
			weights := class != "" && index.IsModel(class)
			if _, err := fs.Stat(fsys, path.Join(dir, file)); err != nil && (weights || !strings.Contains(file, safetensors)) {
				o.files[path.Join(dir, file)] = f
			}
		}
	}
	return o, nil
}

// locateCached finds a model in the Hugging Face cache, and its preset if it is a
// published model that is known. The error missing is why the name is not a folder.
func locateCached(name string, missing error) (s *Source, preset Preset, known bool, err error) {
	plain, file, _ := strings.Cut(name, ":")
	repo, revision, published := Published(plain)
	switch {
	case repo == "" && errors.Is(missing, fs.ErrNotExist):
		err = errs.NotFound(fmt.Errorf("no model %s: expected a folder, a file, "+
			"owner/name[@revision] of the Hugging Face hub, or one of %s", name, strings.Join(Names(), ", ")))
		return nil, preset, false, err
	case repo == "":
		return nil, preset, false, missing
	case published != nil:
		preset, known = *published, true
	default:
		preset, known = presetOfFolder(repo)
	}
	found, snapshot, err := findCached(repo, revision, file)
	if errors.Is(err, hub.ErrNotCached) {
		if strings.Contains(name, "/") { // it may have been meant as a folder
			err = fmt.Errorf("no folder %s, and %w", name, err)
		}
		if published != nil && preset.Licence.Terms != "" {
			err = fmt.Errorf("%w; %s", err, preset.Licence.Summary())
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

// findCached returns the path of a repository in the Hugging Face cache, or of a file
// in it, and the folder of the snapshot.
func findCached(repo, revision, file string) (found, snapshot string, err error) {
	if file == "" {
		found, err = hub.Find(repo, revision)
		return found, found, err
	}
	found, err = hub.FindFile(repo, revision, file)
	return found, snapshotOf(found, file), err
}

// snapshotOf returns the folder of the snapshot in which a file was found.
func snapshotOf(found, file string) string {
	return strings.TrimSuffix(found, string(filepath.Separator)+filepath.FromSlash(file))
}

// openSource opens a folder, or the folder of a safetensors file.
func openSource(name string) (fs.FS, error) {
	info, err := os.Stat(name)
	other := checkpoint.FormatNamed(name)
	switch ext := strings.ToLower(filepath.Ext(name)); {
	case err != nil, other == nil && !info.Mode().IsRegular():
	case ext == safetensors || ext == ".sft":
		dir, _ := filepath.Split(name)
		return checkpoint.Folder{FS: os.DirFS(filepath.Join(dir, ".")), Name: dir}, nil
	case other != nil && (info.Mode().IsRegular() || slices.Contains([]string{".mlpackage", ".mlmodelc"}, ext)):
		return nil, fmt.Errorf("%w: %s: %v", errs.ErrUnsupported, name, other)
	}
	return checkpoint.OpenFolder(name)
}
