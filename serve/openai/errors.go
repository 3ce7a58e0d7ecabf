package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// Types of errors in OpenAI's API.
const (
	typeRequest = "invalid_request_error"
	typeRate    = "rate_limit_error"
	typeServer  = "server_error"
)

// An apiError is an error in OpenAI's shape, with its HTTP status.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`

	status int
	retry  time.Duration // after which it may be worth trying again, 0 if it is not
	allow  string        // the methods of a route, for status 405
}

func (e *apiError) Error() string { return e.Message }

// failure returns an error about the request as a whole.
func failure(status int, code, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Type: typeRequest, status: status}
	if code != "" {
		e.Code = &code
	}
	return e
}

// invalid returns an error about the value of a field.
func invalid(param, format string, args ...any) *apiError {
	e := failure(http.StatusBadRequest, "invalid_value", "%s: %s", param, fmt.Sprintf(format, args...))
	e.Param = &param
	return e
}

// unsupported is invalid for a value that OpenAI accepts and this server does not.
func unsupported(param, format string, args ...any) *apiError {
	e := invalid(param, format, args...)
	code := "unsupported_value"
	e.Code = &code
	return e
}

// busy returns an error about a limit of the server.
func busy(retry time.Duration, message string) *apiError {
	e := failure(http.StatusTooManyRequests, "rate_limit_exceeded", "%s", message)
	e.Type, e.retry = typeRate, max(retry, time.Second) // 0 stands for none
	return e
}

// params are the fields that errors of gomflux about options are about, by how they begin.
var params = []struct{ prefix, param string }{
	{"size ", "size"}, {"height ", "size"}, {"width ", "size"}, {"an image of ", "size"},
	{"image strength ", "strength"}, {"guidance ", "guidance"}, {"steps ", "steps"},
	{"negative prompt", "negative_prompt"}, {"temperature ", "temperature"}, {"top_p ", "top_p"}, {"top_k ", "top_k"}, {"min_p ", "min_p"},
	{"presence_penalty ", "presence_penalty"}, {"frequency_penalty ", "frequency_penalty"},
	{"unknown scheduler ", "scheduler"}, {"scheduler ", "scheduler"}, {"prompt", "prompt"}, {"LoRA ", "loras"},
}

// publicError returns the error that is sent for any error.
func publicError(err error) *apiError {
	var sent *apiError
	var full *engine.FullError
	var large *http.MaxBytesError
	var weights *gomflux.LoRAError
	switch {
	case errors.As(err, &sent):
		return sent
	case errors.As(err, &full):
		return busy(full.Retry, err.Error())
	case errors.As(err, &large):
		return failure(http.StatusRequestEntityTooLarge, "request_too_large",
			"the request is larger than %d bytes (send fewer or smaller images)", large.Limit)
	case errors.Is(err, engine.ErrClosed):
		e := failure(http.StatusServiceUnavailable, "server_shutting_down", "%v", err)
		e.Type, e.retry = typeServer, 5*time.Second
		return e
	case errors.Is(err, gomflux.ErrNotFound):
		return failure(http.StatusNotFound, "model_not_found", "%v", err)
	case errors.Is(err, gomflux.ErrRequest), errors.As(err, &weights):
		e := failure(http.StatusBadRequest, "invalid_value", "%v", err)
		for _, p := range params {
			if strings.HasPrefix(e.Message, p.prefix) {
				e.Param = &p.param
				break
			}
		}
		return e
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e := failure(http.StatusServiceUnavailable, "canceled", "the job was canceled")
		e.Type = typeServer
		return e
	}
	e := failure(http.StatusInternalServerError, "internal_error", "%v", err)
	e.Type = typeServer
	return e
}

// writeError answers with an error.
func writeError(w http.ResponseWriter, err error) {
	e := publicError(err)
	h := w.Header()
	if e.retry > 0 {
		h.Set("Retry-After", api.RetryAfter(e.retry))
	} else if e.status >= http.StatusInternalServerError && h.Get("Retry-After") == "" {
		// OpenAI's clients repeat requests that fail in this way, unless they are told not to
		h.Set("X-Should-Retry", "false")
	}
	if e.allow != "" {
		h.Set("Allow", e.allow)
	}
	writeJSON(w, e.status, errorBody{e})
}

// codes are those of errors that the server finds, by status.
var codes = map[int]string{
	http.StatusUnauthorized: "invalid_api_key", http.StatusNotFound: "unknown_url",
	http.StatusMethodNotAllowed: "method_not_allowed", http.StatusRequestEntityTooLarge: "request_too_large",
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	e := failure(status, codes[status], "%s", message)
	if status >= http.StatusInternalServerError {
		e.Type = typeServer
	}
	writeError(w, e)
}

type errorBody struct {
	Error *apiError `json:"error"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := plainjson.Marshal(v, "")
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"encoding the answer failed"}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // a client that went away is no error of the server
}
