// Package shapes is the built-in model: a small Z-Image model that draws one or
// two coloured shapes. Importing it, for its effect alone, makes it known by
// its name:
//
//	import _ "github.com/gomflux/gomflux/models/shapes"
//
//	model, err := gomflux.Open(ctx, "shapes", nil)
//
// It adds its weights, some twenty megabytes, to every program that does. How
// it was trained and what it can do is in model/README.md.
package shapes

import (
	"embed"
	"io/fs"

	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

//go:embed all:model
var files embed.FS

// FS holds the model in the layout of Hugging Face diffusers.
var FS = func() fs.FS {
	sub, err := fs.Sub(files, "model")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}()

// defaults are the settings that the model's score was measured with.
var defaults = family.Defaults{Steps: 12, Guidance: 2, Height: 256, Width: 256, MaxSequenceLength: 512}

func init() {
	catalog.Register("shapes", catalog.Builtin{FS: FS, Defaults: defaults, About: "one or two coloured shapes"})
}
