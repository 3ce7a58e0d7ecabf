package native

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

// TestLive follows all jobs of a client: those that are there, and those that come.
func TestLive(t *testing.T) {
	s := serve(t, func(c *Config) { c.Private = true })
	for _, client := range []string{"ann", "bob", "ann"} {
		s.call("POST", "/api/v1/jobs", `{"prompt":"of `+client+`","label":"l"}`, 202, nil, "Client", client)
	}
	s.engine.jobs[2].end(engine.Done, nil)
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.server.URL+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Client", "ann")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	// next returns the kind and the data of the next event.
	next := func() (kind, data string) {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				kind = text
			}
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return kind, text
			}
		}
		return "end", ""
	}
	expect := func(kind string, parts ...string) {
		t.Helper()
		got, data := next()
		for _, part := range parts {
			if !strings.Contains(data, part) {
				t.Errorf("%s %s: expected %s", got, data, part)
			}
		}
		if got != kind || strings.Contains(data, "bob") {
			t.Errorf("event %s %s, expected %s", got, data, kind)
		}
	}
	expect("jobs", `{"jobs":[{"id":"job0","state":"queued","model":"shapes","prompt":"of ann","label":"l"`)
	expect("queued", `"id":"job0"`)
	s.engine.jobs[1].end(engine.Done, nil) // bob's
	s.engine.jobs[0].finishes(0, 7)
	expect("picture", `"name":"gomflux-`, `"id":"job0"`)
	s.call("POST", "/api/v1/jobs", `{"prompt":"later"}`, 202, nil)
	expect("queued", `"id":"job3"`, `"prompt":"later"`)
	s.api.HangUp()
	expect("end")
}

func TestPresets(t *testing.T) {
	const path = "/api/v1/presets/"
	s := serve(t, func(c *Config) { c.Private = true })
	put := func(name, body string, status int) {
		t.Helper()
		s.call("PUT", path+name, body, status, nil)
	}
	put("fast%20one", `{"steps":4,"seed":"18446744073709551615"}`, 204)
	put("fast%20one", `{"steps":5,"loras":[{"path":"style","scale":0.5}]}`, 204)
	put("a%2Fb", `{}`, 204)
	for name, body := range map[string]string{
		"unknown":                `{"step":4}`,
		"image":                  `{"image":{"data":""}}`,
		"%20space":               `{}`,
		"line%0A":                `{}`,
		"%FF":                    `{}`,
		strings.Repeat("n", 81):  `{}`,
		"wrong":                  `{"steps":"4"}`,
		"two":                    `{} {}`,
		strings.Repeat("é", 100): `{}`,
	} {
		put(name, body, 400)
	}
	put("large", `{"prompt":"`+strings.Repeat("a", gallery.MaxPreset)+`"}`, 413)
	list := func(client string) string {
		var text []byte
		s.call("GET", "/api/v1/presets", "", 200, &text, "Client", client)
		return strings.TrimSpace(string(text))
	}
	const want = `{"presets":[{"name":"a/b","settings":{}},` +
		`{"name":"fast one","settings":{"steps":5,"loras":[{"path":"style","scale":0.5}]}}]}`
	if got := list("ann"); got != want {
		t.Errorf("presets %s", got)
	}
	if got := list("bob"); got != `{"presets":[]}` {
		t.Errorf("bob sees %s", got)
	}
	s.call("DELETE", path+"a%2Fb", "", 404, nil, "Client", "bob")
	s.call("DELETE", path+"a%2Fb", "", 204, nil)
	s.call("DELETE", path+"a%2Fb", "", 404, nil)
	for i := range 99 {
		put("p"+strings.Repeat("x", i%70)+string(rune('a'+i/70)), `{}`, 204)
	}
	put("one%20more", `{}`, 400)
	put("fast%20one", `{}`, 204)
	var g jsonGallery
	s.call("GET", "/api/v1/pictures", "", 200, &g)
	if g.Count != 0 {
		t.Errorf("the gallery has %d images", g.Count)
	}
	none := serve(t, func(c *Config) { c.Gallery = nil })
	none.call("GET", "/api/v1/presets", "", 404, nil)
	none.call("PUT", path+"a", `{}`, 404, nil)
}
