package serve

import (
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/comfy"
	"github.com/gomflux/gomflux/serve/native"
	"github.com/gomflux/gomflux/serve/openai"
	"github.com/gomflux/gomflux/serve/page"
	"github.com/gomflux/gomflux/serve/sdapi"
)

// mountAPIs mounts the APIs and the page.
func (s *Server) mountAPIs() {
	engine := api.Adapted{Engine: s.Engine}
	shared := api.Config{Private: len(s.Tokens) > 0, LoRAs: s.LoRAs, MaxPixels: s.MaxPixels}
	own := native.New(&Backend{engine, s, nil}, native.Config{Config: shared, Gallery: s.Gallery, Pulls: s.Pulls, Log: s.Log})
	s.finish = own.Wait
	s.mux.Handle("/api/v1/", own)
	kept := &Backend{engine, s, own}
	automatic := sdapi.New(kept, shared)
	s.mux.Handle("/sdapi/v1/", automatic)
	graphs := comfy.New(kept, comfy.Config{Config: shared, Origins: append([]string{originOf(s.BaseURL)}, s.readers...)})
	graphs.Mount(&s.mux.ServeMux)
	s.hangUp = func() { own.HangUp(); graphs.HangUp() }
	site := page.Handler()
	s.mux.Handle("/{$}", automatic.Root(site)) // the page for browsers
	s.mux.Handle("/page/", site)
	s.mux.Handle("/v1/", openai.New(kept, openai.Config{Config: shared, MaxBody: s.MaxBody, BaseURL: s.BaseURL}))
}
