package native

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
)

// reply writes JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	api.WriteJSON(w, status, v)
	return nil
}

type jsonError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// codes are those of errors that the API itself does not find, by status.
var codes = map[int]string{
	http.StatusRequestEntityTooLarge: "too_large", http.StatusTooManyRequests: "queue_full",
	http.StatusServiceUnavailable: "closing", http.StatusNotFound: "not_found", http.StatusBadRequest: "bad_request",
	http.StatusMethodNotAllowed: "method_not_allowed", http.StatusUnauthorized: "unauthorized", http.StatusForbidden: "forbidden",
}

// describe returns the status and the JSON of an error.
func describe(err error) (int, jsonError) {
	status := api.Status(err)
	code := cmp.Or(codes[status], "failed")
	if own, ok := errors.AsType[*api.Error](err); ok {
		code = cmp.Or(own.Code, code)
	} else if errors.Is(err, gomflux.ErrMemory) {
		code = "memory"
	}
	return status, jsonError{code, err.Error()}
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	code := cmp.Or(codes[status], "failed")
	if status == http.StatusServiceUnavailable {
		code = "busy"
	}
	api.WriteJSON(w, status, map[string]any{"error": jsonError{code, message}})
}

// fail writes an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody reads it
	}
	api.SetRetryAfter(w.Header(), err)
	status, e := describe(err)
	api.WriteJSON(w, status, map[string]any{"error": e})
}
