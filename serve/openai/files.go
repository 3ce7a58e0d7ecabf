package openai

import (
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

const (
	maxFiles  = 256 << 20 // bytes of all images that are kept under URLs
	keepFiles = time.Hour // for which an image is kept
)

// serveFile serves an image, which is kept under an unguessable name for a while. Knowing the name is the
// permission to read it.
func (h *Handler) serveFile(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	data := h.files.Get(name)
	if data == nil {
		return failure(http.StatusNotFound, "not_found", "there is no such image, or it was kept long enough")
	}
	head := w.Header()
	head.Set("Content-Type", "image/"+strings.TrimPrefix(path.Ext(name), "."))
	head.Set("Content-Length", strconv.Itoa(len(data)))
	head.Set("Cache-Control", "private, no-store")
	head.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if r.Method != http.MethodHead {
		w.Write(data) // a client that went away is no error of the server
	}
	return nil
}
