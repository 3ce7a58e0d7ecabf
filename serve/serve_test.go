package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/logtest"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A fakeModel generates an image when release is closed.
type fakeModel struct {
	release chan struct{}
	bug     string // where it panics
}

// meets panics where the bug is.
func (m *fakeModel) meets(where string) {
	if m.bug == where {
		panic("a bug in " + where)
	}
}

func (m *fakeModel) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	m.meets("Generate")
	select {
	case <-m.release:
		return &gomflux.Result{Image: image.NewRGBA(image.Rect(0, 0, 8, 8))}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
func (m *fakeModel) Check(gomflux.Options) error { m.meets("Check"); return nil }
func (*fakeModel) Preview(context.Context, gomflux.Latents) (*image.RGBA, error) {
	return image.NewRGBA(image.Rect(0, 0, 1, 1)), nil
}
func (*fakeModel) Defaults() gomflux.Defaults {
	return gomflux.Defaults{Steps: 20, Guidance: 4, Height: 8, Width: 8} // not distilled
}
func (*fakeModel) Multiple() int { return 8 }
func (*fakeModel) Class() string { return "Fake" }
func (*fakeModel) Close() error  { return nil }

// newTest returns a server with a model named fake, and its log.
func newTest(t testing.TB, change func(*Config)) (*Server, *logtest.Log, *fakeModel) {
	t.Helper()
	m, log := &fakeModel{release: make(chan struct{})}, &logtest.Log{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	e := engine.New(engine.Config{
		Open: func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
			m.meets("Open")
			return m, nil
		},
		Models: func() []engine.ModelInfo {
			m.meets("Models")
			return []engine.ModelInfo{{Name: "fake", Default: true, Defaults: m.Defaults()}}
		},
		Queue: 4, KeepAlive: time.Hour, Keep: time.Hour, Log: logger,
	})
	c := Config{
		Engine: e, Address: "127.0.0.1:7860", MaxBody: 1000, MaxPixels: 64 * 64, Grace: time.Second,
		Log: logger, Version: "v1",
	}
	if change != nil {
		change(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		e.Close(ctx)
	})
	return s, log, m
}

func withTokens(c *Config) {
	c.Tokens = []Token{{"ann", "0123456789abcdef"}, {"bob", "fedcba9876543210"}}
}

// ask sends a request to a handler, with headers by turns name and value.
func ask(s *Server, method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	r.Host = "localhost:7860"
	r.RemoteAddr = "127.0.0.1:5000"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// whoami makes /whoami answer with the client's name.
func whoami(s *Server) {
	s.mux.HandleFunc("/whoami", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, engine.Client(r.Context())) })
}

func TestReadTokens(t *testing.T) {
	const a, b = "0123456789abcdef", "0123456789abcdeg"
	name := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string]string{
		"ann:" + a + "\n\n# none\nbob:" + b:        "",
		"\ufeffann:" + a + "\r\nbob:" + b + "\r\n": "",
		"":                        "has no token",
		"ann " + a:                "line 1: expected name:token",
		"\nann:short":             "line 2: the token of ann has 5 characters",
		"an.n:" + a:               "expected a name",
		":" + a:                   "expected a name",
		"ann:" + a + "\nann:" + b: "line 2: a second token of ann",
		"ann:" + a + "\nbob:" + a: "line 2: bob has the token of ann",
		"ann:" + a + " x":         "not printable",
	} {
		os.Remove(name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tokens, err := ReadTokens(name)
		switch {
		case want == "" && (err != nil || len(tokens) != 2 || tokens[1] != Token{"bob", b}):
			t.Errorf("%q: %v, %v", text, tokens, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, expected %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), a):
			t.Errorf("%q: the error has the token: %v", text, err)
		}
	}
	os.WriteFile(name, []byte("ann:"+a), 0o600)
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		os.Chmod(name, mode)
		if _, err := ReadTokens(name); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := ReadTokens(t.TempDir()); err == nil {
		t.Error("a folder was read")
	}
}

func TestTokens(t *testing.T) {
	s, _, _ := newTest(t, withTokens)
	whoami(s)
	for header, want := range map[string]string{
		"":                                 "401",
		"Bearer 0123456789abcdef":          "ann",
		"bearer fedcba9876543210":          "bob",
		"Bearer 0123456789abcdeg":          "401",
		"Bearer 0123456789abcde":           "401",
		"Bearer ":                          "401",
		"0123456789abcdef":                 "401",
		"Basic eDowMTIzNDU2Nzg5YWJjZGVm":   "ann", // x:0123456789abcdef
		"Basic MDEyMzQ1Njc4OWFiY2RlZjp4":   "401", // the token as the name
		"Basic 0123456789abcdef":           "401",
		"Bearer 0123456789abcdef, and not": "401",
	} {
		w := ask(s, "GET", "/whoami", nil, "Authorization", header)
		got := w.Body.String()
		if w.Code != 200 {
			got = fmt.Sprint(w.Code)
		}
		if got != want {
			t.Errorf("%q: %s, expected %s", header, got, want)
		}
		if w.Code == 401 && (w.Header().Get("WWW-Authenticate") == "" || !strings.Contains(w.Body.String(), `"error":{`)) {
			t.Errorf("%q: header %v, body %s", header, w.Header(), w.Body)
		}
	}
	for path, want := range map[string]int{
		"/healthz": 200, "/health": 200, "/login": 200, "/metrics": 401, "/version": 401, "/": 401, "/x": 401,
		"/v1/files/x": 404, "/v1/models": 401, "/api/v1/jobs": 401, "/sdapi/v1/options": 401, "/page/app.js": 401,
	} {
		if w := ask(s, "GET", path, nil); w.Code != want {
			t.Errorf("%s: status %d, expected %d", path, w.Code, want)
		}
	}
	if w := ask(s, "GET", "/", nil, "Accept", "text/html,*/*"); w.Code != 303 || w.Header().Get("Location") != "/login" {
		t.Errorf("a browser without a token: %d, %v", w.Code, w.Header())
	}
	if w := ask(s, "POST", "/v1/files/x", nil); w.Code != 401 {
		t.Errorf("POST to a result: status %d", w.Code)
	}
	s, _, _ = newTest(t, nil)
	whoami(s)
	for path, want := range map[string]int{
		"/": 200, "/v1/models": 200, "/api/v1/jobs": 200, "/sdapi/v1/options": 200, "/api/v1/openapi.json": 200, "/v1/nothing": 404,
	} {
		if w := ask(s, "GET", path, nil, "Accept", "text/html"); w.Code != want {
			t.Errorf("without tokens, %s: status %d, expected %d", path, w.Code, want)
		}
	}
	if w := ask(s, "GET", "/whoami", nil); w.Body.String() != "local" {
		t.Errorf("without tokens the client is %q", w.Body)
	}
}

func TestLogin(t *testing.T) {
	s, log, _ := newTest(t, func(c *Config) { withTokens(c); c.MaxBody = 1 << 20 })
	whoami(s)
	post := func(token string) *httptest.ResponseRecorder {
		return ask(s, "POST", "/login", strings.NewReader(url.Values{"token": {token}}.Encode()),
			"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://localhost:7860")
	}
	if w := post("wrong"); w.Code != 401 || len(w.Result().Cookies()) > 0 || !strings.Contains(w.Body.String(), "The token is wrong") {
		t.Errorf("a wrong token: %d, %s", w.Code, w.Body)
	}
	if w := post(strings.Repeat("x", 10000)); w.Code != 400 {
		t.Errorf("a long token: %d", w.Code)
	}
	w := post("fedcba9876543210")
	cookies := w.Result().Cookies()
	if w.Code != 303 || len(cookies) != 1 {
		t.Fatalf("status %d, cookies %v", w.Code, cookies)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure || strings.Contains(c.Value, "fedcba") {
		t.Errorf("cookie %v", c)
	}
	with := func(value string) string {
		w := ask(s, "GET", "/whoami", nil, "Cookie", cookieName+"="+value)
		if w.Code != 200 {
			return fmt.Sprint(w.Code)
		}
		return w.Body.String()
	}
	parts := strings.Split(c.Value, ".")
	for value, want := range map[string]string{
		c.Value: "bob", c.Value + "0": "401", "ann" + c.Value[3:]: "401", "x": "401", "..": "401",
		parts[0] + ".9999999999." + parts[2] + "." + parts[3]: "401", "eve." + parts[1] + "." + parts[2] + ".": "401",
		parts[0] + "." + parts[1] + "." + strings.Repeat("0", 32) + "." + parts[3]: "401",
	} {
		if got := with(value); got != want {
			t.Errorf("cookie %s: %s, expected %s", value, got, want)
		}
	}
	if old := "bob.1000.0"; with(old+"."+s.mac("bob", old)) != "401" {
		t.Error("an expired cookie is valid")
	}
	s.Tokens = s.Tokens[:1]
	if got := with(c.Value); got != "401" {
		t.Errorf("the token is gone, and the cookie is of %s", got)
	}
	if text := log.String(); strings.Contains(text, "fedcba") {
		t.Errorf("the log has the token: %s", text)
	}
	page := ask(s, "GET", "/login", nil)
	nonce := regexp.MustCompile(`style-src 'nonce-([0-9a-f]{32})'`).FindStringSubmatch(page.Header().Get("Content-Security-Policy"))
	if nonce == nil || !strings.Contains(page.Body.String(), `<style nonce="`+nonce[1]+`">`) {
		t.Errorf("policy %s", page.Header().Get("Content-Security-Policy"))
	}
}

func TestHosts(t *testing.T) {
	for address, hosts := range map[string]map[string]bool{
		"127.0.0.1:7860": {
			"localhost:7860": true, "LOCALHOST": true, "localhost.": true, "127.0.0.1:7860": true, "[::1]:7860": true, "[::1]": true,
			"127.1.2.3": true, "images.example.org": true, "IMAGES.example.org:443": true,
			"evil.example": false, "evil.example:7860": false, "localhost.evil.example": false, "192.168.1.2:7860": false,
			"127.0.0.1.evil.example": false, "": false, "localhost:7860@evil.example": false,
		},
		"0.0.0.0:7860":     {"192.168.1.2:7860": true, "[fe80::1]:7860": true, "evil.example:7860": false, "localhost": true},
		":7860":            {"192.168.1.2:7860": true, "evil.example": false},
		"192.168.1.2:7860": {"192.168.1.2:7860": true, "192.168.1.3:7860": false, "localhost": true},
		"mac.local:7860":   {"mac.local:7860": true, "Mac.local.": true, "pc.local:7860": false},
	} {
		s, _, _ := newTest(t, func(c *Config) { c.Address, c.Hosts = address, []string{"images.example.org"} })
		for host, allowed := range hosts {
			want := 403
			if allowed {
				want = 200
			}
			if w := ask(s, "GET", "/healthz", nil, "Host", host); w.Code != want {
				t.Errorf("listening on %s, host %q: status %d, expected %d", address, host, w.Code, want)
			}
		}
	}
}

func TestOrigins(t *testing.T) {
	s, _, _ := newTest(t, nil)
	whoami(s)
	for _, test := range []struct {
		method  string
		headers []string
		want    int
	}{
		{"POST", nil, 200},
		{"POST", []string{"Origin", "http://localhost:7860"}, 200},
		{"POST", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"POST", []string{"Origin", "http://localhost:8000"}, 403},
		{"POST", []string{"Origin", "http://evil.example"}, 403},
		{"DELETE", []string{"Origin", "null"}, 403},
		{"POST", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"GET", []string{"Sec-Fetch-Site", "cross-site"}, 200}, // a link
	} {
		w := ask(s, test.method, "/whoami", nil, test.headers...)
		if w.Code != test.want {
			t.Errorf("%s with %q: status %d, expected %d", test.method, test.headers, w.Code, test.want)
		}
		for name := range w.Header() {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s with %q: header %s", test.method, test.headers, name)
			}
		}
	}
}

// TestAllowedOrigins: pages of an allowed origin can use the APIs and read the answers, and those of
// others cannot.
func TestAllowedOrigins(t *testing.T) {
	s, _, _ := newTest(t, func(c *Config) {
		withTokens(c)
		c.AllowedOrigins = []string{"http://LOCALHOST:3000", "https://chat.example:443"}
	})
	for _, test := range []struct {
		method, path, origin string
		want                 int
		readable             bool
	}{
		{"GET", "/v1/models", "http://localhost:3000", 200, true},
		{"GET", "/v1/models", "https://chat.example", 200, true},
		{"GET", "/v1/models", "http://localhost:3001", 200, false},
		{"GET", "/v1/models", "http://localhost:3000.evil.example", 200, false},
		{"GET", "/v1/models", "null", 200, false},
		{"GET", "/v1/models", "", 200, false},
		{"GET", "/api/v1/models", "http://localhost:3000", 200, true},
		{"GET", "/sdapi/v1/options", "http://localhost:3000", 200, true},
		{"GET", "/version", "http://localhost:3000", 200, true},
		{"GET", "/v1/models/none", "http://localhost:3000", 404, true},
		{"POST", "/sdapi/v1/interrupt", "http://localhost:3000", 200, true},
		{"POST", "/sdapi/v1/interrupt", "http://localhost:3001", 403, false},
		{"GET", "/", "http://localhost:3000", 200, false},
		{"GET", "/login", "http://localhost:3000", 200, false},
		{"GET", "/metrics", "http://localhost:3000", 200, false},
	} {
		w := ask(s, test.method, test.path, nil, "Origin", test.origin, "Authorization", "Bearer 0123456789abcdef")
		origin, readable := w.Header()["Access-Control-Allow-Origin"]
		if w.Code != test.want || readable != test.readable || readable && origin[0] != test.origin {
			t.Errorf("%v: status %d, header %v", test, w.Code, w.Header())
		}
		if w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%v: cookies are allowed", test)
		}
	}
	ask := func(origin, method string) *httptest.ResponseRecorder { // as browsers do, without a token
		return ask(s, "OPTIONS", "/v1/images/generations", nil, "Origin", origin, "Access-Control-Request-Method", method,
			"Access-Control-Request-Headers", "authorization,x-stainless-lang")
	}
	w := ask("https://chat.example", "POST")
	h := w.Header()
	allowed := h.Get("Access-Control-Allow-Origin") + " " + h.Get("Access-Control-Allow-Headers")
	if w.Code != 204 || allowed != "https://chat.example authorization,x-stainless-lang" || h.Get("Vary") != "Origin" ||
		!strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("status %d, header %v", w.Code, h)
	}
	for name := range map[string]int{"X-Gomflux-Model": 0, "X-Gomflux-Warning": 0, "X-Request-Id": 0} {
		if !slices.Contains(strings.Split(h.Get("Access-Control-Expose-Headers"), ", "), name) {
			t.Errorf("%s is not exposed", name)
		}
	}
	for _, w := range []*httptest.ResponseRecorder{ask("https://evil.example", "POST"), ask("https://chat.example", "")} {
		if w.Code != 401 || w.Header().Get("Access-Control-Allow-Methods") != "" {
			t.Errorf("status %d, header %v", w.Code, w.Header())
		}
	}
	for text, want := range map[string][2]bool{ // as an origin, and as a base URL
		"http://localhost:3000": {true, true}, "https://[::1]:80": {true, true}, "https://example.org/": {false, true},
		"https://example.org/images": {false, true}, "example.org": {}, "localhost:3000": {}, "ftp://example.org": {}, "": {},
		"*": {}, "https://*.example.org": {}, "https://user@example.org": {}, "https://example.org?": {}, "https://:80": {},
	} {
		for i, path := range []bool{false, true} {
			if err := CheckURL(text, path); (err == nil) != want[i] {
				t.Errorf("%q, path %v: %v", text, path, err)
			}
		}
	}
}

// TestBaseURL: a proxy's name is one of the server, and begins the URLs of images.
func TestBaseURL(t *testing.T) {
	s, _, m := newTest(t, func(c *Config) { withTokens(c); c.BaseURL, c.MaxPixels = "https://Images.example/gomflux/", 1<<20 })
	close(m.release)
	const body = `{"prompt":"p","response_format":"url"}`
	for _, host := range []string{"images.example", "127.0.0.1:7860"} {
		w := ask(s, "POST", "/v1/images/generations", strings.NewReader(body), "Host", host, "Content-Type", "application/json",
			"Origin", "https://images.example", "Authorization", "Bearer 0123456789abcdef")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"url":"https://Images.example/gomflux/v1/files/`) {
			t.Errorf("host %s: %d, %s", host, w.Code, w.Body)
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("host %s: header %v", host, w.Header())
		}
	}
	w := ask(s, "POST", "/login", strings.NewReader("token=0123456789abcdef"), "Content-Type", "application/x-www-form-urlencoded")
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("cookies %v", c)
	}
}

func TestAnswers(t *testing.T) {
	s, log, _ := newTest(t, nil)
	s.mux.HandleFunc("POST /secret/{name}", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("oh") })
	ids := map[string]bool{}
	for _, test := range []struct {
		method, path string
		want         int
		message      string
	}{
		{"GET", "/nothing", 404, `there is nothing at \"/nothing\"`},
		{"PUT", "/healthz", 405, "allowed: GET, HEAD"},
		{"GET", "/panic", 500, "internal error"},
		{"POST", "/secret/unguessable?prompt=unguessable", 200, ""},
		{"GET", "/version", 200, `"version":"v1"`},
	} {
		w := ask(s, test.method, test.path, nil)
		if w.Code != test.want || !strings.Contains(w.Body.String(), test.message) {
			t.Errorf("%s %s: %d, %s", test.method, test.path, w.Code, w.Body)
		}
		if test.want >= 400 && w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s: type %s", test.path, w.Header().Get("Content-Type"))
		}
		h := w.Header()
		if h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: headers %v", test.path, h)
		}
		ids[h.Get("X-Request-Id")] = true
	}
	if len(ids) != 5 {
		t.Errorf("ids %v", ids)
	}
	text := log.String()
	if strings.Contains(text, "unguessable") || !strings.Contains(text, `route="POST /secret/{name}" status=200`) ||
		!strings.Contains(text, "error=oh") {
		t.Errorf("log %s", text)
	}
}

// TestPanics: a panic is the failure of one request or one job, with an id that is in the log with the
// stack, and the server goes on.
func TestPanics(t *testing.T) {
	s, log, m := newTest(t, nil)
	close(m.release)
	const generations, body = "/v1/images/generations", `{"prompt":"p","size":"32x32"}`
	for _, test := range []struct {
		bug, method, path, body string
		status                  int
		what                    string
	}{
		{"Open", "POST", generations, body, 500, "job"},
		{"Open", "POST", "/sdapi/v1/txt2img", `{"prompt":"p","width":32,"height":32}`, 500, "job"},
		{"Generate", "POST", generations, body, 500, "job"},
		{"", "POST", generations, body, 200, ""}, // after which the model is in memory
		{"Check", "POST", generations, body, 500, "request"},
		{"Check", "POST", "/api/v1/jobs", `{"prompt":"p"}`, 500, "request"},
		{"Models", "POST", generations, body, 500, "request"},
		{"Models", "GET", "/v1/models", "", 500, "request"},
		{"Models", "GET", "/api/v1/models", "", 500, "request"},
		{"Models", "GET", "/sdapi/v1/sd-models", "", 500, "request"},
		{"Models", "GET", "/healthz", "", 200, ""},
		{"Models", "GET", "/healthz?deep=1", "", 503, "request"},
		{"Models", "GET", "/metrics", "", 200, ""},
		{"", "GET", "/healthz?deep=1", "", 200, ""},
		{"", "POST", generations, body, 200, ""},
	} {
		m.bug = test.bug
		w := ask(s, test.method, test.path, strings.NewReader(test.body), "Content-Type", "application/json")
		if w.Code != test.status {
			t.Errorf("%+v: status %d: %s", test, w.Code, w.Body)
		}
		if test.what == "" {
			continue
		}
		told := regexp.MustCompile(`internal error \(` + test.what + ` ([0-9a-f]{32}) in the server's log\)`)
		id := told.FindStringSubmatch(w.Body.String())
		if id == nil {
			t.Errorf("%+v: %s", test, w.Body)
			continue
		}
		line := regexp.MustCompile(`.*level=ERROR .*id=` + id[1] + ` error="a bug in ` + test.bug + `".*`).FindString(log.String())
		if !strings.Contains(line, "meets") { // in the stack
			t.Errorf("%+v: %q in %s", test, line, log.String())
		}
	}
	if w := ask(s, "GET", "/healthz?deep=1", nil); w.Body.String() != `{"models":1,"status":"ok"}`+"\n" {
		t.Errorf("deep: %s", w.Body)
	}
	m.bug = "Models"
	if w := ask(s, "HEAD", "/healthz?deep=1", nil); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("deep: %d, %v", w.Code, w.Header())
	}
}

// errorOf returns the message and the code of an error in the shape of an API.
func errorOf(t *testing.T, api string, status int, body []byte) (message, code string) {
	t.Helper()
	own := struct {
		Error struct{ Message, Code, Type string }
	}{}
	automatic := struct{ Error, Detail, Errors string }{}
	var v any = &own
	if api == "sdapi" {
		v = &automatic
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Errorf("%s: %s: %v", api, body, err)
	}
	switch server := status >= 500; {
	case api == "sdapi" && (automatic.Error == "RuntimeError") == (status == 500) && automatic.Errors == automatic.Detail:
		return automatic.Detail, ""
	case api == "api" && own.Error.Type == "":
	case (api == "v1" || api == "other") && (own.Error.Type == "server_error") == server:
	default:
		t.Errorf("%s: %s", api, body)
	}
	return own.Error.Message, own.Error.Code
}

// TestErrorShapes checks that errors of the server have the shape of the API that a path belongs to.
func TestErrorShapes(t *testing.T) {
	s, _, _ := newTest(t, withTokens)
	s.timing.room = time.Millisecond
	apis := []string{"api", "sdapi", "v1", "other"}
	for _, api := range apis {
		s.mux.HandleFunc("/"+api+"/panic", func(http.ResponseWriter, *http.Request) { panic("oh") })
	}
	token := []string{"Authorization", "Bearer 0123456789abcdef"}
	for _, test := range []struct {
		status       int
		path, body   string
		headers      []string
		code, openAI string // of gomflux's own errors and of OpenAI's
		message      string
	}{
		{401, "x", "", nil, "unauthorized", "invalid_api_key", "a token is needed: "},
		{403, "x", "", []string{"Host", "evil.example"}, "forbidden", "", "this server does not answer for the host"},
		{403, "x", "", append(token, "Sec-Fetch-Site", "cross-site"), "forbidden", "", "requests from pages of other"},
		{413, "x", strings.Repeat("x", 1001), token, "too_large", "request_too_large", "the request is larger than "},
		{503, "x", "x", token, "busy", "", "too many requests are being read"},
		{500, "panic", "", token, "failed", "", "internal error (request "},
	} {
		s.bodies = semaphore.NewWeighted(bodiesAtOnce * 1000)
		if test.status == 503 {
			s.bodies = semaphore.NewWeighted(0)
		}
		for _, api := range apis {
			w := ask(s, "POST", "/"+api+"/"+test.path, strings.NewReader(test.body), test.headers...)
			message, code := errorOf(t, api, test.status, w.Body.Bytes())
			want := test.openAI
			switch api {
			case "api":
				want = test.code
			case "sdapi":
				want = ""
			}
			if code != want {
				t.Errorf("%s: status %d with code %q, expected %q", api, test.status, code, want)
			}
			h := w.Header()
			if w.Code != test.status || !strings.HasPrefix(message, test.message) || h.Get("Content-Type") != "application/json" {
				t.Errorf("%s: status %d, expected %d; %q, expected %q; headers %v", api, w.Code, test.status, message, test.message, h)
			}
			if retry := h.Get("Retry-After"); (retry == "5") != (test.status == 503) {
				t.Errorf("%s: status %d with Retry-After %q", api, test.status, retry)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	s, _, m := newTest(t, nil)
	close(m.release)
	j, err := (&Backend{api.Adapted{Engine: s.Engine}, s, nil}).Submit(t.Context(), engine.Request{Seeds: []uint64{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask(s, "GET", "/nothing", nil)
	text := ask(s, "GET", "/metrics", nil).Body.String()
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)$`)
	for l := range strings.Lines(text) {
		if !line.MatchString(strings.TrimSuffix(l, "\n")) {
			t.Errorf("line %q", l)
		}
	}
	for _, want := range []string{
		`gomflux_http_responses_total{code="404"} 1`, `gomflux_jobs_ended_total{state="done"} 1`, "gomflux_images_total 2",
		`gomflux_model_loaded{model="fake"} 1`, `gomflux_jobs{state="queued"} 0`, `gomflux_queue_limit 4`, `gomflux_cache_memory_bytes 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in %s", want, text)
		}
	}
	var odd metricsText
	odd.sample("x", 1, "model", "a\"b\\c\nd")
	if got := odd.b.String(); got != `x{model="a\"b\\c\nd"} 1`+"\n" {
		t.Errorf("escaped: %s", got)
	}
}

func TestBackend(t *testing.T) {
	for _, prompts := range []bool{false, true} {
		s, log, m := newTest(t, func(c *Config) { c.LogPrompts = prompts })
		close(m.release)
		b := &Backend{api.Adapted{Engine: s.Engine}, s, nil}
		one := engine.Request{Client: "ann", Seeds: []uint64{1}, Options: gomflux.Options{Prompt: "secret words"}}
		if _, err := b.Submit(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); !strings.Contains(text, "client=ann") || strings.Contains(text, "secret words") != prompts {
			t.Errorf("prompts %v: log %s", prompts, text)
		}
	}
}

// TestRequests: the limits of the server, and no path of a request is opened.
func TestRequests(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("owner/name", 0o777); err != nil {
		t.Fatal(err)
	}
	os.WriteFile("ink.safetensors", nil, 0o666)
	s, _, m := newTest(t, nil)
	close(m.release)
	b := &Backend{api.Adapted{Engine: s.Engine}, s, nil}
	for _, test := range []struct {
		options gomflux.Options
		lora    string
		valid   bool
	}{
		{gomflux.Options{Height: 64, Width: 64}, "", true},
		{gomflux.Options{Height: 64, Width: 72}, "", false},
		{gomflux.Options{Height: 1 << 40, Width: 1 << 40}, "", false}, // whose product is 0
		{gomflux.Options{Height: 1 << 20}, "", false},
		{gomflux.Options{Image: image.NewRGBA(image.Rect(0, 0, 64, 65))}, "", true}, // is scaled down
		{gomflux.Options{Image: image.NewRGBA(image.Rect(0, 0, 64, 65)), Height: 72}, "", false},
		{gomflux.Options{Steps: 1000}, "", true},
		{gomflux.Options{Steps: 1001}, "", false},
		{gomflux.Options{Image: image.NewRGBA(image.Rect(0, 0, 64, 65)), Height: 64, Width: 64}, "", true},
		{gomflux.Options{}, "me/ink", true},
		{gomflux.Options{}, "me/ink@main:sub/ink.safetensors", true},
		{gomflux.Options{}, "ink", true},
		{gomflux.Options{}, "ink.safetensors", false},
		{gomflux.Options{}, "owner/name", false},
		{gomflux.Options{}, "/etc/passwd", false},
		{gomflux.Options{}, "../ink", false},
		{gomflux.Options{}, "me/../ink", false},
		{gomflux.Options{}, "me/ink:../../x", false},
		{gomflux.Options{}, "~/ink", false},
		{gomflux.Options{}, "a/b/c", false},
		{gomflux.Options{}, `a\b`, false},
		{gomflux.Options{}, "", true}, // no LoRA
	} {
		r := engine.Request{Seeds: []uint64{1}, Options: test.options}
		if test.lora != "" {
			r.LoRAs = []gomflux.LoRA{{Path: test.lora, Scale: 1}}
		}
		j, err := b.Submit(t.Context(), r)
		if (err == nil) != test.valid || err != nil && !errors.Is(err, gomflux.ErrRequest) {
			t.Errorf("%v, LoRA %q: %v", test.options, test.lora, err)
		}
		if err == nil {
			j.Wait(t.Context())
		}
	}
}

// TestAPIsAlike: all APIs have the same limits, tell of images that were scaled down, and do not speak of flags
// and files.
func TestAPIsAlike(t *testing.T) {
	s, _, m := newTest(t, func(c *Config) { c.MaxBody, c.MaxPixels = 1<<20, 1<<14 })
	close(m.release)
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, image.NewRGBA(image.Rect(0, 0, 200, 150)), nil); err != nil {
		t.Fatal(err)
	}
	file := base64.StdEncoding.EncodeToString(b.Bytes())
	apis := map[string]func(width, height, steps int, image bool) (path, body string){
		"native": func(width, height, steps int, image bool) (string, string) {
			body := fmt.Sprintf(`{"prompt":"x","width":%d,"height":%d,"steps":%d`, width, height, steps)
			if image {
				body += `,"image":{"data":"` + file + `"},"image_strength":0.5`
			}
			return "/api/v1/jobs", body + "}"
		},
		"OpenAI": func(width, height, steps int, image bool) (string, string) {
			body, path := fmt.Sprintf(`{"prompt":"x","steps":%d`, steps), "/v1/images/generations"
			if width > 0 {
				body += fmt.Sprintf(`,"size":"%dx%d"`, width, height)
			}
			if image {
				body, path = body+`,"strength":0.5,"image":"data:image/png;base64,`+file+`"`, "/v1/images/edits"
			}
			return path, body + "}"
		},
		"AUTOMATIC1111": func(width, height, steps int, image bool) (string, string) {
			body, path := fmt.Sprintf(`{"prompt":"x","steps":%d`, steps), "/sdapi/v1/txt2img"
			if width > 0 {
				body += fmt.Sprintf(`,"width":%d,"height":%d`, width, height)
			}
			if image {
				body, path = body+`,"init_images":["`+file+`"]`, "/sdapi/v1/img2img"
			}
			return path, body + "}"
		},
	}
	private := regexp.MustCompile(`--[a-z]|gomflux serve|axes_lens|\bfiles?\b`)
	for name, api := range apis {
		for _, test := range []struct {
			width, height, steps int
			image                bool
			want                 string // in the answer
			refused              bool
		}{
			{128, 128, 4, false, "", false},
			{256, 128, 4, false, "size 256x128: expected at most 16384 pixels (try 128x64)", true},
			{0, 0, 1001, false, "steps 1001: expected at most 1000", true},
			{0, 0, 4, true, "the image of 200x150 was scaled down", false},
			{256, 128, 4, true, "size 256x128", true},
		} {
			path, body := api(test.width, test.height, test.steps, test.image)
			w := ask(s, "POST", path, strings.NewReader(body), "Content-Type", "application/json")
			text := w.Body.String() + fmt.Sprint(w.Header()["X-Gomflux-Warning"])
			if (w.Code == 400) != test.refused || !test.refused && w.Code >= 300 || !strings.Contains(text, test.want) {
				t.Errorf("%s %+v: %d %.300s", name, test, w.Code, text)
			}
			if test.refused && private.MatchString(text) {
				t.Errorf("%s %+v: %s", name, test, text)
			}
		}
	}
}

// start serves on a free port.
func start(t *testing.T, s *Server) (address string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	return l.Addr().String(), stop
}
