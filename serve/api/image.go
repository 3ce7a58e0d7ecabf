package api

import (
	"bytes"
	"fmt"
	"image"
	"strings"

	"github.com/gomflux/gomflux/picture"
)

// CutDataURL returns the media type and the base64 text of a data URL, and whether text is one.
func CutDataURL(text string) (media, data string, ok bool) {
	rest, isData := strings.CutPrefix(text, "data:")
	head, data, found := strings.Cut(rest, ",")
	media, encoded := strings.CutSuffix(head, ";base64")
	if !isData || !found || !encoded {
		return "", "", false
	}
	return media, data, true
}

// A SizeError reports an image that has too many pixels.
type SizeError struct {
	Width, Height int
	Left          int // pixels that were left for the image
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%dx%d: more pixels than the %d that are left for this request (scale the images down first)",
		e.Width, e.Height, e.Left)
}

// decoding limits the images that are decoded at the same time, by whichever API, since they are large.
var decoding = make(chan struct{}, 2)

// DecodeImage decodes an image file with at most *left pixels, from which it subtracts those of the
// image. Larger ones are a [*SizeError], which is found before the pixels are decoded.
func DecodeImage(data []byte, left *int) (*picture.Picture, error) {
	decoding <- struct{}{}
	defer func() { <-decoding }()
	// the decoders of package picture are registered; it has better errors
	if c, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil {
		if int64(c.Width)*int64(c.Height) > int64(*left) {
			return nil, &SizeError{c.Width, c.Height, *left}
		}
		*left -= c.Width * c.Height
	}
	return picture.Decode(bytes.NewReader(data))
}
