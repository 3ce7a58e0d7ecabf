package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/models/family"
)

func newEditCommand() *cobra.Command {
	o := newGenerateOptions()
	o.edits, o.images.several, o.fallback = true, true, defaultEditModel
	return o.command(&cobra.Command{
		Use:   "edit [--model MODEL] --image FILE... --prompt TEXT",
		Short: "Change a picture, or put several together",
		Long: `Edit makes pictures from a prompt and one or more pictures, which the model is
shown: it changes what the prompt says and keeps the rest, or puts things from
several pictures together. The prompt can speak of the pictures as $1 and $2, in
single quotes, since shells have a $1 of their own; that becomes what the model
knows them by.

` + filled("", "The model is one that edits: "+family.Editors()+". Without --model it is "+defaultEditModel+".") + `

The pictures are PNG, JPEG or WebP files. They are turned as EXIF says, and laid
over white where they are transparent.

` + editingHelp() + `

To start from a picture and change it everywhere, with any model, there is
gomflux generate --image; gomflux help pictures tells them apart. All other
flags are as for gomflux generate, whose help says more about prompts, seeds,
names of files, and looking into a run. A picture that edit has made is made
again with gomflux edit --config-from-metadata.
` + exitStatus,
		Example: `  gomflux edit --image cat.png --prompt "the cat wears a red hat"
  gomflux edit -i woman.jpg dress.png -p 'the woman of $1 in the dress of $2' -o dressed.png
  gomflux edit -m qwen-image-edit-2511 -i woman.jpg dress.png -p "the woman in the dress"
  gomflux edit -m flux2-klein-base-4b -i room.png -p "the same room at night" --steps 50 --guidance 4 -S 1 2 3
  gomflux edit -C dressed.png --seed 43`,
	})
}
