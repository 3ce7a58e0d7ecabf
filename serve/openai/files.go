package openai

import (
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// maxFiles limits the bytes of all images that are kept under URLs.
const maxFiles = 256 << 20

// files keeps images under unguessable names for a while. Knowing the name is the permission to
// read the image.
type files struct{ api.Files }

// add keeps an image and returns its name. The oldest images make room for it.
func (f *files) add(data []byte, format string) string {
	name := engine.NewID() + "." + format
	f.Put(name, data)
	return name
}

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	data := f.Get(name)
	if data == nil {
		writeError(w, failure(http.StatusNotFound, "not_found", "there is no such image, or it was kept long enough"))
		return
	}
	h := w.Header()
	h.Set("Content-Type", "image/"+strings.TrimPrefix(path.Ext(name), "."))
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set("Cache-Control", "private, no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if r.Method != http.MethodHead {
		w.Write(data) // a client that went away is no error of the server
	}
}
