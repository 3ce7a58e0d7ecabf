package inpaint

import (
	"bytes"
	"image"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

// randomImage returns an opaque image of values at random.
func randomImage(rng *rand.Rand, width, height int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := 0; i < len(img.Pix); i += 4 {
		v := rng.Uint32()
		img.Pix[i], img.Pix[i+1], img.Pix[i+2], img.Pix[i+3] = uint8(v), uint8(v>>8), uint8(v>>16), 255
	}
	return img
}

func randomOptions(rng *rand.Rand) Options {
	o := Options{
		Invert:  rng.IntN(4) == 0,
		Feather: []int{0, -1, 1, 3, 20, 200}[rng.IntN(6)],
		Crop:    rng.IntN(2) == 0,
		Padding: []int{0, 3, 40}[rng.IntN(3)],
	}
	if rng.IntN(3) == 0 {
		o.Expand = Border{rng.IntN(20), rng.IntN(3), 1 + rng.IntN(9), rng.IntN(30)}
	}
	o.NoPasteBack = rng.IntN(8) == 0
	return o
}

// Where the mask is 0 not one pixel differs from the photo, whatever the model has generated.
func TestPixelsOutside(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	outside, inside := 0, 0
	for i := range 260 {
		w, h := randomSize(rng)
		if i%100 == 99 {
			w, h = 1700+rng.IntN(200), 1300+rng.IntN(100) // more than 2 megapixels
		}
		o := randomOptions(rng)
		whole := randomImage(rng, w+5, h+3)
		photo := whole.SubImage(image.Rect(2, 1, w+2, h+1)).(*image.RGBA)
		before := bytes.Clone(whole.Pix)
		mask := randomMask(rng, w, h)
		in, err := New(photo, mask, o)
		if err != nil {
			if o.Invert && o.Expand == (Border{}) && bounds(inverted(mask)).Empty() {
				continue
			}
			t.Fatal(err)
		}
		width, height := 16*(1+rng.IntN(8)), 16*(1+rng.IntN(8))
		img, seen := in.At(width, height)
		if img.Rect.Size() != image.Pt(width, height) || seen.Rect.Size() != img.Rect.Size() {
			t.Fatalf("the model sees %v and %v", img.Rect, seen.Rect)
		}
		generated := randomImage(rng, width, height)
		got := in.Paste(generated)
		if got.Rect.Size() != in.Size(image.Pt(width, height)) {
			t.Fatalf("pasted %v, want %v", got.Rect, in.Size(image.Pt(width, height)))
		}
		if o.NoPasteBack {
			if got != generated {
				t.Fatal("NoPasteBack returns another image than the model's")
			}
			continue
		}
		for y := range got.Rect.Dy() {
			for x := range got.Rect.Dx() {
				if in.Mask.GrayAt(x, y).Y > 0 {
					inside++
					continue
				}
				outside++
				from := image.Pt(x, y).Sub(in.Photo.Min)
				if pixel(got, x, y) != pixel(photo, from.X, from.Y) {
					t.Fatalf("%dx%d, %+v: pixel %d,%d outside the mask has changed", w, h, o, x, y)
				}
			}
		}
		if !bytes.Equal(whole.Pix, before) {
			t.Fatalf("%dx%d, %+v: the photo itself has changed", w, h, o)
		}
	}
	if outside < 100_000 || inside < 100_000 {
		t.Errorf("%d pixels outside of masks and %d inside", outside, inside)
	}
	t.Logf("%d pixels outside of masks", outside)
}

// waves returns an image with slopes of up to 30 levels a pixel.
func waves(width, height int) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			p := img.Pix[img.PixOffset(x, y):][:4]
			for k := range 3 {
				p[k] = uint8(math.Round(128 + 100*math.Sin(float64(x*(k+1)-y*(2-k))/8)))
			}
			p[3] = 255
		}
	}
	return img
}

// A model that returns what it sees changes nothing: where sizes agree not one pixel, elsewhere little.
// diffusers rounds the sizes of crops that are filled up, so those come back up to half a pixel off;
// one pixel is 37 levels here.
func TestPasteOfItself(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 60 {
		w, h := 60+rng.IntN(100), 60+rng.IntN(100)
		photo := waves(w, h)
		o := Options{Feather: rng.IntN(9) - 1, Crop: rng.IntN(2) == 0, Padding: rng.IntN(30)}
		in := newInput(t, photo, randomMask(rng, w, h), o)
		img, _ := in.At(w, h)
		if !o.Crop {
			if d := difference(t, in.Paste(img), photo); d != 0 {
				t.Errorf("%dx%d, %+v: the same image differs by up to %d levels", w, h, o, d)
			}
		}
		img, _ = in.At(256, 320)
		limit := 3
		if o.Crop {
			limit = 24
		}
		if d := difference(t, in.Paste(img), photo); d > limit {
			t.Errorf("%dx%d, %+v, region %v: an image of 256x320 differs by up to %d levels", w, h, o, in.Region(256, 320), d)
		}
	}
}

// A crop in the size of the run is pasted back as it is.
func TestPasteOfACrop(t *testing.T) {
	photo := waves(200, 150)
	mask := image.NewGray(photo.Rect)
	drawRect(mask, image.Rect(60, 40, 60+64, 40+48))
	in := newInput(t, photo, mask, Options{Crop: true})
	img, seen := in.At(64, 48)
	if d := difference(t, img, photo.SubImage(image.Rect(60, 40, 124, 88)).(*image.RGBA)); d != 0 {
		t.Errorf("the model sees another part, by up to %d levels", d)
	}
	if bounds(seen) != img.Rect {
		t.Errorf("mask %v", bounds(seen))
	}
	if d := difference(t, in.Paste(img), photo); d != 0 {
		t.Errorf("differs by up to %d levels", d)
	}
}

// Grey pixels of a mask are as much of the generated image as they are white, and the model sees
// those as white that are at least half of it.
func TestSoftMask(t *testing.T) {
	photo, generated := image.NewRGBA(image.Rect(0, 0, 256, 16)), image.NewRGBA(image.Rect(0, 0, 256, 16))
	mask := image.NewGray(photo.Rect)
	for i := range mask.Pix {
		mask.Pix[i] = uint8(i % 256)
		copy(photo.Pix[4*i:], []uint8{40, 0, 255, 255})
		copy(generated.Pix[4*i:], []uint8{80, 255, 255, 255})
	}
	in := newInput(t, photo, mask, Options{})
	_, seen := in.At(256, 16)
	got := in.Paste(generated)
	for v := range 256 {
		want := [3]uint8{uint8(math.Round(40 + 40*float64(v)/255)), uint8(v), 255}
		if p := pixel(got, v, 7); p != want {
			t.Errorf("mask %d: %v, want %v", v, p, want)
		}
		if white := seen.GrayAt(v, 7).Y; white != uint8(255*(v/128)) {
			t.Errorf("mask %d: the model sees %d", v, white)
		}
	}
}

// The images of a batch are pasted at the same time as previews in another size.
func TestConcurrentUse(t *testing.T) {
	photo := waves(120, 90)
	mask := image.NewGray(photo.Rect)
	drawEllipse(mask, image.Rect(20, 10, 100, 80))
	in := newInput(t, photo, mask, Options{Feather: -1, Crop: true, Padding: 4})
	sizes := []image.Point{{64, 48}, {128, 96}}
	want := make([]*image.RGBA, len(sizes))
	for i, size := range sizes {
		want[i] = newInput(t, photo, mask, in.Options).Paste(waves(size.X, size.Y))
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			size := sizes[i%2]
			for range 5 {
				in.At(size.X, size.Y)
				if got := in.Paste(waves(size.X, size.Y)); !bytes.Equal(got.Pix, want[i%2].Pix) {
					t.Errorf("%v: another image", size)
				}
			}
		})
	}
	all.Wait()
}
