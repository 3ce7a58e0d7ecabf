package native

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/gallery"
)

// listPresets lists a client's presets. They are in the folder of the gallery.
func (a *API) listPresets(w http.ResponseWriter, r *http.Request) error {
	presets, err := a.Gallery.Presets(a.Owner(r))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, map[string]any{"presets": presets})
}

// savePreset stores the settings of a request for a job under a name.
func (a *API) savePreset(w http.ResponseWriter, r *http.Request) error {
	var text bytes.Buffer
	r.Body = io.NopCloser(io.TeeReader(http.MaxBytesReader(w, r.Body, gallery.MaxPreset), &text))
	var j jsonRequest
	if err := readJSON(r, &j); err != nil {
		return err
	}
	if j.Image != nil || j.Mask != nil || j.References != nil {
		return errs.Requestf("image, mask and references: presets have no images")
	}
	err := a.Gallery.SavePreset(a.Owner(r), gallery.Preset{Name: r.PathValue("name"), Settings: json.RawMessage(text.Bytes())})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) removePreset(w http.ResponseWriter, r *http.Request) error {
	found, err := a.Gallery.RemovePreset(a.Owner(r), r.PathValue("name"))
	if err != nil {
		return err
	}
	if !found {
		return api.NotFoundf("no such preset")
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
