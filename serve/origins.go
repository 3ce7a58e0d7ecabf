package serve

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CheckURL returns an error unless a text is a URL of a server, such as https://example.org. Only
// with path it may have a path.
func CheckURL(text string, path bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.ContainsAny(text, "?#* "):
	case path || u.Path == "":
		return nil
	}
	return errors.New("expected a URL with http or https and a host, such as https://example.org")
}

// originOf returns the origin of a URL as browsers write it.
func originOf(text string) string {
	u, err := url.Parse(strings.ToLower(text))
	if err != nil {
		return ""
	}
	host := u.Host
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; port != "" {
		host = strings.TrimSuffix(host, port)
	}
	return u.Scheme + "://" + host
}

// trust lets pages of other servers use this one, and adds what Config.BaseURL says about it.
func (s *Server) trust() {
	own := s.AllowedOrigins
	if s.BaseURL != "" {
		s.BaseURL = strings.TrimRight(s.BaseURL, "/")
		own = append(slices.Clone(own), s.BaseURL)
		if u, err := url.Parse(s.BaseURL); err == nil {
			s.hosts[strings.ToLower(u.Hostname())] = true
		}
	}
	for _, origin := range own {
		if err := s.origins.AddTrustedOrigin(originOf(origin)); err != nil {
			panic(err) // CheckURL accepted it
		}
	}
	for _, origin := range s.AllowedOrigins {
		s.readers = append(s.readers, originOf(origin))
	}
}

// exposed are the headers of answers that pages of allowed origins can read.
const exposed = "Content-Disposition, Location, Retry-After, X-Gomflux-Model, X-Gomflux-Warning, X-Request-Id, X-Should-Retry"

// allowReading lets the page of an allowed origin read the answer. It reports whether the request
// only asks for permission, and was answered.
func (s *Server) allowReading(w http.ResponseWriter, r *http.Request) (answered bool) {
	if len(s.readers) == 0 || !forPrograms(r.URL.Path) {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if !slices.Contains(s.readers, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", cmp.Or(r.Header.Get("Access-Control-Request-Headers"), "Authorization, Content-Type"))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// forPrograms reports whether a path is of an API, and not of the page.
func forPrograms(path string) bool {
	return path != "/" && path != "/login" && path != "/logout" && path != "/metrics" && !strings.HasPrefix(path, "/page/")
}
