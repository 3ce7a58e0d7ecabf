package native

import (
	"bytes"
	"context"
	"errors"
	"image"
	"net/http"
	"strconv"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

func (a *API) listUpscalers(w http.ResponseWriter, r *http.Request) error {
	return reply(w, http.StatusOK, map[string]any{"upscalers": api.Upscalers()})
}

// upscale answers an image file with the enlarged image, a PNG file with the settings of the other. It waits in the queue
// as a job, which is canceled if the client goes away.
func (a *API) upscale(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	u, err := api.FindUpscaler(q.Get("upscaler"))
	if err != nil {
		return errs.Requestf("%v", err)
	}
	var o gomflux.UpscaleOptions
	if text := q.Get("scale"); text != "" {
		if o.Scale, err = strconv.ParseFloat(text, 64); err != nil || !(o.Scale >= 1) {
			return errs.Requestf("scale %q: expected a number, 1 or more", text)
		}
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		return err
	}
	left := api.InputPixels(a.MaxPixels)
	decoded, err := api.DecodeImage(body.Bytes(), &left)
	if err != nil {
		return errs.Requestf("%v", err)
	}
	var img image.Image
	j, err := a.engine.Submit(r.Context(), engine.Request{Client: engine.Client(r.Context()), Upscale: &engine.Upscaling{
		Upscaler: u.Name, Images: []image.Image{decoded.Pixels()}, UpscaleOptions: o, MaxPixels: a.MaxPixels,
		Done: func(large image.Image) { img = large },
	}})
	if err != nil {
		return err
	}
	a.announce()
	defer j.Cancel()
	if err := j.Wait(r.Context()); errors.Is(err, context.Canceled) {
		return &api.Error{Status: http.StatusServiceUnavailable, Code: "canceled", Message: "the job was canceled"}
	} else if err != nil {
		return err
	}
	var settings *picture.Settings
	if found, err := picture.ReadSettings(bytes.NewReader(body.Bytes())); err == nil {
		settings = &found.Settings
		size := img.Bounds().Size()
		settings.Upscaler, settings.UpscaledWidth, settings.UpscaledHeight = u.Name, size.X, size.Y
		if settings.Check() != nil {
			settings = nil
		}
	}
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, img, settings); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "image/png")
	w.Write(b.Bytes()) // if it fails, the client is gone
	return nil
}
