package checkpoint

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// WeightFolders lists the folders in a model folder that have safetensors files, or
// names ".", the folder itself, where none of them has any and it does.
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
		if info, err := fs.Stat(fsys, e.Name()); err == nil && info.IsDir() && !strings.ContainsAny(e.Name(), `*?[\`) && has(e.Name()) {
			dirs = append(dirs, e.Name())
		}
	}
	if len(dirs) == 0 && has(".") {
		dirs = []string{"."}
	}
	return dirs, nil
}
