package generate

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const inpaintHelp = `Inpaint generates a part of an image and keeps the rest: every pixel outside of
the mask is that of the image, which also keeps its size. Any model can do it.

THE MASK
--mask is a black and white image of the size or the proportions of --image;
what is white in it is generated. Simple masks need no file:
rect:X,Y,WIDTH,HEIGHT and ellipse:X,Y,WIDTH,HEIGHT, in pixels from the top left
corner. A mask with transparent pixels marks these, as in OpenAI's API. Without
--mask, the transparent pixels of the image are the mask.

The model sees white where the mask is at least half white. Grey counts when the
result is pasted into the image: half of a pixel is the generated one where the
mask is half white. It also fades in over --mask-blur pixels inside of the mask.

THE MODEL
The prompt describes the whole image, not only the part. With --mask-crop the
model sees only the part around the mask, enlarged to the size of --height and
--width, which shows more details; the prompt describes that part then.

Models that edit see the whole image too, as $1 in the prompt. More files after
--image are further reference images, $2 and so on; if a model takes only one, a
second file replaces the image as $1. A model that was trained to fill masks
fits its part best into the image.

--image-strength keeps some of what was in the masked part: with 0, the default,
nothing; with 0.5 its layout and colours. It is 1 minus diffusers' strength.

ENLARGING
--expand LEFT,TOP,RIGHT,BOTTOM adds a border and generates it. --canvas
WIDTHxHEIGHT, or WIDTHxHEIGHT@X,Y with the place of the image's top left corner,
does the same by the final size. A mask can be added.

SIZES
The model computes the image at the size of --image, rounded down to a size that
it supports, unless --height and --width are given. The result is scaled back
and pasted into the image. --no-paste-back writes what the model has generated.

All other flags are those of gomflux generate, whose help explains prompts,
seeds, file names and debugging. Use gomflux inpaint --config-from-metadata to
generate the result again. docs/inpainting.md has more.
` + cli.ExitStatus

func NewInpaintCommand() *cobra.Command {
	o := newGenerateOptions()
	o.inpaints = true
	return o.command(&cobra.Command{
		Use:   "inpaint [--model MODEL] --image FILE --mask FILE --prompt TEXT",
		Short: "Generate the masked part of an image, or enlarge it",
		Long:  inpaintHelp,
		Example: `  gomflux inpaint --image photo.png --mask mask.png --prompt "a red bench in a park"
  gomflux inpaint -m shapes -i shapes.png --mask rect:128,64,112,128 -p "a red circle left of a green star"
  gomflux inpaint -i group.jpg --mask ellipse:900,300,240,300 --mask-crop 64 -p "a laughing face"
  gomflux inpaint -i cutout.png -p "a vase on a marble table"
  gomflux inpaint -i photo.jpg --expand 0,0,512,0 -p "a wide beach with palm trees"
  gomflux inpaint -m flux2-klein-4b -i room.png rug.png --mask mask.png -p 'the rug of $2 in the room of $1'
  gomflux inpaint -C result.png --seed 43`,
	})
}
