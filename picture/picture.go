// Package picture reads image files safely, and writes them with the settings of
// the generation as metadata.
//
// Encode writes the Settings twice: as complete JSON, which ReadSettings prefers,
// and as the parameters text of AUTOMATIC1111's web UI, which galleries and other
// programs show.
//
//	format  JSON                               parameters text
//	PNG     iTXt chunk gomflux, UTF-8          tEXt chunk parameters if the text
//	                                           is Latin-1, else iTXt
//	JPEG    comment (COM) {"gomflux": {...}},  EXIF user comment, UTF-16 big
//	        UTF-8                              endian
//	WebP    EXIF image description             EXIF user comment, UTF-16 big
//	        {"gomflux": {...}}, UTF-8          endian
//
// WebP images are written without loss, by an encoder of this package.
//
// In JPEG files, JSON of more than 65,533 bytes continues in the next comment, and
// a parameters text that does not fit an EXIF segment (about 32,000 characters) is
// left out. The bytes depend only on the image and the settings.
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

// Format is a format of image files.
type Format int

// The supported formats.
const (
	PNG Format = iota + 1
	JPEG
	WebP
)

func (f Format) String() string {
	if r, ok := readers[f]; ok {
		return r.name
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

// jpegQuality is on the scale of libjpeg, up to 100.
const jpegQuality = 95

// FormatOf returns the format to write for a file name that ends in .png, .jpg,
// .jpeg or .webp, in upper or lower case.
func FormatOf(name string) (Format, error) {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".png":
		return PNG, nil
	case ".jpg", ".jpeg":
		return JPEG, nil
	case ".webp":
		return WebP, nil
	}
	return 0, errors.New("expected a name that ends in .png, .jpg, .jpeg or .webp")
}

// Encode writes an image as PNG, JPEG (quality 95) or WebP (without loss, up to
// 16,384 pixels a side), with s as metadata if s is not nil. JPEG has no transparency: there,
// transparent pixels are blended with white. If s.Check fails,
// Encode writes nothing and returns the error.
func Encode(w io.Writer, format Format, img image.Image, s *Settings) error {
	return encodeAt(w, format, img, s, jpegQuality)
}

// EncodeJPEG is Encode for JPEG with another quality, from 1 to 100 on the scale of
// libjpeg.
func EncodeJPEG(w io.Writer, img image.Image, s *Settings, quality int) error {
	if quality < 1 || quality > 100 {
		return fmt.Errorf("JPEG quality %d: expected 1 to 100", quality)
	}
	return encodeAt(w, JPEG, img, s, quality)
}

func encodeAt(w io.Writer, format Format, img image.Image, s *Settings, quality int) error {
	var b bytes.Buffer
	var encode func() error
	var add func([]byte, *Settings) ([]byte, error)
	var head int // number of bytes before the metadata
	switch format {
	case PNG:
		encode = func() error { return png.Encode(&b, img) }
		head, add = pngHead, appendPNGSettings
	case JPEG:
		encode = func() error { return jpeg.Encode(&b, onWhite(img), &jpeg.Options{Quality: quality}) }
		head, add = 2, appendJPEGSettings
	case WebP:
		data, err := webpFile(img, s)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	default:
		return fmt.Errorf("cannot write %v (expected PNG, JPEG or WebP)", format)
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
