package picture

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"io"
	"os"

	"golang.org/x/image/webp"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/textfile"
)

// MaxPixels is the largest number of pixels of an image that Decode reads.
const MaxPixels = 100_000_000

// maxFile limits the size of a file, in bytes. It is a little less than MaxPixels
// of 16-bit RGB without compression.
const maxFile = 512 << 20

// A Picture is a decoded image file.
type Picture struct {
	// Image is opaque. The file's EXIF orientation has been applied.
	Image *image.RGBA
	// Transparent has the pixels of Image before they were blended with white, nil if all of
	// them are opaque.
	Transparent *image.NRGBA
	// Alpha is the opacity of the file's pixels in the size of Image, nil if all of them
	// are opaque.
	Alpha  *image.Alpha
	Format Format
	// SHA256 is the hash of the file's bytes in lower-case hexadecimal digits.
	SHA256 string
}

// Decode reads a PNG, JPEG or WebP image. It detects the format by the contents.
//
// The pixels are those of diffusers' load_image and of mflux: Decode applies the
// EXIF orientation and converts grey, paletted and CMYK images to RGB.
// Transparent pixels are blended with white, because the colour stored under them
// is usually arbitrary (diffusers drops the alpha channel and shows that colour).
// 16-bit values are rounded to 8 bits. Colour profiles are ignored.
//
// Images of more than MaxPixels, animations and other formats are errors.
func Decode(r io.Reader) (*Picture, error) { return decode(r, MaxPixels) }

func decode(r io.Reader, maxPixels int64) (*Picture, error) {
	data, format, err := readAll(r, false)
	if err != nil {
		return nil, err
	}
	animated, orientation, err := inspect(format, data)
	if err != nil {
		return nil, damaged(format, err)
	}
	if animated {
		return nil, fmt.Errorf("animated %v images are not supported (save a single frame)", format)
	}
	config, err := readers[format].config(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(format, err)
	}
	if config.Width <= 0 || config.Height <= 0 {
		return nil, fmt.Errorf("the %v image has %dx%d pixels", format, config.Width, config.Height)
	}
	if pixels := int64(config.Width) * int64(config.Height); pixels > maxPixels {
		return nil, fmt.Errorf("image has %dx%d pixels, expected at most %d million in total (scale it down first)",
			config.Width, config.Height, maxPixels/1e6)
	}
	img, err := readers[format].decode(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(format, err)
	}
	sum := sha256.Sum256(data)
	p := &Picture{
		Image:  orient(opaque(img, format), orientation),
		Format: format,
		SHA256: hex.EncodeToString(sum[:]),
	}
	if t := Transparent(img); t != nil {
		p.Transparent = (*image.NRGBA)(orient((*image.RGBA)(t), orientation))
		p.Alpha = AlphaOf(p.Transparent)
	}
	return p, nil
}

// Pixels returns the image with its transparency: Transparent, or Image if that is nil.
func (p *Picture) Pixels() image.Image {
	if p.Transparent != nil {
		return p.Transparent
	}
	return p.Image
}

// ReadFile decodes a file. Errors contain its name.
func ReadFile(name string) (*Picture, error) { return readFile(name, Decode) }

func readFile[T any](name string, read func(io.Reader) (T, error)) (none T, err error) {
	f, err := os.Open(name)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, oserr.Bare(err))
	}
	return v, nil
}

// readers read the formats.
var readers = map[Format]struct {
	name   string
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
	texts  func([]byte) (texts, error)
}{
	PNG:  {"PNG", png.DecodeConfig, png.Decode, pngTexts},
	JPEG: {"JPEG", jpeg.DecodeConfig, jpeg.Decode, jpegTexts},
	WebP: {"WebP", webp.DecodeConfig, webp.Decode, webpTexts},
}

// damaged wraps the error of a decoder.
func damaged(format Format, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the %v file is truncated: %w", format, oserr.NoEOF(err))
	}
	return fmt.Errorf("the %v file cannot be decoded: %w", format, err)
}

// readAll reads an image file or, if sidecar is set, a JSON file, whose format is
// 0. It rejects other files after their first bytes.
func readAll(r io.Reader, sidecar bool) ([]byte, Format, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(512)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	format := sniff(head)
	limit := int64(maxFile)
	if format == 0 {
		text, err := textfile.Decode(head)
		if !sidecar || err != nil || !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) {
			return nil, 0, unknownFormat(head)
		}
		limit = maxText
	}
	data, err := io.ReadAll(io.LimitReader(b, limit+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(data)) > limit {
		return nil, 0, fmt.Errorf("file is larger than %d MiB", limit>>20)
	}
	return data, format, nil
}

// sniff detects the format by the first bytes of a file. It returns 0 if the
// format is not supported.
func sniff(head []byte) Format {
	switch {
	case bytes.HasPrefix(head, []byte(pngSignature)):
		return PNG
	case bytes.HasPrefix(head, []byte{0xff, markerSOI, 0xff}):
		return JPEG
	case len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP":
		return WebP
	}
	return 0
}

// unknownFormat returns the error for an unsupported file. It names the format if
// it knows it.
func unknownFormat(head []byte) error {
	if len(head) == 0 {
		return errors.New("file is empty")
	}
	if len(head) >= 12 && string(head[4:8]) == "ftyp" { // after the size of the box
		head = head[4:]
	}
	for _, f := range []struct{ start, name string }{
		{"GIF8", "GIF"}, {"II*\x00", "TIFF"}, {"MM\x00*", "TIFF"}, {"BM", "BMP"}, {"\xff\x0a", "JPEG XL"},
		{"\x00\x00\x00\x0cJXL ", "JPEG XL"}, {"ftypavif", "AVIF"}, {"ftypavis", "AVIF"}, {"ftyphe", "HEIC"},
		{"ftypmif1", "HEIC"}, {"ftypmsf1", "HEIC"},
	} {
		if bytes.HasPrefix(head, []byte(f.start)) {
			return fmt.Errorf("the format %s is not supported (convert the image to PNG, JPEG or WebP)", f.name)
		}
	}
	return errors.New("not a PNG, JPEG or WebP image")
}

// inspect reads what the decoders do not report: whether a file has several
// frames, and its EXIF orientation (default 1). It also detects files that are
// truncated after the pixels.
func inspect(format Format, data []byte) (animated bool, orientation int, err error) {
	orientation = 1
	readOrientation := func(exif []byte) {
		if orientation == 1 {
			orientation = parseEXIF(exif).orientation
		}
	}
	switch format {
	case PNG:
		err = pngChunks(data, func(kind string, body []byte, _ func() error) error {
			switch {
			case kind == "acTL" && len(body) >= 4 && binary.BigEndian.Uint32(body) != 1:
				animated = true
			case kind == "eXIf":
				readOrientation(body)
			}
			return nil
		})
	case JPEG:
		err = jpegSegments(data, func(marker byte, body []byte) {
			if marker == markerAPP1 && bytes.HasPrefix(body, []byte(exifPrefix)) {
				readOrientation(body)
			}
		})
	case WebP:
		err = webpChunks(data, func(kind string, body []byte) {
			switch kind {
			case "ANIM", "ANMF":
				animated = true
			case "EXIF":
				readOrientation(body)
			}
		})
	}
	return animated, orientation, err
}

// orient applies an EXIF orientation: 1 changes nothing, 2 to 4 mirror or rotate by
// 180 degrees, 5 to 8 also swap rows and columns.
func orient(src *image.RGBA, orientation int) *image.RGBA {
	if orientation == 1 {
		return src
	}
	w, h := src.Rect.Dx(), src.Rect.Dy()
	at := map[int]func(x, y int) (int, int){ // the source of a pixel
		2: func(x, y int) (int, int) { return w - 1 - x, y },
		3: func(x, y int) (int, int) { return w - 1 - x, h - 1 - y },
		4: func(x, y int) (int, int) { return x, h - 1 - y },
		5: func(x, y int) (int, int) { return y, x },
		6: func(x, y int) (int, int) { return y, h - 1 - x },
		7: func(x, y int) (int, int) { return w - 1 - y, h - 1 - x },
		8: func(x, y int) (int, int) { return w - 1 - y, x },
	}[orientation]
	size := image.Rect(0, 0, w, h)
	if orientation >= 5 {
		size = image.Rect(0, 0, h, w)
	}
	dst := image.NewRGBA(size)
	for y := range size.Dy() {
		for x := range size.Dx() {
			sx, sy := at(x, y)
			copy(dst.Pix[y*dst.Stride+4*x:][:4], src.Pix[sy*src.Stride+4*sx:][:4])
		}
	}
	return dst
}
