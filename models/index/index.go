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

// MFluxFile is what mflux puts into the folders that it saves, which have no index.
const MFluxFile = "mflux_model.json"

// OriginKey is a key of the index, which diffusers' pipelines have in memory: the
// model that a folder was saved of. Nothing else would tell the settings that a
// saved model is meant to be run with.
const OriginKey = "_name_or_path"

// An Index is a model_index.json.
type Index struct {
	Class      string            // of the pipeline
	Components map[string]string // the class of each component that there is, by its folder's name
}

// Read reads the index of a model folder.
func Read(fsys fs.FS) (Index, error) {
	if _, err := fs.Lstat(fsys, File); errors.Is(err, fs.ErrNotExist) {
		return Index{}, fmt.Errorf("model folder %s: has no %s (gomflux reads the layout of Hugging Face diffusers)", checkpoint.FullName(fsys, ""), File)
	}
	var members map[string]json.RawMessage
	if err := checkpoint.ReadJSON(fsys, File, &members); err != nil {
		return Index{}, err
	}
	x := Index{Components: map[string]string{}}
	for name, raw := range members {
		if name == "_class_name" {
			json.Unmarshal(raw, &x.Class) // of another type it is no class that is known
		}
		// a component is [library, class], [null, null] for one that is left out
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

// The configs of components, by what they are.
const (
	modelConfig     = "config.json"
	schedulerConfig = "scheduler_config.json"
	processorConfig = "preprocessor_config.json"
)

// ConfigFile is the file that a component of a class cannot do without, "" where there
// are several ways.
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

// IsModel reports whether a component of a class has weights, by its name.
func IsModel(class string) bool { return ConfigFile(class) == modelConfig }

// IsTokenizer reports whether a class is a tokenizer's, by its name.
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

// Missing lists the folders and configs of components that are not there. Of a
// pipeline class that can be run, supported, that includes tokenizers' files.
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

// MissingError is the error about files that are missing, nil for none.
func MissingError(fsys fs.FS, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("model folder %s: is not complete (is the download complete?), missing: %s", checkpoint.FullName(fsys, ""), strings.Join(missing, ", "))
}
