package picture

import (
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/resample"
)

// readPNG reads a reference picture with nothing but Go's decoder.
func readPNG(t *testing.T, name string) *image.RGBA {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return opaque(img, PNG)
}

// worst returns the largest difference of any value, and fails where sizes
// differ.
func worst(t *testing.T, got, want *image.RGBA) int {
	t.Helper()
	if got.Rect.Size() != want.Rect.Size() {
		t.Fatalf("size %v, want %v", got.Rect.Size(), want.Rect.Size())
	}
	most := 0
	for y := range got.Rect.Dy() {
		for i := range 4 * got.Rect.Dx() {
			d := int(got.Pix[y*got.Stride+i]) - int(want.Pix[y*want.Stride+i])
			most = max(most, d, -d)
		}
	}
	return most
}

// filters are what resizes, with what the references of each are called.
var filters = map[string]func(img *image.RGBA, width, height int) *image.RGBA{
	"":          Resize,                 // Pillow's
	"bilinear-": resample.Bilinear.RGBA, // Pillow's
	"bicubic-":  ResizeBicubic,          // torchvision's
}

func TestResizeIsTheReferences(t *testing.T) {
	for prefix, resize := range filters {
		for _, label := range []string{"noise", "smooth"} {
			src := readPNG(t, filepath.Join("testdata", label+".png"))
			names, err := filepath.Glob(filepath.Join("testdata", "want", prefix+label+"-*[0-9]x*[0-9].png"))
			if err != nil || len(names) != 6 {
				t.Fatalf("found %d references of %s%s: %v", len(names), prefix, label, err)
			}
			for _, name := range names {
				var w, h int
				if _, err := fmt.Sscanf(filepath.Base(name), prefix+label+"-%dx%d.png", &w, &h); err != nil {
					t.Fatal(err)
				}
				if d := worst(t, resize(src, w, h), readPNG(t, name)); d != 0 {
					t.Errorf("%s: off by up to %d levels", name, d)
				}
			}
		}
	}
}

// A part of a picture is resized as if it were alone.
func TestResizePart(t *testing.T) {
	src := readPNG(t, filepath.Join("testdata", "smooth.png"))
	part := src.SubImage(image.Rect(5, 3, 40, 30)).(*image.RGBA)
	alone := image.NewRGBA(image.Rect(0, 0, 35, 27))
	for y := range 27 {
		for x := range 35 {
			alone.SetRGBA(x, y, part.RGBAAt(5+x, 3+y))
		}
	}
	for prefix, resize := range filters {
		for _, size := range []image.Point{{20, 50}, {35, 27}, {35, 9}} {
			if d := worst(t, resize(part, size.X, size.Y), resize(alone, size.X, size.Y)); d != 0 {
				t.Errorf("%s%v: off by up to %d levels", prefix, size, d)
			}
		}
		if d := worst(t, resize(alone, 35, 27), alone); d != 0 {
			t.Errorf("%sthe same size: off by up to %d levels", prefix, d)
		}
	}
}

// A part of a scaled image, and a grey image, are computed as all of it.
func TestResizeSomeOfIt(t *testing.T) {
	src := readPNG(t, filepath.Join("testdata", "noise.png"))
	w, h := src.Rect.Dx(), src.Rect.Dy()
	gray := image.NewGray(src.Rect)
	for i := range gray.Pix {
		gray.Pix[i] = src.Pix[4*i+1]
	}
	for _, size := range []image.Point{{60, 50}, {9, 5}, {w, 40}, {50, h}, {w, h}} {
		all := Resize(src, size.X, size.Y)
		for _, part := range []image.Rectangle{image.Rect(2, 1, 7, 4), image.Rect(5, 3, 99, 99), image.Rect(4, 4, 4, 9)} {
			got := resample.Lanczos.Part(src, size.X, size.Y, part)
			want := all.SubImage(part).(*image.RGBA)
			if !part.Empty() && got.Rect != want.Rect {
				t.Fatalf("%v: part %v, want %v", size, got.Rect, want.Rect)
			}
			if d := worst(t, got, want); d != 0 {
				t.Errorf("%v, part %v: off by up to %d levels", size, part, d)
			}
		}
		for i, v := range resample.Lanczos.Gray(gray, size.X, size.Y).Pix {
			if v != all.Pix[4*i+1] {
				t.Fatalf("%v: grey %d at %d, want %d", size, v, i, all.Pix[4*i+1])
			}
		}
	}
}

// One colour stays one colour, whatever the sizes.
func TestResizeColour(t *testing.T) {
	sizes := []int{1, 2, 3, 7, 64}
	for _, w := range sizes {
		for _, h := range sizes {
			src := image.NewRGBA(image.Rect(0, 0, w, h))
			for i := range src.Pix {
				src.Pix[i] = []uint8{0, 255, 77, 255}[i%4]
			}
			for prefix, resize := range filters {
				for _, width := range sizes {
					for _, height := range sizes {
						got := resize(src, width, height)
						if got.Rect.Dx() != width || got.Rect.Dy() != height {
							t.Fatalf("size %v, want %dx%d", got.Rect.Size(), width, height)
						}
						for i, v := range got.Pix {
							if v != src.Pix[i%4] {
								t.Fatalf("%s%dx%d to %dx%d: value %d is %d", prefix, w, h, width, height, i, v)
							}
						}
					}
				}
			}
		}
	}
}
