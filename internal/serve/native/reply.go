package native

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/internal/serve/engine"
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

// describe returns the status and the JSON of an error.
func describe(err error) (int, jsonError) {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.status, jsonError{s.code, s.message}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge, jsonError{"too_large", err.Error()}
	}
	status, code := http.StatusInternalServerError, "failed"
	if _, ok := errors.AsType[*engine.FullError](err); ok {
		status, code = http.StatusTooManyRequests, "queue_full"
	} else if errors.Is(err, engine.ErrClosed) {
		status, code = http.StatusServiceUnavailable, "closing"
	} else if errors.Is(err, gomflux.ErrNotFound) {
		status, code = http.StatusNotFound, "not_found"
	} else if errors.Is(err, gomflux.ErrRequest) {
		status, code = http.StatusBadRequest, "bad_request"
	} else if errors.Is(err, gomflux.ErrMemory) {
		code = "memory"
	}
	return status, jsonError{code, err.Error()}
}

// fail writes an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody reads it
	}
	if full, ok := errors.AsType[*engine.FullError](err); ok {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(full.Retry.Seconds())))))
	}
	if s, ok := errors.AsType[*statusError](err); ok && s.allow != nil {
		w.Header().Set("Allow", strings.Join(s.allow, ", "))
	}
	status, e := describe(err)
	if err := reply(w, status, map[string]any{"error": e}); err != nil {
		a.warn(err)
	}
}
