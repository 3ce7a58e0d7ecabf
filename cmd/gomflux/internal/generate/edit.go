package generate

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/models/family"
)

func NewEditCommand() *cobra.Command {
	o := newGenerateOptions()
	o.edits, o.Fallback = true, cli.DefaultEditModel
	return o.command(&cobra.Command{
		Use:   "edit [--model MODEL] --image FILE... --prompt TEXT",
		Short: "Edit an image, or combine several, by a prompt",
		Long:  editHelp(),
		Example: `  gomflux edit -m qwen-image-layered -i poster.png --layers 4 -o poster.ora
  gomflux edit --image cat.png --prompt "the cat wears a red hat"
  gomflux edit -i woman.jpg dress.png -p 'the woman of $1 in the dress of $2' -o dressed.png
  gomflux edit -m qwen-image-edit-2511 -i woman.jpg dress.png -p "the woman in the dress"
  gomflux edit -m flux2-klein-base-4b -i room.png -p "the same room at night" --steps 50 --guidance 4 -S 1 2 3
  gomflux edit -C dressed.png --seed 43`,
	})
}

func editHelp() string {
	return `Edit generates images from a prompt and one or more reference images: it makes
the change that the prompt describes and keeps the rest, or combines several
images. In the prompt $1 and $2 stand for the images; use single quotes, since
shells have their own $1. They are replaced by the model's own terms.

` + cli.Filled("", "The model must be one that edits: "+family.Editors()+". The default is "+cli.DefaultEditModel+".") + `

Images are PNG, JPEG or WebP files. They are rotated by their EXIF orientation.
Transparent pixels are white, except for models that generate them too.

` + cli.EditingHelp() + `

LAYERS
A model that splits an image writes the composition of the layers to the output
file, and the layers, from the lowest on, to image-1.png, image-2.png and so on.
An .ora file (OpenRaster) has all of them, for GIMP, Krita and other editors.
Without a prompt the model's text encoder describes the image first; images
record its text.

To start from an image with any model, use gomflux generate --image; gomflux
help images explains the difference. All other flags are those of gomflux
generate, whose help explains prompts, seeds, file names and debugging. Use
gomflux edit --config-from-metadata to generate the result of an edit again.
` + cli.ExitStatus
}
