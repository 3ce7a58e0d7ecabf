package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

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
}

func (e *apiError) Error() string { return e.Message }

// failure returns an error about the request as a whole.
func failure(status int, code, format string, args ...any) *apiError {
	e := &apiError{Message: fmt.Sprintf(format, args...), Type: typeRequest, status: status}
	if status >= http.StatusInternalServerError && status != http.StatusNotImplemented {
		e.Type = typeServer
	}
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

// params are the fields that errors of gomflux about options are about, by how they begin.
var params = []param{
	{"size ", "size"}, {"height ", "size"}, {"width ", "size"}, {"an image of ", "size"},
	{"image strength ", "strength"}, {"guidance ", "guidance"}, {"steps ", "steps"},
	{"negative prompt", "negative_prompt"}, {"temperature ", "temperature"}, {"top_p ", "top_p"}, {"top_k ", "top_k"}, {"min_p ", "min_p"},
	{"presence_penalty ", "presence_penalty"}, {"repetition_penalty ", "repetition_penalty"},
	{"frequency_penalty ", "frequency_penalty"},
	{"the language model of ", messagesField}, {"the prompt has ", messagesField}, {"text has ", messagesField}, // in chats
	{"model ", "model"}, {"no model ", "model"},
	{"unknown scheduler ", "scheduler"}, {"scheduler ", "scheduler"}, {"prompt", "prompt"}, {"LoRA ", "loras"},
}

type param struct{ prefix, name string }

// engineCodes are those of errors of the engine, by status.
var engineCodes = map[int]string{
	http.StatusBadRequest: "invalid_value", http.StatusNotFound: "model_not_found", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests: "rate_limit_exceeded", http.StatusServiceUnavailable: "server_shutting_down",
	http.StatusInternalServerError: "internal_error",
}

// publicError returns the error that is sent for any error.
func publicError(err error) *apiError {
	if sent, ok := errors.AsType[*apiError](err); ok {
		return sent
	}
	status := api.Status(err)
	e := failure(status, engineCodes[status], "%v", err)
	switch full, large := (*engine.FullError)(nil), (*http.MaxBytesError)(nil); {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e = failure(http.StatusServiceUnavailable, "canceled", "the job was canceled")
	case errors.As(err, &full):
		e.Type, e.retry = typeRate, max(full.Retry, time.Second) // 0 stands for none
	case errors.As(err, &large):
		e.Message = fmt.Sprintf("the request is larger than %d bytes (send fewer or smaller images)", large.Limit)
	case status == http.StatusServiceUnavailable:
		e.retry = 5 * time.Second
	case status == http.StatusBadRequest, status == http.StatusNotFound:
		if i := slices.IndexFunc(params, func(p param) bool { return strings.HasPrefix(e.Message, p.prefix) }); i >= 0 {
			e.Param = &params[i].name
		}
	}
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
	api.WriteJSON(w, e.status, map[string]*apiError{"error": e})
}

// codes are those of errors that the server finds, by status.
var codes = map[int]string{
	http.StatusUnauthorized: "invalid_api_key", http.StatusNotFound: "unknown_url",
	http.StatusMethodNotAllowed: "method_not_allowed", http.StatusRequestEntityTooLarge: "request_too_large",
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	writeError(w, failure(status, codes[status], "%s", message))
}
