package picture

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/image/webp"
)

// TestOpaque: what a decoder made becomes what Decode makes of the file.
func TestOpaque(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		decode := map[string]func(io.Reader) (image.Image, error){".png": png.Decode, ".jpg": jpeg.Decode,
			".webp": webp.Decode}[filepath.Ext(name)]
		if decode == nil || strings.Contains(name, "orientation") {
			continue
		}
		want, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		img, err := decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := img.(*image.YCbCr); ok && want.Format == WebP {
			continue // taken for JPEG's
		}
		tried++
		if got := Opaque(img); got.Rect != want.Image.Rect || !slices.Equal(got.Pix, want.Image.Pix) {
			t.Errorf("%s: other pixels than Decode's, off by up to %d", name, worst(t, got, want.Image))
		}
	}
	if tried < 20 {
		t.Errorf("only %d pictures were tried", tried)
	}
}

// TestOpaqueAlpha has all values with all alphas, in a part of a picture.
func TestOpaqueAlpha(t *testing.T) {
	whole := image.NewNRGBA(image.Rect(-3, -2, 300, 300))
	part := whole.SubImage(image.Rect(2, 1, 258, 257)).(*image.NRGBA)
	for y := range 256 {
		for x := range 256 {
			part.SetNRGBA(x+2, y+1, color.NRGBA{uint8(x), uint8(255 - x), 128, uint8(y)})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, part); err != nil {
		t.Fatal(err)
	}
	want, err := Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	if got := Opaque(part); got.Rect != want.Image.Rect || !slices.Equal(got.Pix, want.Image.Pix) {
		t.Errorf("other pixels than Decode's, off by up to %d", worst(t, got, want.Image))
	}

	// multiplied by its alpha it has lost some precision, and no more
	premultiplied := image.NewRGBA(part.Rect)
	draw.Draw(premultiplied, part.Rect, part, part.Rect.Min, draw.Src)
	if got := Opaque(premultiplied); got.Rect != want.Image.Rect || worst(t, got, want.Image) > 1 {
		t.Errorf("multiplied by alpha: %v, off by up to %d", got.Rect, worst(t, got, want.Image))
	}
}
