package native

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"strconv"

	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/gallery"
)

// Numbers of images in a page of the gallery.
const (
	pageSize    = 24
	maxPageSize = 100
)

// A jsonEntry is an image in the gallery.
type jsonEntry struct {
	*gallery.Entry
	URL       string                     `json:"url"`
	Width     int                        `json:"width,omitempty"`
	Height    int                        `json:"height,omitempty"`
	Favourite bool                       `json:"favourite"`
	Settings  map[string]json.RawMessage `json:"settings,omitempty"`
}

type jsonGallery struct {
	Pictures []jsonEntry `json:"pictures"`
	gallery.Page
}

func (a *API) listPictures(w http.ResponseWriter, r *http.Request) error {
	n, err := pageSize, error(nil)
	if text := r.FormValue("limit"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxPageSize {
			return errs.Requestf("limit: expected 1 to %d", maxPageSize)
		}
	}
	q := gallery.Query{Prompt: r.FormValue("q"), Model: r.FormValue("model")}
	if text := r.FormValue("favourite"); text != "" {
		if q.Favourite, err = strconv.ParseBool(text); err != nil {
			return errs.Requestf("favourite: expected true or false, found %q", text)
		}
	}
	page, err := a.Gallery.List(r.Context(), a.Owner(r), r.FormValue("after"), n, q)
	if err != nil {
		return err
	}
	v := jsonGallery{Pictures: []jsonEntry{}, Page: page}
	for _, e := range page.Entries {
		item := jsonEntry{Entry: e, URL: "/api/v1/pictures/" + e.Name, Favourite: e.Favourite()}
		if found := a.Gallery.Settings(r.Context(), e); found != nil {
			item.Width, item.Height = found.Width, found.Height
			if item.Settings, err = plainjson.Fields(found.Settings, found.Has); err != nil {
				return err
			}
		}
		v.Pictures = append(v.Pictures, item)
	}
	return reply(w, http.StatusOK, v)
}

// gone converts the error of a name that the gallery does not have.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return api.NotFoundf("no such image in the gallery")
	}
	return err
}

func (a *API) picture(w http.ResponseWriter, r *http.Request) error {
	return a.file(w, r, r.PathValue("name"))
}

// file serves an image of the gallery.
func (a *API) file(w http.ResponseWriter, r *http.Request, name string) error {
	f, e, err := a.Gallery.Open(a.Owner(r), name)
	if err != nil {
		return gone(err)
	}
	defer f.Close()
	pngHeaders(w, r, e.Name)
	http.ServeContent(w, r, "", e.Created, f)
	return nil
}

// pngHeaders sets the headers of an image that never changes.
func pngHeaders(w http.ResponseWriter, r *http.Request, name string) {
	h := w.Header()
	h.Set("Content-Type", "image/png")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cache-Control", "private, max-age=31536000, immutable")
	if r.FormValue("download") != "" {
		h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	}
}

func (a *API) removePicture(w http.ResponseWriter, r *http.Request) error {
	if err := a.Gallery.Remove(a.Owner(r), r.PathValue("name")); err != nil {
		return gone(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// removePictures removes the images that the query names. Those that are not there are no error.
func (a *API) removePictures(w http.ResponseWriter, r *http.Request) error {
	names := r.URL.Query()["name"]
	if len(names) == 0 || len(names) > maxPageSize {
		return errs.Requestf("name: expected 1 to %d names of images, found %d", maxPageSize, len(names))
	}
	removed := 0
	for _, name := range names {
		err := a.Gallery.Remove(a.Owner(r), name)
		if err == nil {
			removed++
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return reply(w, http.StatusOK, map[string]any{"removed": removed})
}

// setFavourite makes an image a favourite with PUT, and takes that back with DELETE.
func (a *API) setFavourite(w http.ResponseWriter, r *http.Request) error {
	err := a.Gallery.SetFavourite(a.Owner(r), r.PathValue("name"), r.Method == http.MethodPut)
	if err != nil {
		return gone(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type jsonFound struct {
	Format     string                     `json:"format"`
	Width      int                        `json:"width,omitempty"`
	Height     int                        `json:"height,omitempty"`
	Source     picture.Source             `json:"source"`
	Settings   map[string]json.RawMessage `json:"settings"`
	Parameters string                     `json:"parameters,omitempty"`
	NotUsed    []picture.Leftover         `json:"not_used,omitempty"`
}

// settings returns the settings in an image, or in a JSON file, which is the body of the request.
func (a *API) settings(w http.ResponseWriter, r *http.Request) error {
	found, err := picture.ReadSettings(r.Body)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return err
	}
	if errors.Is(err, picture.ErrNoSettings) {
		return &api.Error{Status: http.StatusUnprocessableEntity, Code: "no_settings", Message: "the image " + err.Error()}
	}
	if err != nil {
		return errs.Requestf("%v", err)
	}
	for i, l := range found.Settings.LoRAs {
		if !found.Source.NamesModel() {
			found.Settings.LoRAs[i] = l.Named(a.LoRAs())
		}
	}
	v := jsonFound{
		Format: "JSON", Width: found.Width, Height: found.Height, Source: found.Source, Parameters: found.Parameters,
		NotUsed: found.NotUsed,
	}
	if found.Format != 0 {
		v.Format = found.Format.String()
	}
	if v.Settings, err = plainjson.Fields(found.Settings, found.Has); err != nil {
		return err
	}
	return reply(w, http.StatusOK, v)
}
