// Package native serves gomflux's own HTTP interface: jobs with their events, models, the gallery,
// and the settings in image files. openapi.json describes it.
package native

import (
	"cmp"
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
	"github.com/gomflux/gomflux/serve/pulls"
)

// A Config configures the interface.
type Config struct {
	api.Config
	// Gallery stores what jobs generate, nil for no gallery.
	Gallery *gallery.Gallery
	// Pulls downloads models, nil for no downloads.
	Pulls *pulls.Puller
	// Log gets errors that no client sees, such as a full disk; nil stands for slog's default.
	Log *slog.Logger
}

// An API is the HTTP interface.
type API struct {
	Config
	engine  api.Engine
	mux     api.Mux
	storing sync.WaitGroup

	mu sync.Mutex
	// submitted is closed at the next job, and over when the server shuts down.
	submitted, over chan struct{}
}

//go:embed openapi.json
var openAPI []byte

// A handler answers a request, unless it returns an error.
type handler func(w http.ResponseWriter, r *http.Request) error

// routes are the handlers by method and path.
func (a *API) routes() map[string]handler {
	return map[string]handler{
		"POST /api/v1/jobs":                        a.submit,
		"GET /api/v1/jobs":                         a.listJobs,
		"GET /api/v1/jobs/{id}":                    a.onJob(http.StatusOK, func(api.Job) {}),
		"DELETE /api/v1/jobs/{id}":                 a.onJob(http.StatusAccepted, api.Job.Cancel),
		"DELETE /api/v1/jobs/{id}/enhance":         a.onJob(http.StatusAccepted, api.Job.Skip),
		"POST /api/v1/enhance":                     func(w http.ResponseWriter, r *http.Request) error { return a.write(w, r, false) },
		"POST /api/v1/describe":                    func(w http.ResponseWriter, r *http.Request) error { return a.write(w, r, true) },
		"GET /api/v1/jobs/{id}/events":             a.events,
		"GET /api/v1/jobs/{id}/pictures/{index}":   a.jobPicture,
		"GET /api/v1/events":                       a.live,
		"GET /api/v1/presets":                      a.listPresets,
		"PUT /api/v1/presets/{name}":               a.savePreset,
		"DELETE /api/v1/presets/{name}":            a.removePreset,
		"GET /api/v1/models":                       a.models,
		"GET /api/v1/loras":                        a.loras,
		"GET /api/v1/pulls":                        a.listPulls,
		"POST /api/v1/pulls":                       a.startPull,
		"GET /api/v1/pulls/{id}":                   a.showPull,
		"DELETE /api/v1/pulls/{id}":                a.cancelPull,
		"GET /api/v1/pulls/{id}/events":            a.pullEvents,
		"GET /api/v1/pictures":                     a.listPictures,
		"DELETE /api/v1/pictures":                  a.removePictures,
		"GET /api/v1/pictures/{name}":              a.picture,
		"DELETE /api/v1/pictures/{name}":           a.removePicture,
		"PUT /api/v1/pictures/{name}/favourite":    a.setFavourite,
		"DELETE /api/v1/pictures/{name}/favourite": a.setFavourite,
		"POST /api/v1/settings":                    a.settings,
		"GET /api/v1/upscalers":                    a.listUpscalers,
		"POST /api/v1/upscale":                     a.upscale,
		"GET /api/v1/openapi.json":                 a.openAPI,
	}
}

// New returns the interface to an engine. It serves the paths that begin with /api/v1/.
func New(e api.Engine, c Config) *API {
	c.Config = c.WithDefaults()
	c.Log = cmp.Or(c.Log, slog.Default())
	a := &API{
		Config: c, engine: e,
		submitted: make(chan struct{}), over: make(chan struct{}),
	}
	for route, handle := range a.routes() {
		a.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			err := a.missing(route)
			if err == nil {
				err = handle(w, r)
			}
			if err != nil {
				a.fail(w, r, err)
			}
		})
	}
	a.mux.Refuse = func(w http.ResponseWriter, r *http.Request, status int) {
		message := "no such path (see /api/v1/openapi.json)"
		if status == http.StatusMethodNotAllowed {
			message = "expected " + strings.ReplaceAll(w.Header().Get("Allow"), ", ", " or ")
		}
		a.fail(w, r, &api.Error{Status: status, Message: message})
	}
	return a
}

// missing returns an error for a route of something that this server does not have.
func (a *API) missing(route string) error {
	switch part := strings.Split(route, "/")[3]; {
	case a.Gallery == nil && (part == "pictures" || part == "presets"):
		return api.NotFoundf("this server keeps no gallery")
	case a.Pulls == nil && part == "pulls":
		return api.NotFoundf("this server downloads no models")
	}
	return nil
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Wait returns when the images of all jobs that have ended are stored, or ctx is done. The engine
// must have been closed.
func (a *API) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { a.storing.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *API) warn(err error) { a.Log.Warn("storing images", "error", err.Error()) }

func (a *API) openAPI(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	w.Write(openAPI) // if it fails, the client is gone
	return nil
}

func (a *API) models(w http.ResponseWriter, r *http.Request) error {
	models := append([]engine.ModelInfo{}, a.engine.Models()...)
	for i := range models {
		models[i].Created = models[i].Created.UTC()
	}
	return reply(w, http.StatusOK, map[string]any{
		"models": models, "max_pixels": a.MaxPixels, "max_input_pixels": api.InputPixels(a.MaxPixels),
	})
}

func (a *API) loras(w http.ResponseWriter, r *http.Request) error {
	names := []map[string]string{}
	for _, name := range a.LoRAs() {
		names = append(names, map[string]string{"path": name})
	}
	return reply(w, http.StatusOK, map[string]any{"loras": names})
}
