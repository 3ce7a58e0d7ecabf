package sdapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/serve/api"
)

// A statusError is an error with the status of its response.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

func badRequest(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &statusError{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// invalid returns an error about a body that is not as the API describes it. FastAPI, which
// AUTOMATIC1111 uses, answers these with 422.
func invalid(format string, args ...any) error {
	return &statusError{http.StatusUnprocessableEntity, fmt.Sprintf(format, args...)}
}

// readBody reads the body of a request, whose size the server limits.
func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	if err != nil && !errors.As(err, &large) {
		err = badRequest("cannot read the body: %v", err)
	}
	return body, err
}

// statusOf returns the status of a response about an error.
func statusOf(err error) int {
	var status *statusError
	if errors.As(err, &status) {
		return status.status
	}
	return api.Status(err)
}

// An errorBody is AUTOMATIC1111's description of an error.
type errorBody struct {
	Error  string `json:"error"` // the class of the exception
	Detail string `json:"detail"`
	Body   string `json:"body"`
	Errors string `json:"errors"`
}

// writeError writes an error in AUTOMATIC1111's form.
func writeError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	class := "HTTPException"
	switch {
	case errors.Is(err, gomflux.ErrMemory):
		class = "OutOfMemoryError"
	case status == http.StatusUnprocessableEntity:
		class = "RequestValidationError"
	case status == http.StatusInternalServerError:
		class = "RuntimeError"
	}
	api.SetRetryAfter(w.Header(), err)
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	write(w, status, errorBody{Error: class, Detail: text, Errors: text})
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	writeError(w, &statusError{status, message})
}

// write writes a response as JSON.
func write(w http.ResponseWriter, status int, v any) {
	data, err := plainjson.Marshal(v, "")
	if err != nil { // a number that is not finite
		status = http.StatusInternalServerError
		data = []byte(`{"error":"RuntimeError","detail":"the response cannot be written as JSON","body":"","errors":""}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(data) // if it fails, the client is gone
}
