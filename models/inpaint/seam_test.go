package inpaint

import (
	"bytes"
	"image"
	"image/jpeg"
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/picture"
)

// steps returns the differences between neighbours of an image minus those of another one, in
// ascending order: the largest of the three channels, inside a part. Without another image they are
// the image's own steps.
func steps(img, other *image.RGBA, part image.Rectangle) []int {
	var all []int
	step := func(x, y, dx, dy int) {
		most := 0
		for k := range 3 {
			d := int(pixel(img, x+dx, y+dy)[k]) - int(pixel(img, x, y)[k])
			if other != nil {
				d -= int(pixel(other, x+dx, y+dy)[k]) - int(pixel(other, x, y)[k])
			}
			most = max(most, d, -d)
		}
		all = append(all, most)
	}
	for y := part.Min.Y; y < part.Max.Y-1; y++ {
		for x := part.Min.X; x < part.Max.X-1; x++ {
			step(x, y, 1, 0)
			step(x, y, 0, 1)
		}
	}
	slices.Sort(all)
	return all
}

func quantile(sorted []int, q float64) int { return sorted[int(q*float64(len(sorted)-1))] }

func brighter(img *image.RGBA, levels int) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	for i, v := range img.Pix {
		out.Pix[i] = v
		if i%4 < 3 {
			out.Pix[i] = uint8(min(int(v)+levels, 255))
		}
	}
	return out
}

// The seam of a generated part that is 30 levels brighter: with a feather no step is larger than what
// the ramp has to have, and with the default one not larger than the picture's own. Without a feather
// it is 30 levels, as diffusers' apply_overlay pastes (TestGolden).
func TestSeam(t *testing.T) {
	const levels = 30
	photo := scene(320, 240)
	own := steps(photo, nil, photo.Rect)
	t.Logf("the picture's own steps: median %d levels, 9 of 10 at most %d, 99 of 100 %d, all %d",
		quantile(own, 0.5), quantile(own, 0.9), quantile(own, 0.99), quantile(own, 1))
	for _, shape := range []struct {
		name string
		r    image.Rectangle
		draw func(*image.Gray, image.Rectangle)
		thin bool
	}{
		{"disc of 120 pixels", image.Rect(80, 60, 200, 180), drawEllipse, false},
		{"box of 120 pixels", image.Rect(80, 60, 200, 180), drawRect, false},
		{"line of 5 pixels", image.Rect(40, 100, 280, 105), drawRect, true},
	} {
		mask := image.NewGray(photo.Rect)
		shape.draw(mask, shape.r)
		for _, feather := range []int{0, 1, 2, 4, 8, 16, 32} {
			in := newInput(t, photo, mask, Options{Feather: feather})
			pasted := in.Paste(brighter(photo, levels))
			added := quantile(steps(pasted, photo, photo.Rect), 1)
			pixels := feather
			if shape.thin {
				pixels = min(feather, 2) // on both sides of the centre line
			}
			ramp := int(math.Ceil(levels/(0.75*float64(pixels)+1))) + 1 // one for rounding
			alpha := feathered(mask, feather)
			kept, all := 0, 0
			for i, v := range mask.Pix {
				all += int(v)
				kept += int(v) - int(alpha.Pix[i])
			}
			t.Logf("%s, feather %d: largest step added %d levels; %d%% of the photo inside the mask kept",
				shape.name, feather, added, 100*kept/all)
			switch {
			case feather == DefaultFeather && !shape.thin && added > quantile(own, 1):
				t.Errorf("%s: %d levels, more than the picture's own steps", shape.name, added)
			case feather == 0 && added != levels:
				t.Errorf("%s without a feather: %d levels, want %d", shape.name, added, levels)
			case feather > 0 && added > ramp:
				t.Errorf("%s, feather %d: %d levels, want at most %d", shape.name, feather, added, ramp)
			}
		}
	}
}

// The noise that JPEG adds to the black part of a mask does not take the feather's width.
func TestSeamOfJPEGMask(t *testing.T) {
	photo := scene(320, 240)
	mask := image.NewGray(photo.Rect)
	drawEllipse(mask, image.Rect(80, 60, 200, 180))
	var file bytes.Buffer
	if err := jpeg.Encode(&file, mask, &jpeg.Options{Quality: 75}); err != nil {
		t.Fatal(err)
	}
	p, err := picture.Decode(&file)
	if err != nil {
		t.Fatal(err)
	}
	in := newInput(t, photo, p.Image, Options{Feather: 8})
	if added := quantile(steps(in.Paste(brighter(photo, 30)), photo, photo.Rect), 1); added > 6 {
		t.Errorf("the largest step added has %d levels, want at most 6", added)
	}
}

// The default feather is as wide in the generated image, whatever the size of the photo.
func TestDefaultFeather(t *testing.T) {
	photo := scene(320, 240)
	mask := image.NewGray(photo.Rect)
	drawRect(mask, image.Rect(90, 60, 210, 150))
	for _, c := range []struct {
		width, height int
		crop          bool
		feather       int
	}{{320, 240, false, 4}, {160, 120, false, 8}, {640, 480, false, 2}, {120, 90, true, 4}, {1200, 900, true, 1}, {16, 12, true, 30}} {
		generated := brighter(photo, 30).SubImage(image.Rect(0, 0, min(c.width, 320), min(c.height, 240))).(*image.RGBA)
		if c.width > 320 {
			generated = scene(c.width, c.height)
		}
		got := newInput(t, photo, mask, Options{Feather: -1, Crop: c.crop}).Paste(generated)
		want := newInput(t, photo, mask, Options{Feather: c.feather, Crop: c.crop}).Paste(generated)
		if d := difference(t, got, want); d != 0 {
			t.Errorf("%dx%d, crop %v: not a feather of %d, by up to %d levels", c.width, c.height, c.crop, c.feather, d)
		}
	}
}
