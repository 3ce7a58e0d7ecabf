package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDecodeIsPillows(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "want", "*.*.png"))
	if err != nil || len(names) < 30 {
		t.Fatalf("found %d references: %v", len(names), err)
	}
	for _, want := range names {
		base := filepath.Base(want)
		name := base[:len(base)-len(".png")]
		t.Run(name, func(t *testing.T) {
			p, err := ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			most := 0 // levels; libjpeg and libwebp round otherwise
			if ext := filepath.Ext(name); ext == ".jpg" || strings.Contains(name, "lossy") {
				most = 2
			}
			if d := worst(t, p.Image, readPNG(t, want)); d > most {
				t.Errorf("off by up to %d levels", d)
			}
			formats := map[string]Format{".png": PNG, ".jpg": JPEG, ".webp": WebP}
			if p.Format != formats[filepath.Ext(name)] {
				t.Errorf("format %v", p.Format)
			}
			if !p.Image.Opaque() || p.Image.Rect.Min != (image.Point{}) {
				t.Error("the picture is not opaque or does not start at 0, 0")
			}
		})
	}
}

func TestSHA256(t *testing.T) {
	p, err := ReadFile(filepath.Join("testdata", "rgb.png"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "66ec8e56a12e79a31224f349d618459b243ecb50bdadfec53b39c5e815745a6b" // of sha256sum
	if p.SHA256 != want || !isSHA256(p.SHA256) {
		t.Errorf("got %s, want %s", p.SHA256, want)
	}
}

// 16 bits become 8 by rounding, and transparent pixels are laid over white
// before that.
func TestDecode16Bits(t *testing.T) {
	values := []uint16{0, 127, 128, 129, 256, 384, 385, 386, 0x7fff, 0x8000, 0xff7e, 0xff7f, 0xff80, 0xffff}
	round := func(v float64) uint8 { return uint8(v/257 + 0.5) }
	colour := image.NewNRGBA64(image.Rect(0, 0, len(values), len(values)))
	grey := image.NewGray16(image.Rect(0, 0, len(values), 1))
	for x, v := range values {
		grey.SetGray16(x, 0, color.Gray16{Y: v})
		for y, a := range values {
			colour.SetNRGBA64(x, y, color.NRGBA64{R: v, G: 0xffff - v, B: 0, A: a})
		}
	}
	solid := image.NewNRGBA64(colour.Rect)
	copy(solid.Pix, colour.Pix)
	for i := 6; i < len(solid.Pix); i += 8 {
		solid.Pix[i], solid.Pix[i+1] = 0xff, 0xff
	}
	for name, img := range map[string]image.Image{"grey": grey, "opaque": solid, "transparent": colour} {
		var b bytes.Buffer
		if err := png.Encode(&b, img); err != nil {
			t.Fatal(err)
		}
		p, err := Decode(&b)
		if err != nil {
			t.Fatal(err)
		}
		for y := range p.Image.Rect.Dy() {
			for x := range p.Image.Rect.Dx() {
				v, a := float64(values[x]), 1.0
				if name == "transparent" {
					a = float64(values[y]) / 0xffff
				}
				over := func(v float64) uint8 { return round(v*a + 0xffff*(1-a)) }
				want := color.RGBA{over(v), over(0xffff - v), over(0), 255}
				if name == "grey" {
					want = color.RGBA{over(v), over(v), over(v), 255}
				}
				if got := p.Image.RGBAAt(x, y); got != want {
					t.Errorf("%s: %v of alpha %v: got %v, want %v", name, v, a, got, want)
				}
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, want := range map[string]string{
		"still.gif":      "the format GIF is not supported (convert the image to PNG, JPEG or WebP)",
		"animation.gif":  "the format GIF is not supported (convert the image to PNG, JPEG or WebP)",
		"still.tiff":     "the format TIFF is not supported (convert the image to PNG, JPEG or WebP)",
		"still.bmp":      "the format BMP is not supported (convert the image to PNG, JPEG or WebP)",
		"still.avif":     "the format AVIF is not supported (convert the image to PNG, JPEG or WebP)",
		"still.jp2":      "not a PNG, JPEG or WebP image",
		"animation.png":  "animated PNG images are not supported (save a single frame)",
		"animation.webp": "animated WebP images are not supported (save a single frame)",
		"cmyk.jpg": "the JPEG file cannot be decoded: unsupported JPEG feature: unknown color model: 4-component " +
			"JPEG doesn't have Adobe APP14 metadata",
	} {
		name = filepath.Join("testdata", "refused", name)
		if _, err := ReadFile(name); err == nil || err.Error() != name+": "+want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	for data, want := range map[string]string{
		"":                                 "is empty",
		"{}":                               "not a PNG",
		"\x00\x00\x00\x18ftypheic":         "the format HEIC is not supported",
		"\xff\x0a\x00":                     "the format JPEG XL is not supported",
		"\xff\xd8\xff":                     "the JPEG file is truncated",
		pngSignature:                       "the PNG file is truncated",
		"RIFF\x04\x00\x00\x00WEBP":         "the WebP file cannot be decoded",
		strings.Repeat("not a picture", 9): "not a PNG",
	} {
		if _, err := Decode(strings.NewReader(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", data, err, want)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Join(dir, "none.png")} {
		if _, err := ReadFile(name); err == nil || strings.Count(err.Error(), name) != 1 {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

// A header alone must not make the decoder allocate.
func TestDecodeTooLarge(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	pngFile := read("rgb.png")
	binary.BigEndian.PutUint32(pngFile[16:], 10_001)
	binary.BigEndian.PutUint32(pngFile[20:], 10_000)
	binary.BigEndian.PutUint32(pngFile[29:], crc32.ChecksumIEEE(pngFile[12:29]))
	jpegFile := read("rgb.jpg")
	frame := bytes.Index(jpegFile, []byte("\xff\xc0"))
	copy(jpegFile[frame+5:], "\xff\xff\xff\xff")
	lossless := read("lossless.webp")
	copy(lossless[21:], "\xff\xff\xff\x0f") // 14 bits each for width and height, less one
	lossy := read("lossy.webp")
	copy(lossy[26:], "\xff\x3f\xff\x3f")
	for name, c := range map[string]struct {
		data []byte
		size string
	}{
		"PNG": {pngFile, "10001x10000"}, "JPEG": {jpegFile, "65535x65535"},
		"lossless WebP": {lossless, "16384x16384"}, "lossy WebP": {lossy, "16383x16383"},
	} {
		_, err := Decode(bytes.NewReader(c.data))
		want := "image has " + c.size + " pixels, expected at most 100 million in total (scale it down first)"
		if err == nil || err.Error() != want {
			t.Errorf("%s: got error %v, want %s", name, err, want)
		}
	}
}

func TestDecodeCutOff(t *testing.T) {
	for _, name := range []string{"rgba.png", "rgb.jpg", "progressive.jpg", "lossless-rgba.webp", "lossy-rgba.webp",
		"lossy.webp", "orientation-6.webp"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		for n := range data {
			p, err := Decode(bytes.NewReader(data[:n]))
			if err == nil {
				t.Errorf("%s: %d of %d bytes gave a picture of %v", name, n, len(data), p.Image.Rect)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: error %q", name, err)
			}
		}
	}
}

// The alpha channel is kept, turned like the image, unless the image is opaque.
func TestAlpha(t *testing.T) {
	img := image.NewNRGBA(image.Rect(0, 0, 3, 2))
	for i := range 6 {
		img.SetNRGBA(i%3, i/3, color.NRGBA{10, 20, 30, uint8(40 * i)})
	}
	turned := appendChunk(nil, "eXIf", string(exifBlock(binary.BigEndian, 6, 7, "")))
	for _, c := range []struct {
		exif []byte
		want []uint8
	}{
		{nil, []uint8{0, 40, 80, 120, 160, 200}},
		{turned, []uint8{120, 0, 160, 40, 200, 80}},
	} {
		var b bytes.Buffer
		if err := png.Encode(&b, img); err != nil {
			t.Fatal(err)
		}
		data := bytes.Join([][]byte{b.Bytes()[:pngHead], c.exif, b.Bytes()[pngHead:]}, nil)
		p, err := Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if p.Alpha == nil || p.Alpha.Rect != p.Image.Rect || !bytes.Equal(p.Alpha.Pix, c.want) {
			t.Errorf("alpha %+v, expected %v", p.Alpha, c.want)
		}
	}
	for i := range 6 {
		img.Pix[4*i+3] = 0xff
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	if p, err := Decode(&b); err != nil || p.Alpha != nil {
		t.Errorf("opaque: alpha %v, error %v", p.Alpha, err)
	}
	for name, has := range map[string]bool{
		"rgb.png": false, "rgb.jpg": false, "lossless.webp": false, "cmyk.jpg": false, "palette.png": false,
		"rgb-transparent.png": true, "palette-transparent.png": true, "lossy-rgba.webp": true, "grey-transparent.png": true,
	} {
		if p, err := ReadFile(filepath.Join("testdata", name)); err != nil || (p.Alpha != nil) != has {
			t.Errorf("%s: alpha %t, expected %t (%v)", name, p.Alpha != nil, has, err)
		}
	}
}
