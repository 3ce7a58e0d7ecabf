package catalog

import (
	"os"
	"path/filepath"
	"strings"
)

// safetensors is what files of weights end in.
const safetensors = ".safetensors"

// ExpandHome replaces a leading ~ or ~/ by the user's home folder.
func ExpandHome(name string) string {
	rest, ok := strings.CutPrefix(name+"/", "~/")
	if !ok {
		return name
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return name
	}
	return filepath.Join(home, rest)
}

// TildePath is a path as it can be shown to others: without the home folder's
// own name, with ~ in its place. Find takes it back.
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
