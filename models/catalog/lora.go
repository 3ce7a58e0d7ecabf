package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/lora"
	"github.com/gomflux/gomflux/picture"
)

// A LoRAFile is a LoRA that was found.
type LoRAFile struct {
	// Name is the LoRA's name as accepted by FindLoRA: a file, or owner/name:file.
	Name string
	// Path is the path of the file.
	Path string
	// Revision is the commit, for a LoRA in the Hugging Face cache.
	Revision string
}

// FindLoRA looks for a LoRA by name: a safetensors file, a folder that contains one, or
// owner/name[@revision][:file] in the Hugging Face cache. The file may be omitted if
// the repository or folder contains only one, or one with the name that diffusers or
// PEFT writes. A name without a slash is also searched for, with or without its
// extension, in the folders listed in LORA_LIBRARY_PATH and in their subfolders. A LoRA
// that is not on this machine is an errs.ErrNotFound.
func FindLoRA(name string) (*LoRAFile, error) {
	if name == "" {
		return nil, errs.NotFound(errors.New("the LoRA name is empty"))
	}
	local := disk.ExpandHome(name)
	info, err := os.Stat(local)
	switch {
	case err == nil && info.IsDir():
		file, err := findLoRAFile(local)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		file = filepath.FromSlash(file)
		return &LoRAFile{Name: filepath.Join(name, file), Path: filepath.Join(local, file)}, nil
	case err == nil:
		if err := refusePickle(local); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return &LoRAFile{Name: name, Path: local}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("LoRA %s: %w", name, oserr.Bare(err))
	}
	repo, revision, file, ok := hub.ParseAddress(name)
	if !ok || file == "" && strings.HasSuffix(name, safetensors) {
		if path := findInLibrary(name); path != "" {
			return &LoRAFile{Name: path, Path: path}, nil
		}
		return nil, errs.NotFound(fmt.Errorf("no LoRA %s: expected a safetensors file, a folder with one, "+
			"or owner/name[@revision][:file] of the Hugging Face hub", name))
	}
	found, err := cachedLoRA(repo, revision, &file)
	switch {
	case errors.Is(err, hub.ErrNotCached):
		return nil, errs.NotFound(fmt.Errorf("no file %s, and %w", name, err))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &LoRAFile{Name: hub.Address(repo, "", file), Path: found, Revision: filepath.Base(snapshotOf(found, file))}, nil
}

// cachedLoRA returns the path of a file in the Hugging Face cache. If *file is empty,
// it is set to the LoRA file in the repository.
func cachedLoRA(repo, revision string, file *string) (string, error) {
	if *file == "" {
		snapshot, err := hub.Find(repo, revision)
		if err == nil {
			*file, err = findLoRAFile(snapshot)
		}
		if err != nil {
			return "", err
		}
	}
	if err := refusePickle(*file); err != nil {
		return "", err
	}
	return hub.FindFile(repo, revision, *file)
}

func refusePickle(name string) error {
	if checkpoint.IsPickle(name) {
		return fmt.Errorf("%w: pickle file, which can run arbitrary code: use a safetensors file of the same LoRA", errs.ErrUnsupported)
	}
	return nil
}

// findLoRAFile returns the slash-separated name of the LoRA file in a folder: a file
// with the name that diffusers or PEFT writes, or the only safetensors file. Files in
// the folder itself take precedence over those in subfolders.
func findLoRAFile(folder string) (string, error) {
	const deepest = 3 // levels of subfolders, so that searching a home folder does not take hours
	var top, below, pickles []string
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || strings.Count(name, "/") >= deepest):
			return fs.SkipDir
		case d.IsDir():
		case strings.HasPrefix(d.Name(), "."):
		case checkpoint.IsPickle(name):
			pickles = append(pickles, name)
		case path.Ext(name) != safetensors:
		case path.Dir(name) == ".":
			top = append(top, name)
		default:
			below = append(below, name)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for _, standard := range []string{"pytorch_lora_weights" + safetensors, "adapter_model" + safetensors} {
		if slices.Contains(top, standard) {
			return standard, nil
		}
	}
	if len(top) == 0 {
		top = below
	}
	switch {
	case len(top) == 1:
		return top[0], nil
	case len(top) > 1:
		return "", fmt.Errorf("expected one LoRA, found %d safetensors files: name one of %s", len(top),
			strings.Join(top[:min(len(top), 8)], ", "))
	case len(pickles) > 0:
		return "", fmt.Errorf("%w: contains no safetensors file, only pickle files, which can run arbitrary code: %s",
			errs.ErrUnsupported, strings.Join(pickles[:min(len(pickles), 3)], ", "))
	}
	return "", errors.New("contains no safetensors file")
}

// library yields the safetensors files in the folders of LORA_LIBRARY_PATH, an environment variable of
// mflux, and in their subfolders.
func library(yield func(path string) bool) {
	for _, folder := range filepath.SplitList(os.Getenv("LORA_LIBRARY_PATH")) {
		stopped := false
		filepath.WalkDir(disk.ExpandHome(folder), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && d != nil && d.IsDir():
				return fs.SkipDir
			case err == nil && !d.IsDir() && filepath.Ext(path) == safetensors && !yield(path):
				stopped = true
				return fs.SkipAll
			}
			return nil
		})
		if stopped {
			return
		}
	}
}

// findInLibrary returns the path of a LoRA in the library, or "" if it is not there.
func findInLibrary(name string) string {
	if strings.ContainsAny(name, `/\:`) {
		return ""
	}
	for path := range library {
		if strings.TrimSuffix(filepath.Base(path), safetensors) == strings.TrimSuffix(name, safetensors) {
			return path
		}
	}
	return ""
}

// ListLoRAs returns the names of the LoRAs that FindLoRA finds without a path, sorted: files in the
// folders of LORA_LIBRARY_PATH, and files in the top folders of repositories in the Hugging Face
// cache. With an error it returns those that were found.
func ListLoRAs() ([]string, error) {
	var names []string
	for path := range library {
		if isLoRA(filepath.Split(path)) {
			names = append(names, strings.TrimSuffix(filepath.Base(path), safetensors))
		}
	}
	repos, err := hub.List()
	for _, r := range repos {
		if r.Snapshot == "" {
			continue
		}
		entries, _ := os.ReadDir(r.Snapshot) // a folder that cannot be read has no LoRAs
		for _, e := range entries {
			if path.Ext(e.Name()) == safetensors && isLoRA(r.Snapshot, e.Name()) {
				names = append(names, hub.Address(r.Name, "", e.Name()))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// NamedLoRA returns the name for [FindLoRA] of a LoRA in a prompt or in the settings of another program: that in
// [ListLoRAs] with the same file name, or else the name itself.
func NamedLoRA(l picture.LoRA) string {
	names, _ := ListLoRAs() // FindLoRA reports what is wrong
	return l.Named(names).Path
}

// isLoRA reports whether a safetensors file has the tensors of a LoRA.
func isLoRA(folder, name string) bool {
	f, err := checkpoint.Open(os.DirFS(folder), name)
	if err != nil {
		return false
	}
	defer f.Close()
	for name := range f.Header.Tensors {
		if lora.IsKey(name) {
			return true
		}
	}
	return false
}
