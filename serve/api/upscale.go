package api

import (
	"cmp"
	"path"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// An Upscaler is what enlarges images: a published network on this machine, or Lanczos' filter.
type Upscaler struct {
	Name  string `json:"name"`
	Scale int    `json:"scale"` // the largest
	usual int    // what it enlarges by where nothing is asked for
}

// Upscalers lists what can enlarge images, the default first. SeedVR2, which takes long, and the networks of built-in models, which
// are for their images, are never that.
func Upscalers() (list []Upscaler) {
	var others []Upscaler
	for _, name := range catalog.UpscalerNames() {
		s, err := catalog.FindUpscaler(name)
		if err != nil || s.Revision == "" && s.Folder != "" {
			continue
		}
		switch m := catalog.PublishedUpscaler(name); {
		case m == nil: // of a built-in model
			n, _, err := component.DeclareUpscaler(&component.Folder{FS: s.FS, Points: &hooks.Points{}}, component.Upscalers)
			if err == nil {
				others = append(others, Upscaler{name, n.Scale(), n.Scale()})
			}
		case m.Class == component.NaDiT.Name:
			others = append(others, Upscaler{name, m.Scale, 2})
		default:
			list = append(list, Upscaler{name, m.Scale, m.Scale})
		}
	}
	return append(append(list, Upscaler{gomflux.Lanczos, gomflux.LanczosScale, 2}), others...)
}

// otherUpscalers are AUTOMATIC1111's names, and those of the file in other programs, without an extension.
var otherUpscalers = map[string]string{"r-esrgan 4x+": "realesrgan-x4plus", "realesrgan_x4plus": "realesrgan-x4plus"}

// FindUpscaler returns a listed upscaler for a name that a client sent, in any case, with or without the extension of a
// file; "" is the default. Other files are not found: clients cannot name those of the server.
func FindUpscaler(name string) (*Upscaler, error) {
	list := Upscalers()
	lower := strings.ToLower(name)
	if ext := path.Ext(lower); ext == ".safetensors" || ext == ".pth" {
		lower = strings.TrimSuffix(lower, ext)
	}
	lower = cmp.Or(otherUpscalers[lower], lower, list[0].Name)
	var names []string
	for i, u := range list {
		if u.Name == lower {
			return &list[i], nil
		}
		names = append(names, u.Name)
	}
	return nil, errs.Requestf("upscaler %.100q: expected one of %s", name, strings.Join(names, ", "))
}

// Enlarge returns how a generated image is enlarged: by a named upscaler, scale times or, if that is 0, as much as the
// upscaler does, and generated again with a strength, unless that is 0.
func Enlarge(upscaler string, scale, refine float64) (*gomflux.EnlargeOptions, error) {
	u, err := FindUpscaler(upscaler)
	switch {
	case err != nil:
		return nil, err
	case scale != 0 && !(scale >= 1 && scale <= float64(u.Scale)):
		return nil, errs.Requestf("scale %g: expected 1 to %d with %s", scale, u.Scale, u.Name)
	case !(refine >= 0 && refine < 1):
		return nil, errs.Requestf("refine %g: expected 0 or more and less than 1", refine)
	}
	e := &gomflux.EnlargeOptions{
		Upscaler: u.Name, UpscaleOptions: gomflux.UpscaleOptions{Scale: cmp.Or(scale, float64(u.usual))},
	}
	if refine > 0 {
		e.Refine = &gomflux.RefineOptions{Strength: refine}
	}
	return e, nil
}
