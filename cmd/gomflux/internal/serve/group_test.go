package serve

import (
	"image"
	"image/color"
	"reflect"
	"testing"

	"github.com/gomflux/gomflux"
)

// An order arrives as it was sent, except for functions: pointers to zero too, and images of every kind.
func TestOrder(t *testing.T) {
	r := image.Rect(1, 2, 4, 5)
	images := []image.Image{
		image.NewRGBA(r), image.NewNRGBA(r), image.NewRGBA64(r), image.NewNRGBA64(r), image.NewGray(r), image.NewGray16(r),
		image.NewAlpha(r), image.NewAlpha16(r), image.NewCMYK(r), image.NewYCbCr(r, image.YCbCrSubsampleRatio420),
		image.NewNYCbCrA(r, image.YCbCrSubsampleRatio444),
		image.NewPaletted(r, color.Palette{color.NRGBA{1, 2, 3, 4}, color.RGBA{5, 6, 7, 8}}),
	}
	for _, o := range []gomflux.Options{
		{},
		{Prompt: "a", Guidance: new(0.0), Seed: new(uint64), Inpaint: gomflux.InpaintOptions{Feather: new(0)}},
		{Enlarge: &gomflux.EnlargeOptions{}},
		{Enlarge: &gomflux.EnlargeOptions{Refine: &gomflux.RefineOptions{}}, Image: images[0], Mask: images[4], References: images},
		{Guidance: new(2.5), Enlarge: &gomflux.EnlargeOptions{Upscaler: "u"}, GuidanceInterval: []float64{0, 1}, Steps: 3},
	} {
		sent := order{Do: "generate", Model: "m", LoRAs: []gomflux.LoRA{{Path: "l"}}, Options: o, Seeds: []uint64{0, 1 << 63}}
		sent.Options.Progress = func(gomflux.Progress) {}
		text, err := sent.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeOrder(text)
		if err != nil {
			t.Fatal(err)
		}
		sent.Options.Progress, sent.Set, got.Set = nil, nil, nil
		if !reflect.DeepEqual(got, sent) {
			t.Errorf("found %+v, expected %+v", got, sent)
		}
	}
	if _, err := decodeOrder([]byte("{}")); err == nil {
		t.Error("no error for another message")
	}
}
