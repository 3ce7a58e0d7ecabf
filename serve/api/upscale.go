package api

import (
	"context"
	"image"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// An Upscaler is what enlarges images: a published network on this machine, or Lanczos' filter.
type Upscaler struct {
	Name  string `json:"name"`
	Scale int    `json:"scale"` // the largest
}

// Upscalers lists what can enlarge images, the default first. SeedVR2, which takes long, is never that.
func Upscalers() (list []Upscaler) {
	var slow []Upscaler
	for _, m := range catalog.Upscalers {
		switch s, err := catalog.FindUpscaler(m.Name); {
		case err != nil || s.Revision == "":
		case m.Class == component.NaDiT.Name:
			slow = append(slow, Upscaler{m.Name, m.Scale})
		default:
			list = append(list, Upscaler{m.Name, m.Scale})
		}
	}
	return append(append(list, Upscaler{gomflux.Lanczos, gomflux.LanczosScale}), slow...)
}

// otherUpscalers are AUTOMATIC1111's names.
var otherUpscalers = map[string]string{"r-esrgan 4x+": "realesrgan-x4plus"}

// FindUpscaler returns the name of a listed upscaler for one that a client sent, in any case; "" is the default. Names
// of files are not found: clients cannot name those of the server.
func FindUpscaler(name string) (string, error) {
	list := Upscalers()
	name = strings.ToLower(name)
	if other := otherUpscalers[name]; other != "" {
		name = other
	}
	if name == "" {
		return list[0].Name, nil
	}
	if slices.ContainsFunc(list, func(u Upscaler) bool { return u.Name == name }) {
		return name, nil
	}
	var names []string
	for _, u := range list {
		names = append(names, u.Name)
	}
	return "", errs.Requestf("upscaler %.100q: expected one of %s", name, strings.Join(names, ", "))
}

// Upscale enlarges an image by a listed upscaler, to at most so many pixels. The network is loaded for it.
func Upscale(ctx context.Context, name string, img image.Image, o *gomflux.UpscaleOptions, maxPixels int) (image.Image, error) {
	u, err := gomflux.OpenUpscaler(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	defer u.Close()
	size := img.Bounds().Size()
	w, h, err := u.Size(size.X, size.Y, o)
	if err != nil {
		return nil, err
	}
	if w*h > maxPixels {
		return nil, errs.Requestf("size %dx%d: expected at most %d pixels", w, h, maxPixels)
	}
	return u.Upscale(ctx, img, o)
}
