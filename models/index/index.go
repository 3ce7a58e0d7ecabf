// Package index reads model_index.json, which names the components of a model
// folder in diffusers' layout.
package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// File is the name of the index in a model folder.
const File = "model_index.json"

// MFluxFile is the name of the file that mflux writes into the folders that it saves, which have no
// index.
const MFluxFile = "mflux_model.json"

// OriginKey is a key of the index with the name of the model from which a folder was saved, as
// diffusers' pipelines have it in memory. The default settings of a saved model follow from it.
const OriginKey = "_name_or_path"

// An Index is a model_index.json.
type Index struct {
	Class      string            // pipeline class
	Components map[string]string // class of each component, by the name of its folder
}

// Read reads the index of a model folder.
func Read(fsys fs.FS) (Index, error) {
	if _, err := fs.Lstat(fsys, File); errors.Is(err, fs.ErrNotExist) {
		return Index{}, fmt.Errorf("model folder %s: has no %s (gomflux reads the layout of Hugging Face diffusers)",
			checkpoint.FullName(fsys, ""), File)
	}
	var members map[string]json.RawMessage
	if err := checkpoint.ReadJSON(fsys, File, &members); err != nil {
		return Index{}, err
	}
	x := Index{Components: map[string]string{}}
	for name, raw := range members {
		if name == "_class_name" {
			json.Unmarshal(raw, &x.Class) // a value of another type stays empty, which is refused as an unknown class
		}
		// a component is [library, class], or [null, null] if it is left out
		var pair []*string
		if strings.HasPrefix(name, "_") || json.Unmarshal(raw, &pair) != nil || len(pair) != 2 || pair[0] == nil || pair[1] == nil {
			continue
		}
		if !fs.ValidPath(name) || name == "." || strings.Contains(name, "/") {
			return Index{}, fmt.Errorf("%s: %q is not the name of a component", checkpoint.FullName(fsys, File), name)
		}
		x.Components[name] = *pair[1]
	}
	return x, nil
}

// Exists reports whether a folder has an index, readable or not.
func Exists(fsys fs.FS) bool {
	_, err := fs.Lstat(fsys, File)
	return !errors.Is(err, fs.ErrNotExist)
}

// Names of the configs of components.
const (
	modelConfig     = "config.json"
	schedulerConfig = "scheduler_config.json"
	processorConfig = "preprocessor_config.json"
)

// ConfigFile returns the file that a component of a class must have, or "" for tokenizers, which
// can be stored in several ways.
func ConfigFile(class string) string {
	switch {
	case strings.HasSuffix(class, "Scheduler"):
		return schedulerConfig
	case strings.Contains(class, "Tokenizer"):
		return ""
	case strings.HasSuffix(class, "Processor"), strings.HasSuffix(class, "FeatureExtractor"):
		return processorConfig
	}
	return modelConfig
}

// IsModel reports whether a component of a class has weights, by the class's name.
func IsModel(class string) bool { return ConfigFile(class) == modelConfig }

// IsTokenizer reports whether a class is a tokenizer, by its name.
func IsTokenizer(class string) bool { return ConfigFile(class) == "" }

// Models lists the folders of the components with weights.
func (x Index) Models() (dirs []string) {
	for _, name := range slices.Sorted(maps.Keys(x.Components)) {
		if IsModel(x.Components[name]) {
			dirs = append(dirs, name)
		}
	}
	return dirs
}

// Missing lists the folders and configs of components that are missing. If the pipeline class is
// supported, it checks the tokenizers' files too.
func (x Index) Missing(fsys fs.FS, supported bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(x.Components)) {
		has := func(file string) bool {
			_, err := fs.Stat(fsys, path.Join(name, file))
			return !errors.Is(err, fs.ErrNotExist)
		}
		file := ConfigFile(x.Components[name])
		if file == "" && supported && !(has("vocab.json") && has("merges.txt")) {
			file = "tokenizer.json"
		}
		if file == processorConfig && has("processor_config.json") {
			file = "processor_config.json" // as transformers 5 writes it
		}
		if !has("") {
			names = append(names, name+"/")
		} else if !has(file) {
			names = append(names, path.Join(name, file))
		}
	}
	return names
}

// MissingError returns the error for missing files, or nil if there are no such files.
func MissingError(fsys fs.FS, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("model folder %s: is not complete (is the download complete?), missing: %s",
		checkpoint.FullName(fsys, ""), strings.Join(missing, ", "))
}
