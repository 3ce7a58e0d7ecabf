package native

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/serve/api"
)

// reply writes JSON.
func reply(w http.ResponseWriter, status int, v any) error {
	text, err := plainjson.Marshal(v, "")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, err = w.Write(append(text, '\n'))
	return ignored(err)
}

// A statusError is an error with its HTTP status.
type statusError struct {
	status  int
	code    string // stable, for programs
	message string
	allow   []string // methods
}

func (e *statusError) Error() string { return e.message }

func badRequest(format string, args ...any) error {
	return &statusError{status: http.StatusBadRequest, code: "bad_request", message: fmt.Sprintf(format, args...)}
}

func notFound(message string) error {
	return &statusError{status: http.StatusNotFound, code: "not_found", message: message}
}

func methodError(allowed []string) error {
	return &statusError{
		http.StatusMethodNotAllowed, "method_not_allowed", "expected " + strings.Join(allowed, " or "), allowed,
	}
}

type jsonError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// codes are those of errors that the API itself does not find, by status.
var codes = map[int]string{
	http.StatusRequestEntityTooLarge: "too_large", http.StatusTooManyRequests: "queue_full",
	http.StatusServiceUnavailable: "closing", http.StatusNotFound: "not_found", http.StatusBadRequest: "bad_request",
	http.StatusUnauthorized: "unauthorized", http.StatusForbidden: "forbidden",
}

// describe returns the status and the JSON of an error.
func describe(err error) (int, jsonError) {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.status, jsonError{s.code, s.message}
	}
	status := api.Status(err)
	code, ok := codes[status]
	if !ok {
		code = "failed"
		if errors.Is(err, gomflux.ErrMemory) {
			code = "memory"
		}
	}
	return status, jsonError{code, err.Error()}
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	code := cmp.Or(codes[status], "failed")
	if status == http.StatusServiceUnavailable {
		code = "busy"
	}
	reply(w, status, map[string]any{"error": jsonError{code, message}}) // strings can be encoded
}

// fail writes an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody reads it
	}
	api.SetRetryAfter(w.Header(), err)
	if s, ok := errors.AsType[*statusError](err); ok && s.allow != nil {
		w.Header().Set("Allow", strings.Join(s.allow, ", "))
	}
	status, e := describe(err)
	if err := reply(w, status, map[string]any{"error": e}); err != nil {
		a.warn(err)
	}
}
