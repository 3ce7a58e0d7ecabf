package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/hub"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/shapes"
	"github.com/gomflux/gomflux/weights"
)

// A builtin is a model inside this program.
type builtin struct {
	files    fs.FS
	defaults gomflux.Defaults
	about    string
}

// builtins holds the built-in models by name.
var builtins = map[string]builtin{
	"shapes": {shapes.FS, shapes.Defaults, "one or two coloured shapes"},
}

func builtinNames() []string { return slices.Sorted(maps.Keys(builtins)) }

// presetNames are the short names of published models.
func presetNames() (names []string) {
	for _, p := range models.Presets {
		names = append(names, p.Name)
	}
	return names
}

// defaultModel is what --model stands at where it is on the machine.
const defaultModel = "z-image-turbo"

// findModel resolves what --model was given: a built-in model, a folder, or a
// published model, by its short name or its repository's, in the Hugging Face
// cache. The settings are nil where those of the model's class apply.
func findModel(name string) (fs.FS, *gomflux.Defaults, error) {
	if b, ok := builtins[name]; ok {
		return weights.Folder{FS: b.files, Name: name}, &b.defaults, nil
	}
	folder, err := findFolder(name)
	if err != nil {
		return nil, nil, err
	}
	fsys, err := weights.OpenFolder(folder)
	if err != nil {
		return nil, nil, coded(exitModel, err)
	}
	if _, err := fs.Stat(fsys, "model_index.json"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, coded(exitModel, fmt.Errorf("model folder %s: has no model_index.json (gomflux reads the layout of Hugging Face diffusers)", folder))
	}
	if preset, ok := models.FindPreset(cmp.Or(name, defaultModel)); ok {
		return fsys, &preset.Defaults, nil
	}
	return fsys, nil, nil
}

// findFolder returns the folder of a model that is not built in. A folder that
// is there wins over a published model of its name.
func findFolder(name string) (string, error) {
	if name == "" {
		preset, _ := models.FindPreset(defaultModel)
		folder, err := hub.Find(preset.Repo)
		if err != nil {
			return "", usageErrorf("no model given, and the default, %s, is not on this machine (--model shapes is built in; to get the default: hf download %s; --model FOLDER takes any Z-Image model)",
				preset.Name, preset.Repo)
		}
		return folder, nil
	}
	_, err := os.Stat(name)
	if err == nil {
		return name, nil
	}
	repo := name
	if preset, ok := models.FindPreset(name); ok && strings.EqualFold(name, preset.Name) {
		repo = preset.Repo
	}
	if hub.IsRepo(repo) {
		folder, hubErr := hub.Find(repo)
		if repo == name && errors.Is(hubErr, hub.ErrNotCached) {
			hubErr = fmt.Errorf("no folder %s, and %w", name, hubErr)
		}
		return folder, coded(exitModel, hubErr)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("no model %s: it is no folder, no owner/name of the Hugging Face hub, and none of %s (built in) and %s", name,
			strings.Join(builtinNames(), ", "), strings.Join(presetNames(), ", "))
	}
	return "", coded(exitModel, err)
}
