package sdapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/serve/api"
)

// invalid returns an error about a body that is not as the API describes it. FastAPI, which
// AUTOMATIC1111 uses, answers these with 422.
func invalid(format string, args ...any) error {
	return &api.Error{Status: http.StatusUnprocessableEntity, Message: fmt.Sprintf(format, args...)}
}

// writeError writes an error in AUTOMATIC1111's form, which has the class of the exception.
func writeError(w http.ResponseWriter, err error) {
	status := api.Status(err)
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
	api.WriteJSON(w, status, map[string]string{"error": class, "detail": text, "body": "", "errors": text})
}

// WriteError writes an error that the server found before a request reached its handler.
func WriteError(w http.ResponseWriter, status int, message string) {
	writeError(w, &api.Error{Status: status, Message: message})
}
