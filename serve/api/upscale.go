package api

import (
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/errs"
)

// An Upscaler is what enlarges images: a published network on this machine, or Lanczos' filter.
type Upscaler struct {
	Name  string `json:"name"`
	Scale int    `json:"scale"` // the largest
}

// Upscalers lists what can enlarge images, the default first.
func Upscalers() (list []Upscaler) {
	for _, m := range catalog.Upscalers {
		if s, err := catalog.FindUpscaler(m.Name); err == nil && s.Revision != "" {
			list = append(list, Upscaler{m.Name, m.Scale})
		}
	}
	return append(list, Upscaler{gomflux.Lanczos, gomflux.LanczosScale})
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
