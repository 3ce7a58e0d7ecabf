package sdapi

import (
	"net/http"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// caption is what a language model is asked for an image, in place of CLIP's caption.
const caption = "Write a caption of this image: one short sentence, as a prompt for an image model. Output only the caption."

const captionTokens = 128

// interrogate answers a request for the caption of an image.
func (h *Handler) interrogate(w http.ResponseWriter, r *http.Request) {
	text, err := h.describe(r)
	if err != nil {
		writeError(w, err)
		return
	}
	write(w, http.StatusOK, map[string]string{"caption": text})
}

func (h *Handler) describe(r *http.Request) (string, error) {
	body, err := readBody(r)
	if err != nil {
		return "", err
	}
	f, err := parseFields(body)
	if err != nil {
		return "", err
	}
	file, model := f.text("image"), f.text("model")
	switch {
	case f.err != nil:
		return "", f.err
	case model != "" && model != "clip":
		return "", notFound("Model not found: %.100q (expected clip)", model)
	case file == "":
		return "", notFound("Image not found")
	}
	left := api.InputPixels(h.maxPixels)
	img, err := decodeImage(file, &left)
	if err != nil {
		return "", badRequest("image: %v", err)
	}
	client := engine.Client(r.Context())
	current, _ := h.current(client)
	name, ok := api.LanguageModel(h.models(), current.Name, true)
	if !ok {
		return "", &statusError{http.StatusNotImplemented, "no model of this server has a language model that sees images"}
	}
	job, err := h.submit(r.Context(), engine.Request{
		Client: client, Model: name, Messages: gomflux.Question(img.Pixels(), caption),
		Language: &gomflux.LanguageOptions{MaxTokens: captionTokens},
	})
	if err != nil {
		return "", err
	}
	defer job.Cancel() // has no effect on a job that has ended
	if err := job.Wait(r.Context()); err != nil {
		return "", err
	}
	return strings.TrimSpace(job.Status().Answer.Text), nil
}
