package native

import (
	"net/http"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

// write starts a job for a text, which is asked for in the same fields as images: one that describes the image, or
// answers the question in the prompt, or one that rewrites the prompt, without generating images.
func (a *API) write(w http.ResponseWriter, r *http.Request, describe bool) error {
	var body jsonRequest
	if err := readJSON(r, &body); err != nil {
		return err
	}
	if body.Enhance == nil {
		body.Enhance = &jsonWriter{}
	}
	q, err := a.request(r, body)
	switch o := q.Options; {
	case err != nil:
		return err
	case !describe:
		q.Options.Image, q.Options.Mask = nil, nil
	case o.Image == nil:
		return errs.Requestf("image is missing")
	default:
		q.Options, q.Messages = gomflux.Options{Prompt: o.Prompt}, gomflux.Question(o.Image, o.Prompt)
	}
	q.Seeds = nil
	j, err := a.engine.Submit(r.Context(), q)
	if err != nil {
		return err
	}
	a.announce()
	return a.accepted(w, r, j)
}
