package generate

import (
	"errors"
	"fmt"
	"image"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inpaint"
	"github.com/gomflux/gomflux/picture"
)

// maskFlags are the flags of gomflux inpaint and gomflux edit for the part of an image that is
// regenerated.
type maskFlags struct {
	mask        cli.Optional[string]
	invertMask  cli.Optional[bool]
	maskBlur    cli.Optional[int]
	maskCrop    cli.Optional[int] // the padding
	noPasteBack cli.Optional[bool]
	expand      cli.Optional[inpaint.Border]
	canvas      cli.Optional[string] // of inpaint.ParseCanvas
}

// transparency is the value of --mask for the transparent pixels of the image.
const transparency = "alpha"

// defaultPadding is the padding of --mask-crop without a value, in pixels.
const defaultPadding = "32"

func NewMaskFlags() maskFlags {
	text := func(s string) (string, error) {
		if s == "" {
			return "", errors.New("the value is empty")
		}
		return s, nil
	}
	return maskFlags{
		mask: cli.Parsed("file", text), invertMask: cli.Parsed("bool", strconv.ParseBool), maskBlur: cli.WholeFrom(0, "pixels"),
		maskCrop: cli.WholeFrom(0, "padding"), noPasteBack: cli.Parsed("bool", strconv.ParseBool),
		expand: cli.Parsed("left,top,right,bottom", inpaint.ParseBorder), canvas: cli.Parsed("WxH[@x,y]", text),
	}
}

func (o *maskFlags) Add(f *pflag.FlagSet) {
	f.Var(&o.mask, "mask", "image whose white part is regenerated, or rect:X,Y,WIDTH,HEIGHT, ellipse:X,Y,WIDTH,HEIGHT, "+
		"or alpha, for the transparent part of the image")
	f.Var(&o.invertMask, "invert-mask", "regenerate the black part of the mask")
	f.Var(&o.maskBlur, "mask-blur", "width over which the regenerated part fades in, inside the mask "+
		"(default: 4 pixels of the model's image)")
	f.Var(&o.maskCrop, "mask-crop", "show the model only the part around the mask, enlarged, with this padding in pixels")
	f.Var(&o.expand, "expand", "enlarge the image by these numbers of pixels, and generate the new border")
	f.Var(&o.canvas, "canvas", "the same by the size of the enlarged image, and the place of the given one (default: the centre)")
	f.Var(&o.noPasteBack, "no-paste-back", "write the image as the model generates it")
	for _, name := range []string{"invert-mask", "no-paste-back"} {
		f.Lookup(name).NoOptDefVal = "true"
	}
	f.Lookup("mask-crop").NoOptDefVal = defaultPadding
}

// inpaints reports whether a flag asks for a mask.
func (o *maskFlags) inpaints() bool { return o.mask.Given() || o.expand.Given() || o.canvas.Given() }

// validate refuses flags that contradict each other or have no effect. always is true for gomflux
// inpaint, which may find the mask in the image.
func (o *maskFlags) validate(always bool, given func(string) bool) error {
	if o.expand.Given() && o.canvas.Given() {
		return cli.UsageErrorf("give either --expand or --canvas")
	}
	if always || o.inpaints() {
		return nil
	}
	return cli.Without("mask", given, "invert-mask", "mask-blur", "mask-crop", "no-paste-back")
}

// inpaintOptions returns the options for an image of some size.
func (o *maskFlags) inpaintOptions(size image.Point) (i gomflux.InpaintOptions, err error) {
	i.Invert, i.Feather, i.NoPasteBack = o.invertMask.OrZero(), o.maskBlur.Value, o.noPasteBack.OrZero()
	i.Crop, i.Padding = o.maskCrop.Given(), o.maskCrop.OrZero()
	border := o.expand.OrZero()
	if o.canvas.Given() {
		if border, err = inpaint.ParseCanvas(o.canvas.OrZero(), size); err != nil {
			return i, fmt.Errorf("--canvas: %w", err)
		}
	}
	if o.expand.Given() || o.canvas.Given() {
		if err := border.Check(size); err != nil {
			return i, err
		}
	}
	i.Expand = gomflux.Border(border)
	return i, nil
}

// useMask sets the mask of the first of the input images, and checks it.
func (g *generation) useMask(img *picture.Picture, name string) (err error) {
	if g.options.Inpaint, err = g.inpaintOptions(img.Image.Rect.Size()); err != nil {
		return err
	}
	if g.options.Mask, err = g.readMask(img, name); err != nil {
		return err
	}
	g.options.Image = img.Pixels()
	if g.input, err = g.options.PrepareMask(); err != nil {
		return err
	}
	if g.input.Full {
		g.out.Warn("the mask covers the whole image, so that nothing of it is kept")
	}
	return nil
}

// recordMask writes the mask to a run's folder, and the image if it was enlarged, for a
// program that makes the same run.
func (g *generation) recordMask(settings map[string]any, dir string) error {
	const mask, canvas = "inpaint-mask.png", "inpaint-canvas.png"
	if err := writeImage(dir, mask, g.input.Mask); err != nil {
		return err
	}
	settings["mask"], settings["mask_blur"] = "images/"+mask, -1 // the default
	if blur := g.options.Inpaint.Feather; blur != nil {
		settings["mask_blur"] = *blur
	}
	if g.maskCrop.Given() {
		settings["mask_crop"] = g.maskCrop.OrZero()
	}
	if g.options.Inpaint.Expand == (gomflux.Border{}) {
		return nil
	}
	settings["picture"] = "images/" + canvas
	return writeImage(dir, canvas, g.input.Image)
}

// readMask returns the mask of an image, nil if only a border is generated.
func (g *generation) readMask(img *picture.Picture, name string) (image.Image, error) {
	text := g.mask.OrZero()
	switch {
	case text == transparency && img.Alpha == nil:
		return nil, fmt.Errorf("--mask alpha: %s has no transparent pixels", name)
	case text == "" && img.Alpha != nil:
		g.out.Note("the transparent pixels of %s are the mask", name)
		fallthrough
	case text == transparency:
		g.maskSource = &picture.SourceImage{Path: transparency}
		return img.Alpha, nil
	case text == "" && (g.expand.Given() || g.canvas.Given()):
		return nil, nil
	case text == "":
		return nil, fmt.Errorf("no mask (give one with --mask, or a border with --expand or --canvas; %s has no transparent pixels)", name)
	case inpaint.IsShape(text):
		g.maskSource = &picture.SourceImage{Path: text}
		return inpaint.ParseShape(text, img.Image.Rect.Size())
	}
	read, err := picture.ReadFile(text)
	if err != nil {
		return nil, fmt.Errorf("--mask: %w", err)
	}
	g.maskSource = &picture.SourceImage{Path: catalog.TildePath(text), SHA256: read.SHA256}
	if was := g.recordedMask; was != nil && was.SHA256 != "" && was.SHA256 != read.SHA256 {
		g.out.Warn("%s has changed since %s was generated with it", text, g.config)
	}
	if read.Alpha != nil {
		g.out.Note("the transparent pixels of %s are the mask", text)
		return read.Alpha, nil
	}
	return read.Image, nil
}
