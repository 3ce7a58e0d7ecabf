// Package index reads model_index.json, or modular_model_index.json, which name the components of a
// model folder in diffusers' layout.
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

// ModularFile is the name of the index of diffusers' modular pipelines, which may name folders of other
// repositories.
const ModularFile = "modular_model_index.json"

// MFluxFile is the name of the file that mflux writes into the folders that it saves, which have no
// index.
const MFluxFile = "mflux_model.json"

// OriginKey is a key of the index with the name of the model from which a folder was saved, as
// diffusers' pipelines have it in memory. The default settings of a saved model follow from it.
const OriginKey = "_name_or_path"

// An Index is a model_index.json or a modular_model_index.json.
type Index struct {
	Class      string            // pipeline class
	Components map[string]string // class of each component, by the name of its folder
	Elsewhere  map[string]string // repositories of components that are not in the model folder
	Subfolders map[string]string // folders of components that are not in one of their name
}

// A member is a component in an index: [library, class], [null, null] if it is left out, or
// [library, class, spec] of a modular pipeline, where library and class may be null.
type member []json.RawMessage

// A spec is where diffusers loads a component of a modular pipeline from.
type spec struct {
	Repo      *string  `json:"pretrained_model_name_or_path"`
	Subfolder *string  `json:"subfolder"`
	TypeHint  []string `json:"type_hint"`
}

// read returns the component's class, "" without one, and its spec, if there is one.
func (m member) read() (class string, s *spec) {
	if len(m) != 2 && len(m) != 3 {
		return "", nil
	}
	var own *string
	if json.Unmarshal(m[1], &own) != nil {
		return "", nil
	}
	if own != nil {
		class = *own
	}
	if len(m) == 3 && json.Unmarshal(m[2], &s) == nil && s != nil && class == "" && len(s.TypeHint) == 2 {
		class = s.TypeHint[1]
	}
	return class, s
}

// Name returns the name of a model folder's index: [File], unless it has only [ModularFile].
func Name(fsys fs.FS) string {
	if _, err := fs.Lstat(fsys, File); errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Lstat(fsys, ModularFile); err == nil {
			return ModularFile
		}
	}
	return File
}

// Read reads the index of a model folder.
func Read(fsys fs.FS) (Index, error) {
	if !Exists(fsys) {
		return Index{}, fmt.Errorf("model folder %s: has no %s (gomflux reads the layout of Hugging Face diffusers)",
			checkpoint.FullName(fsys, ""), File)
	}
	var members map[string]json.RawMessage
	file := Name(fsys)
	if err := checkpoint.ReadJSON(fsys, file, &members); err != nil {
		return Index{}, err
	}
	x := Index{Components: map[string]string{}}
	for name, raw := range members {
		if name == "_class_name" {
			json.Unmarshal(raw, &x.Class) // a value of another type stays empty, which is refused as an unknown class
		}
		var m member
		if strings.HasPrefix(name, "_") || json.Unmarshal(raw, &m) != nil {
			continue
		}
		class, s := m.read()
		if class == "" {
			continue
		}
		if !isFolder(name) {
			return Index{}, fmt.Errorf("%s: %q is not the name of a component", checkpoint.FullName(fsys, file), name)
		}
		if _, err := fs.Stat(fsys, name); s != nil && err != nil {
			sub := s.Subfolder
			if sub != nil && *sub != name && isFolder(*sub) && exists(fsys, *sub) {
				x.Subfolders = with(x.Subfolders, name, *sub)
			} else if s.Repo != nil {
				x.Elsewhere = with(x.Elsewhere, name, *s.Repo)
				continue
			}
		}
		x.Components[name] = class
	}
	return x, nil
}

// with returns m, which may be nil, with a value.
func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// isFolder reports whether a name can be that of a folder in a model folder.
func isFolder(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.Contains(name, "/")
}

func exists(fsys fs.FS, name string) bool {
	_, err := fs.Stat(fsys, name)
	return err == nil
}

// Exists reports whether a folder has an index, readable or not.
func Exists(fsys fs.FS) bool {
	_, err := fs.Lstat(fsys, Name(fsys))
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
		if has("tekken.json") { // with which a tokenizer needs nothing else
			file = "tekken.json"
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
