package checkpoint

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// WeightFolders lists the folders of a model that contain safetensors files. If no
// folder does but the model's folder itself, the list is ".".
func WeightFolders(fsys fs.FS) (dirs []string, err error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("model folder %s: %w", FullName(fsys, ""), err)
	}
	has := func(dir string) bool {
		found, _ := fs.Glob(fsys, path.Join(dir, "*.safetensors*"))
		return len(found) > 0
	}
	for _, e := range entries {
		name := e.Name()
		if info, err := fs.Stat(fsys, name); err == nil && info.IsDir() && !strings.ContainsAny(name, `*?[\`) && has(name) {
			dirs = append(dirs, name)
		}
	}
	if len(dirs) == 0 && has(".") {
		dirs = []string{"."}
	}
	return dirs, nil
}
