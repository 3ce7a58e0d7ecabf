package catalog

import (
	"io/fs"
	"maps"

	"github.com/gomflux/gomflux/models/family"
)

// A Builtin is a model that is embedded in the program.
type Builtin struct {
	FS       fs.FS           // the model folder in diffusers' layout
	Defaults family.Defaults // the recommended settings
	About    string          // a description of one line, for lists of models
}

var builtins = map[string]Builtin{}

// Register adds a built-in model. Packages that embed a model call it in init.
func Register(name string, b Builtin) {
	if _, ok := builtins[name]; ok {
		panic("catalog: " + name + " is registered twice")
	}
	builtins[name] = b
}

// Builtins returns the registered models by name.
func Builtins() map[string]Builtin { return maps.Clone(builtins) }
