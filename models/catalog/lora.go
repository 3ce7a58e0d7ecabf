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
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/models/errs"
)

// A LoRAFile is where a LoRA was found.
type LoRAFile struct {
	// Name is what FindLoRA takes: a file, or owner/name:file.
	Name string
	// Path is the file.
	Path string
	// Revision is the commit, of one in the Hugging Face cache.
	Revision string
}

// FindLoRA looks for a LoRA by name: a safetensors file, a folder with one, or
// owner/name[@revision][:file] in the Hugging Face cache, where a repository of
// one LoRA needs no file. Of several files it is the one that diffusers or PEFT
// writes. A name without a folder is also looked for below the folders that
// LORA_LIBRARY_PATH lists, without its extension. What is not on this machine is
// errs.ErrNotFound.
func FindLoRA(name string) (*LoRAFile, error) {
	if name == "" {
		return nil, errs.NotFound(errors.New("the LoRA's name is empty"))
	}
	local := ExpandHome(name)
	info, err := os.Stat(local)
	switch {
	case err == nil && info.IsDir():
		file, err := loraIn(local)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		file = filepath.FromSlash(file)
		return &LoRAFile{Name: filepath.Join(name, file), Path: filepath.Join(local, file)}, nil
	case err == nil:
		if err := checkLoRAName(local); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return &LoRAFile{Name: name, Path: local}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("LoRA %s: %w", name, oserr.Bare(err))
	}
	repo, revision, file, ok := hub.ParseAddress(name)
	if !ok || file == "" && strings.HasSuffix(name, safetensors) {
		if path := inLibrary(name); path != "" {
			return &LoRAFile{Name: path, Path: path}, nil
		}
		return nil, errs.NotFound(fmt.Errorf("no LoRA %s: there is no such file, and it is no owner/name[@revision][:file] of the Hugging Face hub", name))
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

// cachedLoRA is the path of a file in the Hugging Face cache. Where it is not
// named, its name is found.
func cachedLoRA(repo, revision string, file *string) (string, error) {
	if *file == "" {
		snapshot, err := hub.Find(repo, revision)
		if err == nil {
			*file, err = loraIn(snapshot)
		}
		if err != nil {
			return "", err
		}
	}
	if err := checkLoRAName(*file); err != nil {
		return "", err
	}
	return hub.FindFile(repo, revision, *file)
}

func checkLoRAName(name string) error {
	if checkpoint.IsPickle(name) {
		return fmt.Errorf("%w: it is a pickle file, which can run any code (there may be one of safetensors beside it)", errs.ErrUnsupported)
	}
	return nil
}

// loraIn is the file in a folder that holds its LoRA: one with the name that
// diffusers or PEFT gives it, or the only one, at the top if there is one. It has
// slashes in its name.
func loraIn(folder string) (string, error) {
	const deepest = 3 // a home folder must not be searched for hours
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
	for _, usual := range []string{"pytorch_lora_weights" + safetensors, "adapter_model" + safetensors} {
		if slices.Contains(top, usual) {
			return usual, nil
		}
	}
	if len(top) == 0 {
		top = below
	}
	switch {
	case len(top) == 1:
		return top[0], nil
	case len(top) > 1:
		return "", fmt.Errorf("has %d safetensors files, expected one LoRA: name the file, one of %s", len(top), strings.Join(top[:min(len(top), 8)], ", "))
	case len(pickles) > 0:
		return "", fmt.Errorf("%w: has no safetensors file, only %s, which can run any code", errs.ErrUnsupported, strings.Join(pickles[:min(len(pickles), 3)], ", "))
	}
	return "", errors.New("has no safetensors file")
}

// inLibrary is the file of a LoRA's name in the folders of LORA_LIBRARY_PATH, as
// mflux has it.
func inLibrary(name string) (found string) {
	if strings.ContainsAny(name, `/\:`) {
		return ""
	}
	for _, folder := range filepath.SplitList(os.Getenv("LORA_LIBRARY_PATH")) {
		filepath.WalkDir(ExpandHome(folder), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && d != nil && d.IsDir():
				return fs.SkipDir
			case err != nil || d.IsDir() || filepath.Ext(path) != safetensors:
				return nil
			case strings.TrimSuffix(d.Name(), safetensors) == strings.TrimSuffix(name, safetensors):
				found = path
				return fs.SkipAll
			}
			return nil
		})
		if found != "" {
			return found
		}
	}
	return ""
}
