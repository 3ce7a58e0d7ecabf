package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/serve/engine"
)

// An Error is an error with the HTTP status of its answer.
type Error struct {
	Status  int
	Code    string // for programs, "" for that of the status
	Message string
}

func (e *Error) Error() string { return e.Message }

// NotFoundf returns an error about something that is not there.
func NotFoundf(format string, args ...any) error { return errs.NotFound(fmt.Errorf(format, args...)) }

// Status returns the HTTP status for an error of reading a request, of submitting a job, or of
// running it.
func Status(err error) int {
	var own *Error
	var large *http.MaxBytesError
	var full *engine.FullError
	var lora *gomflux.LoRAError
	switch {
	case errors.As(err, &own):
		return own.Status
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &full):
		return http.StatusTooManyRequests
	case errors.Is(err, engine.ErrClosed):
		return http.StatusServiceUnavailable
	case errors.Is(err, gomflux.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, gomflux.ErrRequest), errors.As(err, &lora):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// RetryAfter returns the value of the header Retry-After: whole seconds, rounded up, at least 1.
func RetryAfter(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }

// SetRetryAfter sets the header Retry-After if err is an [engine.FullError].
func SetRetryAfter(h http.Header, err error) {
	if full, ok := errors.AsType[*engine.FullError](err); ok {
		h.Set("Retry-After", RetryAfter(full.Retry))
	}
}
