package inpaint

import (
	"image"
	"math"
	"strings"
	"testing"
)

func TestParseBorder(t *testing.T) {
	photo := image.Pt(1024, 768)
	for _, c := range []struct {
		text string
		want Border
		err  string
	}{
		{"0,0,256,0", Border{0, 0, 256, 0}, ""},
		{"1,2,3,4", Border{1, 2, 3, 4}, ""},
		{"-1,2,3,4", Border{-1, 2, 3, 4}, "must not be negative"},
		{"0,0,0,0", Border{}, "adds nothing"},
		{"100000,0,0,0", Border{100000, 0, 0, 0}, "expected at most 65536 pixels on each side"},
		{"65536,0,65536,0", Border{65536, 0, 65536, 0}, "the canvas of 132096x768 pixels has a side of more than 65536"},
		{"1000,1000,30000,10000", Border{1000, 1000, 30000, 10000}, "more than 100 million pixels"},
		{"2147483647,0,2147483647,0", Border{2147483647, 0, 2147483647, 0}, "at most 65536"},
		{"99999999999,0,0,0", Border{}, "expected LEFT,TOP,RIGHT,BOTTOM"},
		{"1,2,3", Border{}, "expected LEFT,TOP,RIGHT,BOTTOM"},
		{"1,2,3,4,5", Border{}, "expected LEFT,TOP,RIGHT,BOTTOM"},
		{"1,2,3,x", Border{}, "expected LEFT,TOP,RIGHT,BOTTOM"},
		{"", Border{}, "expected LEFT,TOP,RIGHT,BOTTOM"},
	} {
		b, err := ParseBorder(c.text)
		if b != c.want {
			t.Errorf("%q: %v, want %v", c.text, b, c.want)
		}
		if err == nil {
			if b.String() != c.text {
				t.Errorf("%q: %s", c.text, b)
			}
			err = b.Check(photo)
		}
		checkError(t, c.text, err, c.err)
	}
}

// The sum of sides that is too large for an int is an error too.
func TestBorderOverflow(t *testing.T) {
	for _, b := range []Border{{Left: math.MaxInt, Right: math.MaxInt}, {Top: math.MaxInt, Bottom: 1}, {math.MaxInt, math.MaxInt, 1, 1}} {
		checkError(t, b.String(), b.Check(image.Pt(10, 10)), "at most 65536 pixels on each side")
	}
}

func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case err == nil && want != "":
		t.Errorf("%q: no error, want %q", name, want)
	case err != nil && (want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")):
		t.Errorf("%q: %q, want %q", name, err, want)
	}
}

func TestParseCanvas(t *testing.T) {
	for _, c := range []struct {
		text string
		want Border
		err  string
	}{
		{"1536x1024", Border{256, 128, 256, 128}, ""},
		{"1025x769", Border{0, 0, 1, 1}, ""},
		{"1024x768", Border{}, ""}, // Check refuses it
		{"1536x768@0,0", Border{0, 0, 512, 0}, ""},
		{"1536x800@512,32", Border{512, 32, 0, 0}, ""},
		{"1536x800@513,32", Border{}, "is not all inside the canvas of 1536x800"},
		{"1536x800@-1,0", Border{}, "is not all inside"},
		{"1000x1000", Border{}, "canvas 1000x1000 is smaller than the image of 1024x768"},
		{"-5x1000", Border{}, "is smaller than"},
		{"1536", Border{}, "expected WIDTHxHEIGHT"},
		{"1536x1024@", Border{}, "expected WIDTHxHEIGHT"},
		{"1536x1024@1", Border{}, "expected WIDTHxHEIGHT"},
		{"1536x1024@1,2,3", Border{}, "expected WIDTHxHEIGHT"},
		{"axb", Border{}, "expected WIDTHxHEIGHT"},
	} {
		b, err := ParseCanvas(c.text, image.Pt(1024, 768))
		if b != c.want {
			t.Errorf("%q: %v, want %v", c.text, b, c.want)
		}
		checkError(t, c.text, err, c.err)
	}
}

// Outpainting keeps the photo as it is, repaints all of the border, and fades inside it.
func TestExpand(t *testing.T) {
	photo := waves(50, 40)
	given := image.NewGray(photo.Rect)
	drawRect(given, image.Rect(20, 10, 30, 15))
	for _, mask := range []image.Image{nil, given, image.NewGray(photo.Rect)} {
		o := Options{Feather: 3, Expand: Border{10, 0, 20, 5}}
		in := newInput(t, photo, mask, o)
		if in.Image.Rect != image.Rect(0, 0, 80, 45) || in.Photo != image.Rect(10, 0, 60, 40) {
			t.Fatalf("canvas %v, photo %v", in.Image.Rect, in.Photo)
		}
		for y := range 45 {
			for x := range 80 {
				want := uint8(0)
				if p := image.Pt(x, y); !p.In(in.Photo) || mask == given && p.Sub(in.Photo.Min).In(image.Rect(20, 10, 30, 15)) {
					want = 255
				}
				if v := in.Mask.GrayAt(x, y).Y; v != want {
					t.Fatalf("mask %d at %d,%d", v, x, y)
				}
			}
		}
		generated := image.NewRGBA(in.Image.Rect)
		for i := range generated.Pix {
			generated.Pix[i] = 255
		}
		got := in.Paste(generated)
		last := pixel(got, 59, 20)
		for x := 60; x < 64; x++ {
			p := pixel(got, x, 20)
			if p[0] < last[0] || p[1] < last[1] || p[2] < last[2] {
				t.Errorf("%v at %d,20 after %v", p, x, last)
			}
			last = p
		}
		if last != [3]uint8{255, 255, 255} {
			t.Errorf("%v beyond the feather", last)
		}
	}
	in := newInput(t, photo, given, Options{Invert: true, Expand: Border{Left: 4}})
	if in.Mask.GrayAt(2, 2).Y != 255 || in.Mask.GrayAt(4+25, 12).Y != 0 || in.Mask.GrayAt(4, 2).Y != 255 {
		t.Error("Invert is for the given mask, not for the border")
	}
}

// The border continues the photo's edges: its first pixels are those of the edge, and all of them are
// inside the range of the edge's values.
func TestPadding(t *testing.T) {
	photo := randomImage(newRNG(), 30, 20)
	for _, b := range []Border{{5, 6, 7, 8}, {40, 0, 0, 0}, {0, 1, 0, 50}} {
		in := newInput(t, photo, nil, Options{Expand: b})
		r := in.Photo
		for y := r.Min.Y; y < r.Max.Y; y++ {
			if b.Left > 0 && pixel(in.Image, r.Min.X-1, y) != pixel(in.Image, r.Min.X, y) {
				t.Fatalf("%v: another pixel left of row %d", b, y)
			}
			if b.Right > 0 && pixel(in.Image, r.Max.X, y) != pixel(in.Image, r.Max.X-1, y) {
				t.Fatalf("%v: another pixel right of row %d", b, y)
			}
		}
		for x := r.Min.X; x < r.Max.X; x++ {
			if b.Top > 0 && pixel(in.Image, x, r.Min.Y-1) != pixel(in.Image, x, r.Min.Y) {
				t.Fatalf("%v: another pixel above column %d", b, x)
			}
			if b.Bottom > 0 && pixel(in.Image, x, r.Max.Y) != pixel(in.Image, x, r.Max.Y-1) {
				t.Fatalf("%v: another pixel below column %d", b, x)
			}
		}
		if !in.Image.Opaque() {
			t.Fatalf("%v: the canvas is not opaque", b)
		}
	}
	grey := image.NewRGBA(image.Rect(0, 0, 30, 20))
	for i := range grey.Pix {
		grey.Pix[i] = []uint8{90, 200, 10, 255}[i%4]
	}
	in := newInput(t, grey, nil, Options{Expand: Border{11, 12, 13, 14}})
	for i, v := range in.Image.Pix {
		if v != grey.Pix[i%4] {
			t.Fatalf("the border of one colour has another, %d", v)
		}
	}
}
