package inpaint

import (
	"encoding/json"
	"image"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/picture"
)

// golden has what diffusers makes of images and masks (scripts/reference/run.sh masks
// models/inpaint/testdata).
type golden struct {
	Images []struct {
		Mask     string
		Run      [2]int
		Padding  *int // nil: no crop
		Region   [4]int
		Seen     string
		SeenMask string `json:"seen_mask"`
		Pasted   string
	}
	Regions []struct {
		Size    [2]int
		Box     [4]int
		Run     [2]int
		Padding int
		Region  [4]int
	}
}

func readGolden(t *testing.T) golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func read4(r [4]int) image.Rectangle { return image.Rect(r[0], r[1], r[2], r[3]) }

func readImage(t testing.TB, name string) *image.RGBA {
	t.Helper()
	p, err := picture.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return p.Image
}

// difference returns the largest difference of any value, and fails where sizes differ.
func difference(t *testing.T, got, want *image.RGBA) int {
	t.Helper()
	if got.Rect.Size() != want.Rect.Size() {
		t.Fatalf("size %v, want %v", got.Rect.Size(), want.Rect.Size())
	}
	most := 0
	for y := range got.Rect.Dy() {
		for x := range got.Rect.Dx() {
			a, b := pixel(got, x, y), pixel(want, x, y)
			for k := range a {
				most = max(most, int(a[k])-int(b[k]), int(b[k])-int(a[k]))
			}
		}
	}
	return most
}

// pixel returns red, green and blue of a pixel, counted from the first one.
func pixel(img *image.RGBA, x, y int) [3]uint8 {
	return [3]uint8(img.Pix[y*img.Stride+4*x:][:3])
}

func negative(img *image.RGBA) *image.RGBA {
	out := image.NewRGBA(img.Rect)
	for i, v := range img.Pix {
		out.Pix[i] = ^v
		if i%4 == 3 {
			out.Pix[i] = 255
		}
	}
	return out
}

func TestGolden(t *testing.T) {
	photo := readImage(t, "photo.png")
	cases := readGolden(t).Images
	if len(cases) < 10 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Seen, func(t *testing.T) {
			o := Options{Crop: c.Padding != nil}
			if o.Crop {
				o.Padding = *c.Padding
			}
			in, err := New(photo, readImage(t, c.Mask), o)
			if err != nil {
				t.Fatal(err)
			}
			img, mask := in.At(c.Run[0], c.Run[1])
			seen := readImage(t, c.Seen)
			if d := difference(t, img, seen); d != 0 {
				t.Errorf("the image differs by up to %d levels", d)
			}
			if d := difference(t, rgbaOf(mask), readImage(t, c.SeenMask)); d != 0 {
				t.Error("the mask differs")
			}
			if !o.Crop {
				return
			}
			if got := in.Region(c.Run[0], c.Run[1]); got != read4(c.Region) {
				t.Errorf("region %v, want %v", got, read4(c.Region))
			}
			if d := difference(t, in.Paste(negative(seen)), readImage(t, c.Pasted)); d > 1 {
				t.Errorf("the pasted image differs by up to %d levels", d)
			}
		})
	}
}

func TestRegions(t *testing.T) {
	cases := readGolden(t).Regions
	if len(cases) < 200 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		mask := image.NewGray(image.Rect(0, 0, c.Size[0], c.Size[1]))
		drawRect(mask, read4(c.Box))
		in := &Input{Mask: mask, Options: Options{Crop: true, Padding: c.Padding}}
		got := in.Region(c.Run[0], c.Run[1])
		if got != read4(c.Region) {
			t.Errorf("box %v in %v, padding %d, run %v: region %v, want %v", c.Box, c.Size, c.Padding, c.Run, got, c.Region)
		}
		if !read4(c.Box).In(got) || !got.In(mask.Rect) {
			t.Errorf("box %v in %v: region %v", c.Box, c.Size, got)
		}
	}
}
