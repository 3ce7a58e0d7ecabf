// Package publishedtest makes small models of the small files that published models have: their
// configs with fewer layers and channels, and everything else as it is.
package publishedtest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/index"
)

// Env names the folder of the published files.
const Env = "GOMFLUX_REAL"

// Root returns the folder of the published files: that of [Env], or ../shared/real next to the
// repository, whose path is given.
func Root(repository string) string {
	if root := os.Getenv(Env); root != "" {
		return root
	}
	return filepath.Join(repository, "..", "shared", "real")
}

// table is published.json: which files of other models a model has too, and small dimensions.
var table struct {
	// Models has, by a model's folder in the root and a folder of the model, patterns of files of
	// other models. A model's own files take precedence, and later patterns over earlier ones.
	Models map[string]map[string][]string
	// Small has keys of configs by class.
	Small map[string]map[string]any
}

//go:embed published.json
var tableText []byte

func init() {
	if err := json.Unmarshal(tableText, &table); err != nil {
		panic(err)
	}
}

// A Model is a published model.
type Model struct {
	Name   string            // owner/name
	Files  map[string]string // paths of the published files, by their names in the model's folder
	Filled map[string][]byte // files that are not had: gomflux's own values
}

// Models lists the models that have files in root.
func Models(root string) (models []*Model, err error) {
	for _, folder := range slices.Sorted(maps.Keys(table.Models)) {
		m, err := open(root, folder)
		if err != nil {
			return nil, err
		}
		models = append(models, m)
	}
	folders, err := filepath.Glob(filepath.Join(root, "*__*"))
	if err != nil || len(folders) != len(models) {
		return nil, fmt.Errorf("%s: %d folders of models, expected the %d in published.json (%v)", root, len(folders), len(models), err)
	}
	return models, nil
}

// open lists the files of a model.
func open(root, folder string) (*Model, error) {
	owner, name, _ := strings.Cut(folder, "__")
	m := &Model{Name: owner + "/" + name, Files: map[string]string{}, Filled: map[string][]byte{}}
	for dir, patterns := range table.Models[folder] {
		for _, pattern := range patterns {
			files, err := filepath.Glob(filepath.Join(root, pattern))
			if err != nil || len(files) == 0 {
				return nil, fmt.Errorf("%s: no such file (%v)", filepath.Join(root, pattern), err)
			}
			for _, file := range files {
				m.Files[path.Join(dir, filepath.Base(file))] = file
			}
		}
	}
	own := os.DirFS(filepath.Join(root, folder))
	err := fs.WalkDir(own, ".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			m.Files[file] = filepath.Join(root, folder, filepath.FromSlash(file))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	preset, known := catalog.FindPreset(m.Name)
	if !known {
		return m, nil // a copy of a model, which is complete
	}
	values, err := catalog.FindConfigs(preset.Name)
	if err != nil {
		return nil, err
	}
	return m, fs.WalkDir(values.FS, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || m.Files[file] != "" {
			return err
		}
		m.Filled[file], err = fs.ReadFile(values.FS, file)
		return err
	})
}

// Read reads a file of the model.
func (m *Model) Read(file string) ([]byte, error) {
	if text, ok := m.Filled[file]; ok {
		return text, nil
	}
	return os.ReadFile(m.Files[file])
}

// Write writes the model's files to a folder, with small dimensions if small is set. Files that stay
// as they are become links. There are no weights and no indexes of them.
func (m *Model) Write(folder string, small bool) error {
	for _, file := range slices.Sorted(maps.Keys(m.Files)) {
		if !m.changes(file) && !strings.HasSuffix(file, ".safetensors.index.json") {
			to := filepath.Join(folder, filepath.FromSlash(file))
			if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
				return err
			}
			from, err := filepath.Abs(m.Files[file])
			if err == nil {
				err = os.Symlink(from, to)
			}
			if err != nil {
				return err
			}
		}
	}
	classes, err := m.classes()
	if err != nil {
		return err
	}
	changed := slices.Collect(maps.Keys(m.Filled))
	for file := range m.Files {
		if m.changes(file) {
			changed = append(changed, file)
		}
	}
	for _, file := range changed {
		text, err := m.Read(file)
		if err == nil && small && m.changes(file) {
			text, err = reduce(text, classes[path.Dir(file)])
		}
		to := filepath.Join(folder, filepath.FromSlash(file))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o777)
		}
		if err == nil {
			err = os.WriteFile(to, text, 0o666)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", m.Name, file, err)
		}
	}
	return nil
}

// changes reports whether a file has dimensions.
func (m *Model) changes(file string) bool {
	return path.Base(file) == component.ConfigFile || file == index.File
}

// classes returns the classes of the components by folder, and the pipeline's for ".".
func (m *Model) classes() (map[string]string, error) {
	text, err := m.Read(index.File)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	classes := map[string]string{}
	for name, value := range members {
		var pair []string
		if json.Unmarshal(value, &pair) == nil && len(pair) == 2 {
			classes[name] = pair[1]
		}
	}
	var class string
	err = json.Unmarshal(members["_class_name"], &class)
	classes["."] = class
	return classes, err
}

// reduce gives a config the small dimensions of its class.
func reduce(text []byte, class string) ([]byte, error) {
	small, ok := table.Small[class]
	if !ok {
		return text, nil
	}
	var config map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // 1.0 stays a float, for Python
	if err := d.Decode(&config); err != nil {
		return nil, err
	}
	merge(config, small)
	return json.MarshalIndent(config, "", "  ")
}

// merge replaces keys, those of objects in objects too.
func merge(config, with map[string]any) {
	for key, value := range with {
		inner, ok := config[key].(map[string]any)
		if changes, isMap := value.(map[string]any); ok && isMap {
			merge(inner, changes)
		} else {
			config[key] = value
		}
	}
}
