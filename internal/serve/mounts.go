package serve

import (
	"github.com/gomflux/gomflux/internal/serve/native"
)

// mountAPIs mounts the APIs and the page.
func (s *Server) mountAPIs() {
	b := &Backend{s.Engine, s}
	warn := func(err error) { s.Log.Warn("images are not stored", "error", err.Error()) }
	own := native.New(b, native.Config{
		Private: len(s.Tokens) > 0, Gallery: s.Gallery, LoRAs: s.LoRAs, MaxPixels: s.MaxPixels, Warn: warn,
	})
	s.mux.Handle("/api/v1/", own)
	s.finish = own.Wait
}
