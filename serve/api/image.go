package api

import (
	"bytes"
	"encoding/base64"
	"image"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
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

// DecodeBase64 decodes a file that is sent as base64 or as a data: URL. Other URLs are refused, so that clients cannot make
// the server send requests.
func DecodeBase64(text string) ([]byte, error) {
	if scheme, _, ok := strings.Cut(text, "://"); ok && len(scheme) < 10 {
		return nil, errs.Requestf("expected base64 or a data: URL, found a %s URL, which is not fetched", scheme)
	}
	if _, data, ok := CutDataURL(text); ok {
		text = data
	} else if strings.HasPrefix(text, "data:") {
		return nil, errs.Requestf("expected a data: URL with base64")
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "= \t\r\n"))
	if err != nil {
		return nil, errs.Requestf("expected base64 of an image file: %v", err)
	}
	return data, nil
}

// decoding limits the images that are decoded at the same time, by whichever API, since they are large.
var decoding = make(chan struct{}, 2)

// DecodeImage decodes an image file with at most *left pixels, from which it subtracts those of the
// image. Larger ones are refused before the pixels are decoded.
func DecodeImage(data []byte, left *int) (*picture.Picture, error) {
	decoding <- struct{}{}
	defer func() { <-decoding }()
	// the decoders of package picture are registered; it has better errors
	if c, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil {
		if int64(c.Width)*int64(c.Height) > int64(*left) {
			const text = "%dx%d: more pixels than the %d that are left for this request (scale the images down first)"
			return nil, errs.Requestf(text, c.Width, c.Height, *left)
		}
		*left -= c.Width * c.Height
	}
	return picture.Decode(bytes.NewReader(data))
}
