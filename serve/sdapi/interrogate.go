package sdapi

import (
	"net/http"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// caption is what a language model is asked for an image, in place of CLIP's caption.
const caption = "Write a caption of this image: one short sentence, as a prompt for an image model. Output only the caption."

const captionTokens = 128

// interrogate answers with the caption of an image.
func (h *Handler) interrogate(r *http.Request, f *fields) (any, error) {
	file, model := f.text("image"), f.text("model")
	switch {
	case f.err != nil:
		return nil, f.err
	case model != "" && model != "clip":
		return nil, api.NotFoundf("Model not found: %.100q (expected clip)", model)
	case file == "":
		return nil, api.NotFoundf("Image not found")
	}
	left := api.InputPixels(h.MaxPixels)
	img, err := decodeImage(file, &left)
	if err != nil {
		return nil, errs.Requestf("image: %w", err)
	}
	client := engine.Client(r.Context())
	current, _ := h.current(client)
	name, ok := api.LanguageModel(h.engine.Models(), current.Name, true)
	if !ok {
		return nil, &api.Error{Status: http.StatusNotImplemented, Message: "no model of this server has a language model that sees images"}
	}
	job, err := h.run(r.Context(), &engine.Request{
		Client: client, Model: name, Messages: gomflux.Question(img.Pixels(), caption),
		Language: &gomflux.LanguageOptions{MaxTokens: captionTokens},
	})
	if err != nil {
		return nil, err
	}
	return map[string]string{"caption": strings.TrimSpace(job.Status().Answer.Text)}, nil
}
