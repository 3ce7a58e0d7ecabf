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
	"strings"

	"golang.org/x/image/webp"

	"github.com/gomflux/gomflux/internal/oserr"
)

// MaxPixels is how many pixels a picture may have to be read.
const MaxPixels = 100_000_000

// maxFile bounds the bytes of a file: MaxPixels of 16-bit RGB that did not
// compress do not quite fit.
const maxFile = 512 << 20

// A Picture is a picture file that was read.
type Picture struct {
	// Image is opaque and turned as its orientation says.
	Image  *image.RGBA
	Format Format
	// SHA256 is the hash of the file's bytes in lower-case hexadecimal digits.
	SHA256 string
}

// Decode reads a PNG, JPEG or WebP picture, its format judged by its content.
//
// It gives what diffusers' load_image and mflux give: the orientation of EXIF is
// applied; grey, paletted and CMYK pictures become RGB. Transparent pixels are
// laid over white, because the colour that is stored under them is not what
// anybody has seen (diffusers drops the alpha channel and shows it). 16-bit
// values are rounded to 8 bits. Colour profiles are passed over.
//
// Pictures of more than MaxPixels, animations, and other formats are errors.
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
		return nil, fmt.Errorf("is an animated %v picture (save one frame of it as a still picture)", format)
	}
	config, err := decoders[format].config(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(format, err)
	}
	if config.Width <= 0 || config.Height <= 0 {
		return nil, fmt.Errorf("the %v picture has %dx%d pixels", format, config.Width, config.Height)
	}
	if pixels := int64(config.Width) * int64(config.Height); pixels > maxPixels {
		return nil, fmt.Errorf("has %dx%d pixels; the limit is %d million in all (make it smaller first)",
			config.Width, config.Height, maxPixels/1e6)
	}
	img, err := decoders[format].decode(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(format, err)
	}
	sum := sha256.Sum256(data)
	return &Picture{
		Image:  orient(opaque(img, format), orientation),
		Format: format,
		SHA256: hex.EncodeToString(sum[:]),
	}, nil
}

// ReadFile is Decode for a file; its errors name it.
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

var decoders = map[Format]struct {
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}{
	PNG:  {png.DecodeConfig, png.Decode},
	JPEG: {jpeg.DecodeConfig, jpeg.Decode},
	WebP: {webp.DecodeConfig, webp.Decode},
}

// damaged makes an error of a decoder's.
func damaged(format Format, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the %v file is cut off: %w", format, oserr.NoEOF(err))
	}
	return fmt.Errorf("the %v file cannot be read: %w", format, err)
}

// readAll reads a picture file, or, with sidecar, a JSON file, whose format is
// 0. A file that is neither is refused from its first bytes.
func readAll(r io.Reader, sidecar bool) ([]byte, Format, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(512)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	format := sniff(head)
	limit := int64(maxFile)
	if format == 0 {
		if !sidecar || !bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("{")) {
			return nil, 0, unknownFormat(head)
		}
		limit = maxText
	}
	data, err := io.ReadAll(io.LimitReader(b, limit+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(data)) > limit {
		return nil, 0, fmt.Errorf("is larger than %d MiB", limit>>20)
	}
	return data, format, nil
}

// sniff returns the format that a file's first bytes say it has, 0 for none
// that is read.
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

// unknownFormat names the format of a file that is not read.
func unknownFormat(head []byte) error {
	if len(head) == 0 {
		return errors.New("is empty")
	}
	name := ""
	has := func(prefix string) bool { return bytes.HasPrefix(head, []byte(prefix)) }
	switch {
	case has("GIF8"):
		name = "GIF"
	case has("II*\x00"), has("MM\x00*"):
		name = "TIFF"
	case has("BM"):
		name = "BMP"
	case has("\xff\x0a"), has("\x00\x00\x00\x0cJXL "):
		name = "JPEG XL"
	case len(head) >= 12 && string(head[4:8]) == "ftyp":
		switch brand := string(head[8:12]); {
		case brand == "avif" || brand == "avis":
			name = "AVIF"
		case strings.HasPrefix(brand, "he") || brand == "mif1" || brand == "msf1":
			name = "HEIC"
		}
	}
	if name == "" {
		return errors.New("is not a PNG, JPEG or WebP picture")
	}
	return fmt.Errorf("is in the format %s, which is not read (convert it to PNG, JPEG or WebP)", name)
}

// inspect walks a file for what the decoders do not tell: whether it has several
// frames, and EXIF's orientation, 1 if it has none. It finds files that are cut
// off after their pixels.
func inspect(format Format, data []byte) (animated bool, orientation int, err error) {
	orientation = 1
	see := func(exif []byte) {
		if orientation == 1 {
			orientation, _ = parseEXIF(exif)
		}
	}
	switch format {
	case PNG:
		err = pngChunks(data, func(kind string, body []byte, _ func() error) error {
			switch {
			case kind == "acTL" && len(body) >= 4 && binary.BigEndian.Uint32(body) != 1:
				animated = true
			case kind == "eXIf":
				see(body)
			}
			return nil
		})
	case JPEG:
		err = jpegSegments(data, func(marker byte, body []byte) {
			if marker == markerAPP1 && bytes.HasPrefix(body, []byte(exifPrefix)) {
				see(body)
			}
		})
	case WebP:
		err = webpChunks(data, func(kind string, body []byte) {
			switch kind {
			case "ANIM", "ANMF":
				animated = true
			case "EXIF":
				see(body)
			}
		})
	}
	return animated, orientation, err
}

// orient turns a picture as EXIF's orientation says: 1 is as it is, 2 to 4 are
// mirrored and turned by 180 degrees, 5 to 8 have rows and columns swapped.
func orient(src *image.RGBA, orientation int) *image.RGBA {
	if orientation == 1 {
		return src
	}
	w, h := src.Rect.Dx(), src.Rect.Dy()
	at := map[int]func(x, y int) (int, int){
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
