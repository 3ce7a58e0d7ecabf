package openai

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A model is a model in OpenAI's shape, with more about it.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`

	Default bool `json:"default"`
	Loaded  bool `json:"loaded"`
	Edits   bool `json:"edits"`
	// Writes reports that it has a language model, for chat completions, and Sees that this sees images.
	Writes bool `json:"writes"`
	Sees   bool `json:"sees"`
	// Transparent reports that it generates transparent images.
	Transparent bool `json:"transparent"`
	family.Licence
}

func modelOf(m *engine.ModelInfo) model {
	owner, _, ok := strings.Cut(m.Name, "/")
	if !ok || owner == "" {
		owner = "gomflux"
	}
	created := int64(0)
	if !m.Created.IsZero() {
		created = m.Created.Unix()
	}
	return model{m.Name, "model", created, owner, m.Default, m.Loaded, m.Edits, m.Writes, m.Sees, m.HasAlpha, m.Licence}
}

// listModels lists the models that are there.
func (h *Handler) listModels(w http.ResponseWriter, _ *http.Request) error {
	list := []model{}
	for _, m := range h.engine.Models() {
		if m.Missing == "" || m.OnlyWrites {
			list = append(list, modelOf(&m))
		}
	}
	api.WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
	return nil
}

func (h *Handler) oneModel(w http.ResponseWriter, r *http.Request) error {
	if r.PathValue("id") == "" {
		return h.listModels(w, r)
	}
	models, id := h.engine.Models(), r.PathValue("id")
	if folder := "/" + id; slices.ContainsFunc(models, func(m engine.ModelInfo) bool { return m.Is(folder) }) {
		id = folder // net/http has removed the slash, which followed another one
	}
	m, warning, err := resolve(models, id, false, true)
	if err != nil {
		return err
	}
	if warning != "" {
		w.Header().Set("X-Gomflux-Warning", ascii(warning))
	}
	api.WriteJSON(w, http.StatusOK, modelOf(m))
	return nil
}
