// Package native serves gomflux's own HTTP interface: jobs with their events, models, the gallery,
// and the settings in image files. openapi.json describes it.
package native

import (
	"cmp"
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
	"github.com/gomflux/gomflux/serve/pulls"
)

// An Engine runs jobs. *engine.Engine is one, and tests have others.
type Engine[J Job] interface {
	Submit(ctx context.Context, r engine.Request) (J, error)
	Job(id, client string) (J, bool)
	Jobs(client string) []engine.Status
	Models() []engine.ModelInfo
}

// A Config configures the interface.
type Config struct {
	// Private limits clients to their own jobs and images.
	Private bool
	// Gallery stores what jobs generate, nil for no gallery.
	Gallery *gallery.Gallery
	// Pulls downloads models, nil for no downloads.
	Pulls *pulls.Puller
	// LoRAs lists names of LoRAs that clients may want. Requests may have others, which the
	// engine checks. It may be nil.
	LoRAs func() []string
	// MaxPixels limits the pixels of a generated image, and with [api.InputPixels] those of all images
	// in a request together. 0 stands for [picture.MaxPixels].
	MaxPixels int
	// Log gets errors that no client sees, such as a full disk; nil stands for slog's default.
	Log *slog.Logger
}

// An API is the HTTP interface.
type API struct {
	Config
	engine  anyEngine
	mux     *http.ServeMux
	storing sync.WaitGroup

	mu   sync.Mutex
	jobs map[string]*record // by id
	many int                // of them, at which those that are not needed are removed
	// submitted is closed at the next job, and over when the server shuts down.
	submitted, over chan struct{}
}

//go:embed openapi.json
var openAPI []byte

// A route is a method and a path with its handler.
type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request) error
}

func (a *API) routes() []route {
	return []route{
		{"POST", "/api/v1/jobs", a.submit},
		{"GET", "/api/v1/jobs", a.listJobs},
		{"GET", "/api/v1/jobs/{id}", a.showJob},
		{"DELETE", "/api/v1/jobs/{id}", a.cancel},
		{"DELETE", "/api/v1/jobs/{id}/enhance", a.skip},
		{"POST", "/api/v1/enhance", a.enhance},
		{"POST", "/api/v1/describe", a.describe},
		{"GET", "/api/v1/jobs/{id}/events", a.events},
		{"GET", "/api/v1/jobs/{id}/pictures/{index}", a.jobPicture},
		{"GET", "/api/v1/events", a.live},
		{"GET", "/api/v1/presets", a.listPresets},
		{"PUT", "/api/v1/presets/{name}", a.savePreset},
		{"DELETE", "/api/v1/presets/{name}", a.removePreset},
		{"GET", "/api/v1/models", a.models},
		{"GET", "/api/v1/loras", a.loras},
		{"GET", "/api/v1/pulls", a.listPulls},
		{"POST", "/api/v1/pulls", a.startPull},
		{"GET", "/api/v1/pulls/{id}", a.showPull},
		{"DELETE", "/api/v1/pulls/{id}", a.cancelPull},
		{"GET", "/api/v1/pulls/{id}/events", a.pullEvents},
		{"GET", "/api/v1/pictures", a.listPictures},
		{"DELETE", "/api/v1/pictures", a.removePictures},
		{"GET", "/api/v1/pictures/{name}", a.picture},
		{"DELETE", "/api/v1/pictures/{name}", a.removePicture},
		{"PUT", "/api/v1/pictures/{name}/favourite", a.setFavourite},
		{"DELETE", "/api/v1/pictures/{name}/favourite", a.setFavourite},
		{"POST", "/api/v1/settings", a.settings},
		{"GET", "/api/v1/upscalers", a.listUpscalers},
		{"POST", "/api/v1/upscale", a.upscale},
		{"GET", "/api/v1/openapi.json", a.openAPI},
	}
}

// New returns the interface to an engine. It serves the paths that begin with /api/v1/.
func New[J Job](e Engine[J], c Config) *API {
	if c.MaxPixels <= 0 || c.MaxPixels > picture.MaxPixels {
		c.MaxPixels = picture.MaxPixels
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	a := &API{
		Config: c, engine: adapted[J]{e}, mux: http.NewServeMux(), jobs: map[string]*record{},
		submitted: make(chan struct{}), over: make(chan struct{}),
	}
	methods := map[string][]string{}
	for _, route := range a.routes() {
		methods[route.path] = append(methods[route.path], route.method)
		a.mux.HandleFunc(route.method+" "+route.path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			if err := route.handle(w, r); err != nil {
				a.fail(w, r, err)
			}
		})
	}
	for path, allowed := range methods {
		slices.Sort(allowed)
		a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, methodError(allowed)) })
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, notFound("no such path (see /api/v1/openapi.json)"))
	})
	return a
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

// owner returns the client whose jobs and images a request may see, "" for all.
func (a *API) owner(r *http.Request) string {
	if !a.Private {
		return ""
	}
	return engine.Client(r.Context())
}

func (a *API) warn(err error) { a.Log.Warn("storing images", "error", err.Error()) }

func (a *API) openAPI(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(openAPI)
	return ignored(err)
}

type jsonModel struct {
	Name         string       `json:"name"`
	Repo         string       `json:"repo,omitempty"`
	Revision     string       `json:"revision,omitempty"`
	Default      bool         `json:"default"`
	Loaded       bool         `json:"loaded"`
	Missing      string       `json:"missing,omitempty"`
	Edits        bool         `json:"edits"`
	Multiple     bool         `json:"multiple"` // takes several reference images
	Writes       bool         `json:"writes"`   // has a language model
	Sees         bool         `json:"sees"`     // which sees images
	OnlyWrites   bool         `json:"only_writes,omitempty"`
	SizeMultiple int          `json:"size_multiple,omitempty"`
	Bytes        int64        `json:"bytes,omitempty"`
	Peak         int64        `json:"peak_bytes,omitempty"`
	Free         int64        `json:"free_bytes,omitempty"`
	HasAlpha     bool         `json:"transparent"`
	Boxes        bool         `json:"boxes,omitempty"`  // rewritten prompts can have boxes
	Layers       int          `json:"layers,omitempty"` // default number
	Defaults     jsonDefaults `json:"defaults"`
	Created      time.Time    `json:"created,omitzero"`
	family.Licence
}

type jsonDefaults struct {
	Steps             int     `json:"steps"`
	Guidance          float64 `json:"guidance"`
	NegativePrompt    string  `json:"negative_prompt,omitempty"`
	Height            int     `json:"height"`
	Width             int     `json:"width"`
	MaxSequenceLength int     `json:"max_sequence_length,omitempty"`
}

func (a *API) models(w http.ResponseWriter, r *http.Request) error {
	models := []jsonModel{}
	for _, m := range a.engine.Models() {
		models = append(models, jsonModel{
			Name: m.Name, Repo: m.Repo, Revision: m.Revision, Default: m.Default, Loaded: m.Loaded, Missing: m.Missing, Edits: m.Edits,
			Multiple: m.Multiple, Writes: m.Writes, Sees: m.Sees, OnlyWrites: m.OnlyWrites, SizeMultiple: m.SizeMultiple,
			Bytes: m.Bytes, Peak: m.Peak, Free: m.Free, HasAlpha: m.HasAlpha, Boxes: m.Boxes, Layers: m.Layers, Licence: m.Licence,
			Defaults: jsonDefaults(m.Defaults), Created: m.Created.UTC(),
		})
	}
	return reply(w, http.StatusOK, map[string]any{
		"models": models, "max_pixels": a.MaxPixels, "max_input_pixels": api.InputPixels(a.MaxPixels),
	})
}

func (a *API) loras(w http.ResponseWriter, r *http.Request) error {
	type jsonName struct {
		Path string `json:"path"`
	}
	names := []jsonName{}
	if a.LoRAs != nil {
		for _, name := range a.LoRAs() {
			names = append(names, jsonName{name})
		}
	}
	return reply(w, http.StatusOK, map[string]any{"loras": names})
}

// ignored returns nil for an error of writing to a client, which has gone away.
func ignored(error) error { return nil }
