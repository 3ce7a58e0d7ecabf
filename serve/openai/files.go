package openai

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gomflux/gomflux/serve/engine"
)

// maxFiles limits the bytes of all images that are kept under URLs.
const maxFiles = 256 << 20

// files keeps images under unguessable names for a while. Knowing the name is the permission to
// read the image.
type files struct {
	keep time.Duration
	most int64
	now  func() time.Time

	mu    sync.Mutex
	kept  map[string]file
	order []string // of names, oldest first
	bytes int64
}

type file struct {
	data    []byte
	kind    string // media type
	expires time.Time
}

// add keeps an image and returns its name. The oldest images make room for it.
func (f *files) add(data []byte, format string) string {
	name := engine.NewID() + "." + format
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(int64(len(data)))
	f.kept[name] = file{data, "image/" + format, f.now().Add(f.keep)}
	f.order = append(f.order, name)
	f.bytes += int64(len(data))
	return name
}

// expire drops images that were kept long enough, and the oldest until there is room.
func (f *files) expire(room int64) {
	for len(f.order) > 0 {
		oldest := f.kept[f.order[0]]
		if f.now().Before(oldest.expires) && f.bytes+room <= f.most {
			return
		}
		f.bytes -= int64(len(oldest.data))
		delete(f.kept, f.order[0])
		f.order = f.order[1:]
	}
}

func (f *files) get(name string) (file, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(0)
	found, ok := f.kept[name]
	return found, ok
}

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	found, ok := f.get(r.PathValue("name"))
	if !ok {
		writeError(w, failure(http.StatusNotFound, "not_found", "there is no such image, or it was kept long enough"))
		return
	}
	h := w.Header()
	h.Set("Content-Type", found.kind)
	h.Set("Content-Length", strconv.Itoa(len(found.data)))
	h.Set("Cache-Control", "private, no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if r.Method != http.MethodHead {
		w.Write(found.data) // a client that went away is no error of the server
	}
}
