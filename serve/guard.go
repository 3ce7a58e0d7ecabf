package serve

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/native"
	"github.com/gomflux/gomflux/serve/openai"
	"github.com/gomflux/gomflux/serve/sdapi"
)

// Handler returns the handler of all requests.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.handle) }

// handle checks a request, and hands it to the handler of its path.
func (s *Server) handle(writer http.ResponseWriter, r *http.Request) {
	began := time.Now()
	s.waiting.leave(connOf(r))
	w := &response{
		ResponseWriter: writer, control: http.NewResponseController(writer), patient: s.timing.write,
		unread: r.Body != nil && r.Body != http.NoBody,
	}
	w.control.SetWriteDeadline(time.Time{}) // of the connection's last request
	id := engine.NewID()
	setHeaders(w.Header(), id)
	client := "-"
	request := r
	defer func() {
		problem := recover()
		if problem != nil && problem != http.ErrAbortHandler {
			err := engine.Panicked(s.Log, "request", id, problem)
			if w.status == 0 {
				s.refuse(w, r, http.StatusInternalServerError, err.Error())
				problem = nil
			}
		}
		if w.body != nil {
			w.body.release()
		}
		w.leaveBody()
		s.log(request, w, client, id, time.Since(began))
		if problem != nil {
			panic(http.ErrAbortHandler) // a part of the answer is written: the client must notice
		}
		w.limit() // for what is still in buffers
	}()
	if !s.checkAddress(w, r) || s.allowReading(w, r) {
		return
	}
	if isResult(r) {
		w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin") // pages of other programs show it
	}
	name, known := s.clientOf(r)
	if known {
		client = name
		request = r.WithContext(engine.WithClient(r.Context(), name))
	} else if !isPublic(r) {
		if _, given := givenToken(r); given {
			s.slowDown(r)
		}
		s.unauthorized(w, r)
		return
	}
	b, status, message := s.openBody(w, r)
	if status != 0 {
		s.refuse(w, r, status, message)
		return
	}
	if b != nil {
		w.body, request.Body = b, b
	}
	s.mux.ServeHTTP(w, request)
}

// setHeaders sets the headers of every answer, of whichever API. Pages set a policy that allows more.
func setHeaders(h http.Header, id string) {
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
}

// checkAddress refuses requests for other hosts, and from the pages of others.
func (s *Server) checkAddress(w http.ResponseWriter, r *http.Request) bool {
	if !s.isOwnHost(r.Host) {
		const hint = "this server does not answer for the host %.100q (it must be started with gomflux serve --allowed-host %.100s)"
		s.refuse(w, r, http.StatusForbidden, fmt.Sprintf(hint, r.Host, bareHost(r.Host)))
		return false
	}
	if s.origins.Check(r) != nil {
		s.refuse(w, r, http.StatusForbidden, "requests from pages of other sites are refused")
		return false
	}
	return true
}

// bareHost returns the name in a Host header, without its port, "" if that is no number.
func bareHost(host string) string {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return ""
		}
		host = name
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.ToLower(strings.TrimSuffix(host, ".")), "["), "]")
}

// isOwnHost reports whether a Host header may name this server. Otherwise a page of another site
// could reach it under a name that it lets point to this machine (DNS rebinding).
func (s *Server) isOwnHost(host string) bool {
	if host = bareHost(host); host == "" {
		return false
	}
	if IsLoopback(host) || s.hosts[host] {
		return true
	}
	_, err := netip.ParseAddr(host)
	return s.anyIP && err == nil // nobody can let an address point elsewhere
}

// isPublic reports whether a request needs no token.
func isPublic(r *http.Request) bool {
	return isHealth(r) || r.URL.Path == "/login" || isResult(r)
}

func isHealth(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/health" }

// isResult reports whether a request is for an image under an unguessable name, which OpenAI's
// clients hand to browsers that have no token.
func isResult(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.HasPrefix(r.URL.Path, "/v1/files/")
}

// unauthorized refuses a request without a token; people get the page that asks for it.
func (s *Server) unauthorized(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="gomflux"`) // with Basic, browsers would ask for a password
	s.refuse(w, r, http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN, or Basic with the token as the password")
}

// missing answers a request without a handler.
func (s *Server) missing(w http.ResponseWriter, r *http.Request, status int) {
	message := fmt.Sprintf("there is nothing at %.200q", r.URL.Path)
	if status == http.StatusMethodNotAllowed {
		message = fmt.Sprintf("%.20s is not possible here (allowed: %s)", r.Method, w.Header().Get("Allow"))
	}
	s.refuse(w, r, status, message)
}

// refuse writes an error in the shape of the API that a path belongs to, and of OpenAI's elsewhere.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	write := openai.WriteError
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/"):
		write = native.WriteError
	case strings.HasPrefix(r.URL.Path, "/sdapi/"):
		write = sdapi.WriteError
	}
	write(w, status, message)
}

// log counts a request, and writes its line. It has the route and not the path, which may have the
// name of a result.
func (s *Server) log(r *http.Request, w *response, client, id string, took time.Duration) {
	status := cmp.Or(w.status, http.StatusOK)
	s.answered[status].Add(1)
	route := r.Pattern
	if route == "" || strings.HasSuffix(route, "/sdapi/v1/") { // whose paths name no results
		route = fmt.Sprintf("%.20s %.200s", r.Method, r.URL.Path)
	} else if !strings.HasPrefix(route, r.Method+" ") {
		route = r.Method + " " + route
	}
	if status < 400 && (isHealth(r) || r.URL.Path == "/metrics") {
		return // asked for again and again
	}
	s.Log.Info("request", "route", route, "status", status, "took", took.Round(time.Millisecond), "bytes", w.bytes,
		"client", client, "id", id)
}
