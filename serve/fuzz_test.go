package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// FuzzRequest sends requests with any method, path, headers and body. Without a token they start no
// job and are shown no model, and no request is an error of the server.
func FuzzRequest(f *testing.F) {
	const secret = "0123456789abcdef"
	for _, seed := range [][5]string{
		{"POST", "/v1/images/generations", "localhost", "Bearer " + secret, `{"prompt":"x","n":2}`},
		{"POST", "/v1/images/edits", "localhost", "Bearer " + secret, `{"prompt":"x","image":"data:image/png;base64,AAAA"}`},
		{"POST", "/v1/chat/completions", "localhost", "Bearer " + secret, `{"model":"fake","messages":[{"role":"user","content":"x"}]}`},
		{"POST", "/sdapi/v1/txt2img", "localhost", "Basic YW5uOjAxMjM0NTY3ODlhYmNkZWY=", `{"prompt":"x"}`},
		{"GET", "/sdapi/v1/options", "localhost:7860", "", `{"sd_model_checkpoint":"fake"}`},
		{"POST", "/api/v1/jobs", "127.0.0.1", "bearer " + secret, `{"prompt":"x"}`},
		{"POST", "/prompt", "localhost", "Bearer " + secret, `{"prompt":{"1":{"class_type":"SaveImage","inputs":{}}}}`},
		{"GET", "/api/view?filename=..%2Fx", "localhost", "Bearer " + secret, ""},
		{"POST", "/api/v1/settings", "[::1]:7860", "Bearer " + secret, `{"gomflux":{"version":1}}`},
		{"POST", "/login", "localhost", "", "token=" + secret},
		{"GET", "/v1/models/fake", "localhost", "Basic " + secret, ""},
		{"GET", "/api/v1/jobs/x/events?after=-1", "localhost", "Bearer " + secret, ""},
		{"DELETE", "/api/v1/pictures/..%2Fx", "evil.example", "Bearer " + secret, ""},
		{"OPTIONS", "/v1/images/generations", "localhost", "", ""},
		{"GET", "//healthz/../metrics", "localhost", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], "application/json", []byte(seed[4]))
	}
	s, _, m := newTest(f, withTokens)
	close(m.release)
	f.Fuzz(func(t *testing.T, method, path, host, authorization, kind string, body []byte) {
		target, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || target.Host != "" {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(string(body)))
		r.Method, r.URL, r.Host, r.RemoteAddr = method, target, host, "127.0.0.1:5000"
		r.Header = http.Header{"Authorization": {authorization}, "Content-Type": {kind}}
		all := func() (n int64) { // in any state, since jobs of earlier requests go on
			for _, jobs := range s.Engine.Stats().Jobs {
				n += jobs
			}
			return n
		}
		before := all()
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if ctx.Err() != nil {
			t.Error("no answer after ten seconds")
		}
		if w.Code < 200 || w.Code >= 500 {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		if _, ok := s.clientOf(r); ok {
			return
		}
		if after := all(); after != before {
			t.Errorf("a job was started without a token: %d after %d", after, before)
		}
		if strings.Contains(w.Body.String(), "fake") && !strings.Contains(path, "fake") {
			t.Errorf("status %d without a token: %s", w.Code, w.Body)
		}
	})
}
