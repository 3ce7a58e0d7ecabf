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
	own := native.New(&Backend{engine, s, nil}, native.Config{
		Private: len(s.Tokens) > 0, Gallery: s.Gallery, Pulls: s.Pulls, LoRAs: s.LoRAs, MaxPixels: s.MaxPixels,
		Log: s.Log,
	})
	s.finish = own.Wait
	s.mux.Handle("/api/v1/", own)
	kept := &Backend{engine, s, own}
	automatic := sdapi.New(kept, sdapi.Config{LoRAs: s.LoRAs, MaxPixels: s.MaxPixels})
	s.mux.Handle("/sdapi/v1/", automatic)
	graphs := comfy.New(kept, comfy.Config{
		Private: len(s.Tokens) > 0, LoRAs: s.LoRAs, MaxPixels: s.MaxPixels, Origins: append([]string{originOf(s.BaseURL)}, s.readers...),
	})
	graphs.Mount(&s.mux.ServeMux)
	s.hangUp = func() { own.HangUp(); graphs.HangUp() }
	site := page.Handler()
	s.mux.Handle("/{$}", automatic.Root(site)) // the page for browsers
	s.mux.Handle("/page/", site)
	s.mux.Handle("/v1/", openai.New(kept, openai.Config{
		LoRAs: s.LoRAs, MaxBody: s.MaxBody, MaxInputPixels: api.InputPixels(s.MaxPixels), BaseURL: s.BaseURL,
	}))
}
