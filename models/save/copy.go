package save

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/models/index"
)

// configFile matches the names of configs, vocabularies and templates.
var configFile = regexp.MustCompile(`^[^.].*\.(json|txt|model|jinja)$`)

// copyOthers copies the files of the model that are not weights.
func (w *writer) copyOthers() error {
	src, dir := w.src, w.dir
	if err := copyIndex(src, dir); err != nil {
		return err
	}
	for _, component := range slices.Sorted(maps.Keys(w.index.Components)) {
		entries, err := fs.ReadDir(src.FS, component)
		if err != nil {
			return fmt.Errorf("%s: %w", checkpoint.FullName(src.FS, component), oserr.Bare(err))
		}
		for _, entry := range entries {
			name := path.Join(component, entry.Name())
			info, err := fs.Stat(src.FS, name)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if !configFile.MatchString(entry.Name()) || strings.Contains(entry.Name(), ".safetensors.index.") {
				continue
			}
			to := w.folderOf(component)
			if _, shared := w.index.Components[to]; shared && index.IsModel(w.index.Components[component]) {
				to = component // whose config has the same name
			}
			file := filepath.Join(dir, to, entry.Name())
			if _, err := os.Lstat(file); err == nil && to != component {
				continue // the tokenizer's folder in the source has the text encoder's files too
			}
			if err := copyFile(src.FS, name, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyIndex copies the index and records the name of the original model in it. In that of a modular pipeline the
// components are in the folders of their names now.
func copyIndex(src Source, dir string) error {
	file := index.Name(src.FS)
	if src.Origin == "" && file == index.File {
		return copyFile(src.FS, file, filepath.Join(dir, file))
	}
	var members map[string]any
	if err := checkpoint.ReadJSON(src.FS, file, &members); err != nil {
		return err
	}
	if src.Origin != "" {
		members[index.OriginKey] = src.Origin
	}
	for name, v := range members {
		if member, _ := v.([]any); len(member) == 3 {
			if spec, _ := member[2].(map[string]any); spec["subfolder"] != nil {
				spec["subfolder"] = name
			}
		}
	}
	return writeNewJSON(filepath.Join(dir, file), members)
}

// copyFile copies a small file to a path.
func copyFile(fsys fs.FS, name, to string) error {
	data, err := checkpoint.ReadFile(fsys, name, 256<<20)
	if err != nil {
		return err
	}
	return writeNew(to, data)
}

// writeNew writes a small file, which must not exist yet.
func writeNew(path string, data []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err == nil {
		_, err = f.Write(data)
		if err == nil {
			err = f.Sync()
		}
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, oserr.Bare(err))
	}
	return nil
}

func writeNewJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeNew(path, append(data, '\n'))
}
