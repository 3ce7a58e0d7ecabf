package api

import (
	"cmp"
	"net/http"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

// A Config is what several APIs are configured with.
type Config struct {
	// Private limits clients to their own jobs and images.
	Private bool
	// LoRAs lists names of LoRAs that clients may want. Requests may have others, which the engine must
	// check: a name is passed on as it is, and must not be opened as a path. nil stands for an empty list.
	LoRAs func() []string
	// MaxPixels is the largest number of pixels of a generated image, which bounds the images of a request
	// by [InputPixels]. 0 stands for [picture.MaxPixels], the largest number.
	MaxPixels int
}

// WithDefaults returns the configuration with what zeros stand for.
func (c Config) WithDefaults() Config {
	if c.LoRAs == nil {
		c.LoRAs = func() []string { return nil }
	}
	c.MaxPixels = min(cmp.Or(c.MaxPixels, picture.MaxPixels), picture.MaxPixels)
	return c
}

// Owner returns the client whose jobs and images a request may see, "" for all.
func (c *Config) Owner(r *http.Request) string {
	if !c.Private {
		return ""
	}
	return engine.Client(r.Context())
}
