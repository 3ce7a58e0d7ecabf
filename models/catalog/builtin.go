package catalog

import (
	"io/fs"
	"maps"

	"github.com/gomflux/gomflux/models/family"
)

// A Builtin is a model inside the program.
type Builtin struct {
	FS       fs.FS
	Defaults family.Defaults
	About    string // one line for lists
}

var builtins = map[string]Builtin{}

// Register makes a built-in model known by name, for the packages that embed
// one.
func Register(name string, b Builtin) {
	if _, ok := builtins[name]; ok {
		panic("catalog: " + name + " is registered twice")
	}
	builtins[name] = b
}

// Builtins are the registered models by name.
func Builtins() map[string]Builtin { return maps.Clone(builtins) }
