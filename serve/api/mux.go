package api

import "net/http"

// A Mux is a [http.ServeMux] whose answers to requests without a handler have the shape of an API.
type Mux struct {
	http.ServeMux
	// Refuse answers with the status 404, or with 405 when the header Allow has the methods of the path.
	Refuse func(w http.ResponseWriter, r *http.Request, status int)
}

// ServeHTTP answers a request.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeMux.ServeHTTP(w, r)
		return
	}
	missing := statusOnly{header: http.Header{}}
	h.ServeHTTP(&missing, r)
	if missing.status != http.StatusMethodNotAllowed {
		m.Refuse(w, r, http.StatusNotFound)
		return
	}
	w.Header().Set("Allow", missing.header.Get("Allow"))
	m.Refuse(w, r, missing.status)
}

// A statusOnly is a ResponseWriter that keeps status and header.
type statusOnly struct {
	header http.Header
	status int
}

func (w *statusOnly) Header() http.Header         { return w.header }
func (w *statusOnly) WriteHeader(status int)      { w.status = status }
func (w *statusOnly) Write(p []byte) (int, error) { return len(p), nil }
