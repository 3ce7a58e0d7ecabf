package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
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

// findModel resolves what --model was given: a built-in model's name, or else a
// folder. The settings are nil where the model's own apply.
func findModel(name string) (fs.FS, *gomflux.Defaults, error) {
	if name == "" {
		return nil, nil, usageErrorf("no model given (--model shapes is built in; --model FOLDER takes a Z-Image model in the layout of Hugging Face diffusers)")
	}
	if b, ok := builtins[name]; ok {
		return weights.Folder{FS: b.files, Name: name}, &b.defaults, nil
	}
	folder, err := weights.OpenFolder(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (built-in models: %s)", err, strings.Join(builtinNames(), ", "))
	}
	if err == nil {
		if _, statErr := fs.Stat(folder, "model_index.json"); errors.Is(statErr, fs.ErrNotExist) {
			err = fmt.Errorf("model folder %s: has no model_index.json (gomflux reads the layout of Hugging Face diffusers)", name)
		}
	}
	if err != nil {
		return nil, nil, coded(exitModel, err)
	}
	return folder, nil, nil
}
