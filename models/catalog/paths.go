package catalog

import (
	"os"
	"path/filepath"
	"strings"
)

// safetensors is the extension of files of weights.
const safetensors = ".safetensors"

// TildePath replaces the user's home folder at the start of a path with ~, so that the
// path can be shown to others. Find accepts the result.
func TildePath(name string) string {
	home, err := os.UserHomeDir()
	if home = filepath.Clean(home); err != nil || home == "/" || home == "." {
		return name
	}
	if name == home {
		return "~"
	}
	if rest, ok := strings.CutPrefix(name, home+string(filepath.Separator)); ok {
		return "~/" + rest
	}
	return name
}
