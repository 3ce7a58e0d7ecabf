package native

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
)

func (a *API) listUpscalers(w http.ResponseWriter, r *http.Request) error {
	return reply(w, http.StatusOK, map[string]any{"upscalers": api.Upscalers()})
}

// upscale answers an image file with the enlarged image, a PNG file with the settings of the other.
func (a *API) upscale(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	name, err := api.FindUpscaler(q.Get("upscaler"))
	if err != nil {
		return badRequest("%v", err)
	}
	var o gomflux.UpscaleOptions
	if text := q.Get("scale"); text != "" {
		if o.Scale, err = strconv.ParseFloat(text, 64); err != nil || !(o.Scale >= 1) {
			return badRequest("scale %q: expected a number, 1 or more", text)
		}
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		return err
	}
	left := api.InputPixels(a.MaxPixels)
	decoded, err := api.DecodeImage(body.Bytes(), &left)
	if err != nil {
		return badRequest("%v", err)
	}
	img, err := api.Upscale(r.Context(), name, decoded.Pixels(), &o, a.MaxPixels)
	if err != nil {
		return err
	}
	var settings *picture.Settings
	if found, err := picture.ReadSettings(bytes.NewReader(body.Bytes())); err == nil {
		settings = &found.Settings
		size := img.Bounds().Size()
		settings.Upscaler, settings.UpscaledWidth, settings.UpscaledHeight = name, size.X, size.Y
		if settings.Check() != nil {
			settings = nil
		}
	}
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, img, settings); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err = w.Write(b.Bytes())
	return ignored(err)
}
