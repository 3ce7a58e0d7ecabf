// Package shapes embeds a small Z-Image model that draws one or two coloured shapes.
// Importing it registers the model under the name shapes:
//
//	import _ "github.com/gomflux/gomflux/models/shapes"
//
//	model, err := gomflux.Open(ctx, "shapes", nil)
//
// It adds about twenty megabytes of weights to a program. The file model/README.md
// describes how the model was trained and what it can draw.
package shapes

import (
	"embed"
	"io/fs"

	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

//go:embed all:model
var files embed.FS

// FS contains the model in the layout of Hugging Face diffusers.
var FS = func() fs.FS {
	sub, err := fs.Sub(files, "model")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}()

// defaults are the settings with which the model's score was measured.
var defaults = family.Defaults{Steps: 12, Guidance: 2, Height: 256, Width: 256, MaxSequenceLength: 512}

func init() {
	catalog.Register("shapes", catalog.Builtin{FS: FS, Defaults: defaults, About: "one or two coloured shapes"})
}
