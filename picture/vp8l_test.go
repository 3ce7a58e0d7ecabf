package picture

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/image/webp"
)

// TestVP8L decodes WebP images of many kinds: all pixels must be the same.
func TestVP8L(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := func() uint8 { return uint8(random.Uint32()) }
	kinds := map[string]func(x, y int) color.NRGBA{
		"one color":   func(int, int) color.NRGBA { return color.NRGBA{200, 100, 50, 255} },
		"gradient":    func(x, y int) color.NRGBA { return color.NRGBA{uint8(3 * x), uint8(5 * y), uint8(x + y), 255} },
		"transparent": func(x, y int) color.NRGBA { return color.NRGBA{uint8(x), 7, uint8(y), uint8(x * y)} },
		"noise":       func(int, int) color.NRGBA { return color.NRGBA{noise(), noise(), noise(), noise()} },
		"tiles":       func(x, y int) color.NRGBA { return color.NRGBA{uint8(x % 7 * 31), uint8(y % 5 * 41), 9, 255} },
		"rare colors": func(int, int) color.NRGBA { // with Huffman codes of very different lengths
			v := uint8(0)
			for random.Float64() < 0.38 {
				v += 37
			}
			return color.NRGBA{v, v * 3, v * 5, 255}
		},
	}
	for name, at := range kinds {
		for _, size := range []image.Point{{1, 1}, {1, 9}, {2, 1}, {3, 3}, {15, 17}, {16, 16}, {33, 40}, {300, 301}, {5000, 2}} {
			img := image.NewNRGBA(image.Rect(2, 3, 2+size.X, 3+size.Y)) // bounds may begin anywhere
			for y := range size.Y {
				for x := range size.X {
					img.SetNRGBA(2+x, 3+y, at(x, y))
				}
			}
			var b bytes.Buffer
			if err := Encode(&b, WebP, img, nil); err != nil {
				t.Fatal(err)
			}
			got, err := webp.Decode(&b)
			if err != nil {
				t.Errorf("%s, %v: %v", name, size, err)
				continue
			}
			wantPixels, wantAlpha := argb(img)
			gotPixels, gotAlpha := argb(got)
			if got.Bounds().Size() != size || !slices.Equal(gotPixels, wantPixels) || gotAlpha != wantAlpha {
				t.Errorf("%s, %v: decoded to other pixels", name, size)
			}
		}
	}
}

// TestVP8LSize checks that the encoder compresses: less than PNG for smooth and flat images.
func TestVP8LSize(t *testing.T) {
	flat := image.NewRGBA(image.Rect(0, 0, 400, 300))
	smooth := image.NewRGBA(flat.Rect)
	for i := range 400 * 300 {
		x, y := i%400, i/400
		flat.Set(x, y, color.RGBA{uint8(x / 100 * 60), uint8(y / 100 * 90), 80, 255})
		smooth.Set(x, y, color.RGBA{uint8((x*x + y*y) / 900), uint8(x * y / 500), uint8((x + 2*y) / 4), 255})
	}
	for name, img := range map[string]image.Image{"flat": flat, "smooth": smooth} {
		var p, w bytes.Buffer
		if err := png.Encode(&p, img); err != nil {
			t.Fatal(err)
		}
		if err := Encode(&w, WebP, img, nil); err != nil {
			t.Fatal(err)
		}
		if w.Len() >= p.Len() {
			t.Errorf("%s: %d bytes, PNG %d", name, w.Len(), p.Len())
		}
	}
}

func TestVP8LRefuses(t *testing.T) {
	for want, size := range map[string]image.Point{
		"at most 16384 pixels a side, found 16385x1": {maxWebPSide + 1, 1},
		"an image of 0x5 pixels":                     {0, 5},
	} {
		var b bytes.Buffer
		err := Encode(&b, WebP, image.NewRGBA(image.Rectangle{Max: size}), nil)
		if err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 {
			t.Errorf("%v: error %v, %d bytes", size, err, b.Len())
		}
	}
	var b bytes.Buffer
	if err := Encode(&b, WebP, image.NewRGBA(image.Rect(0, 0, 1, maxWebPSide)), nil); err != nil {
		t.Error(err)
	}
}

// FuzzVP8L encodes images of any bytes, which must be decoded to the same pixels.
func FuzzVP8L(f *testing.F) {
	f.Add(uint8(1), []byte("RGBA"))
	f.Add(uint8(9), bytes.Repeat([]byte("\x01\x02\x03\xff"), 200))
	f.Fuzz(func(t *testing.T, width uint8, data []byte) {
		n := len(data) / 4
		w := int(max(width, 1))
		if n < w || n > 1<<16 {
			return
		}
		img := &image.NRGBA{Pix: data[:n/w*w*4], Stride: 4 * w, Rect: image.Rect(0, 0, w, n/w)}
		var b bytes.Buffer
		if err := Encode(&b, WebP, img, nil); err != nil {
			t.Fatal(err)
		}
		got, err := webp.Decode(&b)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := argb(img)
		if pixels, _ := argb(got); !slices.Equal(pixels, want) {
			t.Error("decoded to other pixels")
		}
	})
}
