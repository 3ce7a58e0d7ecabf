package serve

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// mountOwn mounts what belongs to no API.
func (s *Server) mountOwn() {
	for _, name := range []string{"/healthz", "/health"} {
		s.mux.HandleFunc("GET "+name, s.health)
	}
	s.mux.HandleFunc("GET /version", s.version)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("GET /login", s.showLogin)
	s.mux.HandleFunc("POST /login", s.login)
	s.mux.HandleFunc("POST /logout", s.logout)
}

// health answers 200 while jobs are taken. With ?deep=1 it lists the models too, which reads their
// files unless another request has just done so, and answers how many can be used.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if s.closing.Load() {
		s.refuse(w, r, http.StatusServiceUnavailable, "the server is shutting down")
		return
	}
	answer := map[string]any{"status": "ok"}
	if s.Ranks > 1 {
		answer["ranks"] = s.Ranks
	}
	if r.URL.Query().Get("deep") == "1" {
		usable := 0
		err := engine.Protect(s.Log, "request", w.Header().Get("X-Request-Id"), func() error {
			for _, m := range s.Engine.Models() {
				if m.Missing == "" {
					usable++
				}
			}
			return nil
		})
		if err == nil && usable == 0 {
			err = errors.New("no model can be used")
		}
		if err != nil {
			s.refuse(w, r, http.StatusServiceUnavailable, "listing the models: "+err.Error())
			return
		}
		answer["models"] = usable
	}
	api.WriteJSON(w, http.StatusOK, answer)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	api.WriteJSON(w, http.StatusOK, map[string]string{
		"version": s.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
	})
}

// metrics writes the text format of Prometheus, version 0.0.4.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	var m metricsText
	m.family("gomflux_build_info", "gauge", "The program.")
	m.sample("gomflux_build_info", 1, "version", s.Version, "go", runtime.Version())
	m.family("process_start_time_seconds", "gauge", "When the server started, in seconds since 1970.")
	m.sample("process_start_time_seconds", float64(s.started.UnixMilli())/1000)
	m.family("gomflux_http_responses_total", "counter", "HTTP responses by status.")
	for status := range s.answered {
		if n := s.answered[status].Load(); n > 0 {
			m.sample("gomflux_http_responses_total", float64(n), "code", strconv.Itoa(status))
		}
	}
	s.engineMetrics(&m)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	io.WriteString(w, m.b.String())
}

// A metricsText is a text in Prometheus' format.
type metricsText struct{ b strings.Builder }

func (m *metricsText) family(name, kind, help string) {
	fmt.Fprintf(&m.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample writes a value with labels, each a name and a value.
func (m *metricsText) sample(name string, value float64, labels ...string) {
	m.b.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&m.b, `%s%s="%s"`, sep, labels[i], escapeLabel.Replace(strings.ToValidUTF8(labels[i+1], "\ufffd")))
	}
	if len(labels) > 0 {
		m.b.WriteByte('}')
	}
	fmt.Fprintf(&m.b, " %v\n", value)
}
