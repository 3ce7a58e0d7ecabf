package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
)

// photo returns an image whose neighbouring pixels differ, and a mask of its left columns.
func photo(width, height, masked int) (*image.RGBA, *image.Gray) {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	mask := image.NewGray(img.Rect)
	for y := range height {
		for x := range width {
			img.SetRGBA(x, y, color.RGBA{uint8(37 * x), uint8(59 * y), uint8(x * y), 255})
			if x < masked {
				mask.SetGray(x, y, color.Gray{Y: 255})
			}
		}
	}
	return img, mask
}

// equalColumns returns the columns of two images of one size that are equal.
func equalColumns(a, b *image.RGBA) (equal []int) {
	column := func(img *image.RGBA, x int) (out []color.RGBA) {
		for y := range img.Rect.Dy() {
			out = append(out, img.RGBAAt(x, y))
		}
		return out
	}
	for x := range a.Rect.Dx() {
		if slices.Equal(column(a, x), column(b, x)) {
			equal = append(equal, x)
		}
	}
	return equal
}

func generate(t *testing.T, m *gomflux.Model, o gomflux.Options) *gomflux.Result {
	t.Helper()
	r, err := m.Generate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// An image keeps its size, which the model does not support, and every pixel outside of the
// mask. Its settings generate it again.
func TestMask(t *testing.T) {
	m := open(t, nil)
	img, mask := photo(45, 26, 20)
	o := gomflux.Options{Prompt: "a red circle", Image: img, Mask: mask, Steps: 3, Seed: ptr(uint64(7)),
		Inpaint: gomflux.InpaintOptions{Feather: ptr(0)}}
	first := generate(t, m, o)
	s := first.Settings
	if first.Image.Rect != img.Rect || s.Width != 40 || s.Height != 24 || first.StepsRun != 3 || s.ImageStrength != 0 {
		t.Errorf("an image of %v, %dx%d computed, %d steps, strength %g",
			first.Image.Rect, s.Width, s.Height, first.StepsRun, s.ImageStrength)
	}
	if equal := equalColumns(first.Image, img); len(equal) != 25 || equal[0] != 20 {
		t.Errorf("columns %v are those of the image, expected 20 to 44", equal)
	}
	for name, change := range map[string]func(*gomflux.Options){
		"":             func(*gomflux.Options) {},
		"inverted":     func(o *gomflux.Options) { o.Inpaint.Invert = true },
		"faded":        func(o *gomflux.Options) { o.Inpaint.Feather = ptr(6) },
		"default fade": func(o *gomflux.Options) { o.Inpaint.Feather = nil },
		"cropped": func(o *gomflux.Options) {
			o.Inpaint.Crop, o.Inpaint.Padding, o.Width, o.Height = true, 3, 24, 24
		},
		"as generated":  func(o *gomflux.Options) { o.Inpaint.NoPasteBack = true },
		"with a border": func(o *gomflux.Options) { o.Inpaint.Expand.Right = 9 },
		"strength 0.5":  func(o *gomflux.Options) { o.ImageStrength, o.Steps = 0.5, 4 },
	} {
		changed := o
		change(&changed)
		r := generate(t, m, changed)
		if same := bytes.Equal(r.Image.Pix, first.Image.Pix); same != (name == "") {
			t.Errorf("%q: the same image: %t", name, same)
		}
		again := gomflux.OptionsFrom(&r.Settings)
		again.Image, again.Mask = img, mask
		if r2 := generate(t, m, again); !bytes.Equal(r.Image.Pix, r2.Image.Pix) {
			t.Errorf("%q: OptionsFrom generates another image", name)
		}
		if known := m.Settings(again); known.Width != r.Settings.Width || known.Height != r.Settings.Height {
			t.Errorf("%q: %dx%d known in advance, %dx%d used", name, known.Width, known.Height, r.Settings.Width, r.Settings.Height)
		}
	}
}

// A mask that was prepared is not read again for the same image and options, and always for others.
func TestPrepareMask(t *testing.T) {
	m := open(t, nil)
	img, drawn := photo(45, 26, 20)
	mask, other := &modeltest.CountedGray{Gray: drawn}, &modeltest.CountedGray{Gray: image.NewGray(drawn.Rect)}
	for i := range 500 {
		other.Pix[i] = 255
	}
	o := gomflux.Options{Prompt: "a red circle", Image: img, Mask: mask, Steps: 2, Seed: ptr(uint64(7)),
		Inpaint: gomflux.InpaintOptions{Feather: ptr(2)}}
	want := generate(t, m, o)
	once := mask.Reads
	masked, err := o.PrepareMask()
	if err != nil {
		t.Fatal(err)
	}
	if masked.Full || masked.Image.Rect != img.Rect || masked.Mask.Rect != img.Rect ||
		masked.Mask.GrayAt(19, 0).Y != 255 || masked.Mask.GrayAt(20, 0).Y != 0 {
		t.Errorf("a mask of %v for an image of %v, full: %t", masked.Mask.Rect, masked.Image.Rect, masked.Full)
	}
	for range 2 {
		if r := generate(t, m, o); !bytes.Equal(r.Image.Pix, want.Image.Pix) {
			t.Error("another image with a prepared mask")
		}
	}
	if err := m.Check(o); err != nil || m.BatchSize(o) != 1 || once == 0 || mask.Reads != 2*once {
		t.Errorf("error %v, the mask was read %d times, expected %d", err, mask.Reads, 2*once)
	}
	for name, change := range map[string]func(*gomflux.Options){
		"feather": func(o *gomflux.Options) { *o.Inpaint.Feather = 0 }, // of the same pointer
		"invert":  func(o *gomflux.Options) { o.Inpaint.Invert = true },
		"border":  func(o *gomflux.Options) { o.Inpaint.Expand.Top = 8 },
		"mask":    func(o *gomflux.Options) { o.Mask = other },
		"image":   func(o *gomflux.Options) { o.Image = image.NewRGBA(img.Rect) },
	} {
		changed := o
		change(&changed)
		fresh := gomflux.Options{Prompt: o.Prompt, Image: changed.Image, Mask: changed.Mask, Steps: o.Steps, Seed: o.Seed,
			Inpaint: changed.Inpaint}
		if !bytes.Equal(generate(t, m, changed).Image.Pix, generate(t, m, fresh).Image.Pix) {
			t.Errorf("%s: the image is that of other options", name)
		}
		*o.Inpaint.Feather = 2
	}
	if masked, err := (&gomflux.Options{Image: img}).PrepareMask(); masked != nil || err != nil {
		t.Errorf("without a mask: %v, error %v", masked, err)
	}
	black := gomflux.Options{Image: img, Mask: image.NewGray(img.Rect)}
	if _, err := black.PrepareMask(); !errors.Is(err, gomflux.ErrRequest) {
		t.Errorf("a black mask: error %v", err)
	}
	black.Inpaint.Invert = true
	if masked, err := black.PrepareMask(); err != nil || !masked.Full {
		t.Errorf("a black mask, inverted: %v, error %v", masked, err)
	}
}

// The size of the result follows the options.
func TestMaskSizes(t *testing.T) {
	m := open(t, nil)
	img, mask := photo(45, 26, 20)
	d := m.Defaults()
	for _, test := range []struct {
		o              gomflux.InpaintOptions
		width, height  int // computed
		result         image.Point
		strengthOfHalf int // steps of 4
	}{
		{gomflux.InpaintOptions{}, 40, 24, image.Pt(45, 26), 2},
		{gomflux.InpaintOptions{NoPasteBack: true}, 40, 24, image.Pt(40, 24), 2},
		{gomflux.InpaintOptions{Expand: gomflux.Border{Left: 3, Top: 10, Right: 1, Bottom: 4}}, 48, 40, image.Pt(49, 40), 2},
		{gomflux.InpaintOptions{Crop: true}, d.Width, d.Height, image.Pt(45, 26), 2},
	} {
		o := gomflux.Options{Prompt: "a red circle", Image: img, Mask: mask, Steps: 4, ImageStrength: 0.5, Inpaint: test.o}
		if s := m.Settings(o); s.Width != test.width || s.Height != test.height || s.ImageStrength != 0.5 {
			t.Errorf("%+v: %dx%d, strength %g", test.o, s.Width, s.Height, s.ImageStrength)
		}
		if test.o.Crop { // the default size of this model is large
			o.Width, o.Height = 40, 24
		}
		r := generate(t, m, o)
		if r.Image.Rect.Size() != test.result || r.StepsRun != test.strengthOfHalf {
			t.Errorf("%+v: an image of %v, %d steps", test.o, r.Image.Rect.Size(), r.StepsRun)
		}
	}
}

// A border needs no mask.
func TestExpand(t *testing.T) {
	m := open(t, nil)
	img, _ := photo(32, 24, 0)
	o := gomflux.Options{Prompt: "a red circle", Image: img, Steps: 2, Inpaint: gomflux.InpaintOptions{Expand: gomflux.Border{Left: 8}}}
	r := generate(t, m, o)
	if r.Image.Rect != image.Rect(0, 0, 40, 24) {
		t.Fatalf("an image of %v", r.Image.Rect)
	}
	for x := range 32 {
		if r.Image.RGBAAt(x+8, 5) != img.RGBAAt(x, 5) {
			t.Fatalf("column %d of the image differs", x)
		}
	}
	if want := []int{8, 0, 0, 0}; !slices.Equal(r.Settings.Expand, want) {
		t.Errorf("the settings have %v, expected %v", r.Settings.Expand, want)
	}
}

func TestMaskErrors(t *testing.T) {
	m := open(t, nil)
	img, mask := photo(40, 24, 20)
	for want, o := range map[string]gomflux.Options{
		"a mask needs an image":    {Mask: mask},
		"black everywhere":         {Mask: image.NewGray(img.Rect), Image: img},
		"need a mask":              {Image: img, Inpaint: gomflux.InpaintOptions{Invert: true}},
		"the same size or prop":    {Image: img, Mask: image.NewGray(image.Rect(0, 0, 40, 40))},
		"border":                   {Image: img, Inpaint: gomflux.InpaintOptions{Expand: gomflux.Border{Left: 100_000}}},
		"image strength 1":         {Image: img, Mask: mask, ImageStrength: 1},
		"must not be negative":     {Image: img, Mask: mask, Inpaint: gomflux.InpaintOptions{Crop: true, Padding: -1}},
		"take reference images":    {Image: img, Mask: mask, References: []image.Image{img}},
		"must be a positive multi": {Image: img, Mask: mask, Width: 41, Height: 24},
	} {
		o.Prompt, o.Steps = "a red circle", 2
		_, err := m.Generate(t.Context(), o)
		for what, err := range map[string]error{
			"Generate": err, "Check": m.Check(o), "Open": openError(&gomflux.OpenOptions{For: []gomflux.Options{options(1), o}}),
		} {
			if !errors.Is(err, gomflux.ErrRequest) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, expected %q", what, err, want)
			}
		}
	}
}

func openError(o *gomflux.OpenOptions) error {
	m, err := gomflux.Open(context.Background(), tiny, o)
	if err == nil {
		m.Close()
	}
	return err
}

// For a model that edits, the image is the first reference image.
func TestMaskOfEdit(t *testing.T) {
	m, err := gomflux.Open(t.Context(), "models/testdata/flux2-klein/model", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	img, mask := photo(80, 72, 30)
	other, _ := photo(64, 64, 0)
	o := gomflux.Options{Prompt: "the hat of $2", Image: img, Mask: mask, Steps: 2}
	alone := generate(t, m, o)
	o.References = []image.Image{other}
	both := generate(t, m, o)
	if bytes.Equal(alone.Image.Pix, both.Image.Pix) {
		t.Error("the further reference image has no effect")
	}
	for _, r := range []*gomflux.Result{alone, both} {
		if equal := equalColumns(r.Image, img); r.Image.Rect != img.Rect || len(equal) < 50 || equal[len(equal)-50] != 30 {
			t.Errorf("an image of %v, columns %v are those of the image", r.Image.Rect, equal)
		}
	}
	if s := alone.Settings; s.Width != 80 || s.Height != 64 {
		t.Errorf("%dx%d computed", s.Width, s.Height)
	}
	o.References = append(o.References, image.NewRGBA(image.Rect(0, 0, 800, 80)))
	var wrong *gomflux.ReferenceError
	if _, err := m.Generate(t.Context(), o); !errors.As(err, &wrong) || wrong.Index != 1 {
		t.Errorf("error %v, expected one about the second of the references", err)
	}
}
