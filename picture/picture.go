// Package picture reads picture files safely, and writes them together with the
// settings that made them.
//
// What Encode writes carries Settings twice: as JSON, which has everything and
// is what ReadSettings takes, and as the parameters text of AUTOMATIC1111's web
// UI, which galleries and other programs show.
//
//	format  JSON                               parameters text
//	PNG     iTXt chunk gomflux, UTF-8          tEXt chunk parameters if Latin-1
//	                                           is enough for it, else iTXt
//	JPEG    comment (COM) {"gomflux": {...}},  EXIF user comment, UTF-16 big
//	        UTF-8                              endian
//
// JSON of more than 65,533 bytes goes on in the next JPEG comment, and a text
// that does not fit one EXIF segment (about 32,000 characters) is left out of a
// JPEG file. The bytes depend only on picture and settings.
package picture

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"path/filepath"
	"strings"
)

// Format is a format of picture files.
type Format int

// Formats that are read. WebP is not written.
const (
	PNG Format = iota + 1
	JPEG
	WebP
)

func (f Format) String() string {
	switch f {
	case PNG:
		return "PNG"
	case JPEG:
		return "JPEG"
	case WebP:
		return "WebP"
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

// jpegQuality is on the scale of libjpeg, up to 100.
const jpegQuality = 95

// FormatOf returns the format to write that a file's name asks for: .png, .jpg
// or .jpeg in upper or lower case.
func FormatOf(name string) (Format, error) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".png":
		return PNG, nil
	case ".jpg", ".jpeg":
		return JPEG, nil
	case ".webp":
		return 0, errors.New("WebP is read but not written (expected a name that ends in .png, .jpg or .jpeg)")
	}
	return 0, errors.New("expected a name that ends in .png, .jpg or .jpeg")
}

// Encode writes a picture as PNG or JPEG (quality 95), with s as metadata if it
// is not nil. Settings that s.Check refuses are an error, and nothing is
// written.
func Encode(w io.Writer, format Format, img image.Image, s *Settings) error {
	var b bytes.Buffer
	var encode func() error
	var add func([]byte, *Settings) ([]byte, error)
	var head int // bytes that the metadata comes after
	switch format {
	case PNG:
		encode = func() error { return png.Encode(&b, img) }
		head, add = pngHead, appendPNGSettings
	case JPEG:
		encode = func() error { return jpeg.Encode(&b, img, &jpeg.Options{Quality: jpegQuality}) }
		head, add = 2, appendJPEGSettings
	default:
		return fmt.Errorf("%v is not written (expected PNG or JPEG)", format)
	}
	var metadata []byte
	if s != nil {
		var err error
		if metadata, err = add(nil, s); err != nil {
			return err
		}
	}
	if err := encode(); err != nil {
		return err
	}
	for _, part := range [][]byte{b.Bytes()[:head], metadata, b.Bytes()[head:]} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}
