package main

import "github.com/spf13/cobra"

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
knows them by, image 1 for FLUX.2-klein and Picture 1 for Qwen-Image-Edit.

The model is one that edits: FLUX.2-klein, which takes any number of pictures,
Qwen-Image-Edit, which takes one, or its later versions (2509, 2511), which take
several. Without --model it is ` + defaultEditModel + `.

The pictures are PNG, JPEG or WebP files. They are turned as EXIF says, and laid
over white where they are transparent. FLUX.2-klein takes any size from 64
pixels a side, no more than 8 times as long as wide; larger ones are made
smaller, to a megapixel, and cut at the edges to multiples of 16 pixels. For
Qwen-Image-Edit they are brought to about a megapixel, whatever size they have.
Without --height and --width the new picture is as large as the first one is
then, with Qwen-Image-Edit as the last one.

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
