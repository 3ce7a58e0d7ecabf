package picture

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readNRGBA reads a PNG with nothing but Go's decoder.
func readNRGBA(t *testing.T, name string) *image.NRGBA {
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
	switch img := img.(type) {
	case *image.NRGBA:
		return img
	case *image.RGBA: // opaque
		return (*image.NRGBA)(img)
	}
	t.Fatalf("%s: %T", name, img)
	return nil
}

// sameNRGBA fails unless all values of two images are equal.
func sameNRGBA(t *testing.T, what string, got, want *image.NRGBA) {
	t.Helper()
	if d := worst(t, (*image.RGBA)(got), (*image.RGBA)(want)); d != 0 {
		t.Errorf("%s: off by up to %d levels", what, d)
	}
}

// TestResizeTransparent compares scaled images with Pillow's.
func TestResizeTransparent(t *testing.T) {
	src := readNRGBA(t, "testdata/transparent.png")
	names, err := filepath.Glob("testdata/want/transparent-*[0-9]x*[0-9].png")
	if err != nil || len(names) != 6 {
		t.Fatalf("found %d references: %v", len(names), err)
	}
	inside := image.NewNRGBA(image.Rect(-5, -7, 60, 70)) // an image whose bounds do not begin at 0, 0
	part := inside.SubImage(image.Rectangle{image.Pt(2, 3), image.Pt(2, 3).Add(src.Rect.Size())}).(*image.NRGBA)
	for y := range src.Rect.Dy() {
		for x := range src.Rect.Dx() {
			part.SetNRGBA(2+x, 3+y, src.NRGBAAt(x, y))
		}
	}
	for _, name := range names {
		var w, h int
		if _, err := fmt.Sscanf(filepath.Base(name), "transparent-%dx%d.png", &w, &h); err != nil {
			t.Fatal(err)
		}
		want := readNRGBA(t, name)
		sameNRGBA(t, name, ResizeTransparent(src, w, h), want)
		sameNRGBA(t, name+" of a part", ResizeTransparent(part, w, h), want)
	}
	if got, want := Opaque(src), readPNG(t, "testdata/want/transparent-on-white.png"); worst(t, got, want) != 0 {
		t.Errorf("on white: off by up to %d levels", worst(t, got, want))
	}
}

// TestDecodeTransparent compares the pixels of files with transparency with Pillow's.
func TestDecodeTransparent(t *testing.T) {
	names, err := filepath.Glob("testdata/straight/*.png")
	if err != nil || len(names) < 6 {
		t.Fatalf("found %d references: %v", len(names), err)
	}
	for _, name := range names {
		file := strings.TrimSuffix(filepath.Base(name), ".png")
		p, err := ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		want := readNRGBA(t, name)
		if p.Transparent == nil || p.Pixels() != image.Image(p.Transparent) {
			t.Errorf("%s: is taken for opaque", file)
			continue
		}
		if strings.Contains(file, "lossy") { // libwebp rounds otherwise
			if d := worst(t, (*image.RGBA)(p.Transparent), (*image.RGBA)(want)); d > 2 {
				t.Errorf("%s: off by up to %d levels", file, d)
			}
		} else {
			sameNRGBA(t, file, p.Transparent, want)
		}
		if back := Opaque(p.Transparent); worst(t, back, p.Image) > 1 {
			t.Errorf("%s: on white it is off from Image by up to %d levels", file, worst(t, back, p.Image))
		}
	}
	p, err := ReadFile("testdata/rgb.png")
	if err != nil || p.Transparent != nil || p.Pixels() != image.Image(p.Image) {
		t.Errorf("rgb.png: %v, transparent %v", err, p.Transparent != nil)
	}
}

// TestTransparent converts images of other types.
func TestTransparent(t *testing.T) {
	half := color.NRGBA{200, 100, 50, 128}
	premultiplied, deep := image.NewRGBA(image.Rect(3, 4, 5, 5)), image.NewNRGBA64(image.Rect(0, 0, 2, 1))
	for x := range 2 {
		premultiplied.Set(3+x, 4, half)
		deep.Set(x, 0, half)
	}
	for _, img := range []image.Image{premultiplied, deep} {
		got := Transparent(img)
		if got == nil || got.Rect != image.Rect(0, 0, 2, 1) {
			t.Fatalf("%T: %v", img, got)
		}
		c := got.NRGBAAt(1, 0)
		if c.A != 128 || max(c.R, 200)-min(c.R, 200) > 1 || max(c.G, 100)-min(c.G, 100) > 1 {
			t.Errorf("%T: %v, expected %v", img, c, half)
		}
	}
	same := image.NewNRGBA(image.Rect(1, 1, 3, 3))
	if Transparent(same) != same {
		t.Error("an *image.NRGBA was copied")
	}
	opaque := image.NewNRGBA64(image.Rect(0, 0, 1, 1))
	opaque.Set(0, 0, color.White)
	for _, img := range []image.Image{opaque, image.NewGray(image.Rect(0, 0, 2, 2))} {
		if Transparent(img) != nil {
			t.Errorf("%T: is opaque", img)
		}
	}
}

// TestEncodeTransparent checks that PNG and WebP keep all pixels of an image with transparency,
// those of invisible ones too, and that in JPEG it is on white.
func TestEncodeTransparent(t *testing.T) {
	src := readNRGBA(t, "testdata/transparent.png")
	invisible := 0
	for i := 3; i < len(src.Pix); i += 4 {
		if src.Pix[i] == 0 && src.Pix[i-1] != 0 {
			invisible++
		}
	}
	if invisible == 0 {
		t.Fatal("the image has no invisible pixels with a colour")
	}
	for _, format := range []Format{PNG, WebP} {
		for _, s := range []*Settings{nil, {Model: "m", Prompt: "p", Steps: 1, Height: 19, Width: 26}} {
			var b bytes.Buffer
			if err := Encode(&b, format, src, s); err != nil {
				t.Fatal(err)
			}
			p, err := Decode(&b)
			if err != nil {
				t.Fatal(err)
			}
			if p.Transparent == nil {
				t.Fatalf("%v: opaque", format)
			}
			sameNRGBA(t, format.String(), p.Transparent, src)
		}
	}
	var b, white bytes.Buffer
	if err := Encode(&b, JPEG, src, nil); err != nil {
		t.Fatal(err)
	}
	if err := Encode(&white, JPEG, Opaque(src), nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), white.Bytes()) {
		t.Error("JPEG: not on white")
	}
}
