package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/serve/engine"
)

// An sse is a server-sent event.
type sse struct{ event, data string }

func readEvents(t *testing.T, body io.Reader) (all []sse) {
	t.Helper()
	var e sse
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			e.event = value
		case "data":
			e.data = value
		case "":
			if e != (sse{}) {
				all = append(all, e)
			}
			e = sse{}
		case ":":
		default:
			t.Errorf("line %q", lines.Text())
		}
	}
	if e != (sse{}) {
		t.Errorf("%v has no end", e)
	}
	return all
}

// fieldsOf are the fields of OpenAI's events, which their types require.
var fieldsOf = map[string][]string{
	"partial_image": {"b64_json", "background", "created_at", "output_format", "partial_image_index", "quality", "size", "type"},
	"completed":     {"b64_json", "background", "created_at", "output_format", "quality", "size", "type", "usage", "model", "seed"},
}

func TestStream(t *testing.T) {
	img := pngOf(t, testImage(16, 32, 0))
	form, kind := formOf(t, text("prompt", "x"), text("seed", "3"), text("stream", "true"), text("partial_images", "1"),
		part{"image", "a.png", img})
	object := func(more string) []byte { return []byte(`{"prompt": "x", "seed": 3, "stream": true` + more + `}`) }
	const p, c = "partial_image", "completed"
	for name, test := range map[string]struct {
		path, kind string
		body       []byte
		prefix     string
		events     []string
		size       string // of partial images
	}{
		"default":   {generations, "application/json", object(""), "image_generation.", []string{c}, ""},
		"no part":   {generations, "", object(`, "partial_images": 0`), "image_generation.", []string{c}, ""},
		"two parts": {generations, "", object(`, "partial_images": 2, "size": "32x16"`), "image_generation.", []string{p, p, c}, "32x16"},
		"two of three": {generations, "", object(`, "partial_images": 3, "n": 2`), "image_generation.",
			[]string{p, p, p, c, p, p, p, c}, "auto"},
		"edit": {edits, kind, form, "image_edit.", []string{p, c}, "auto"},
	} {
		t.Run(name, func(t *testing.T) {
			h := New(newFake(), testConfig())
			r := post(h, test.path, test.kind, test.body)
			if r.StatusCode != 200 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
				t.Fatalf("status %d, %v", r.StatusCode, r.Header)
			}
			all := readEvents(t, r.Body)
			if last := all[len(all)-1]; last != (sse{"", "[DONE]"}) {
				t.Errorf("the last event is %v", last)
			}
			var kinds []string
			seed, part := 3.0, 0.0
			for _, e := range all[:len(all)-1] {
				kind := strings.TrimPrefix(e.event, test.prefix)
				kinds = append(kinds, kind)
				var body map[string]any
				if err := json.Unmarshal([]byte(e.data), &body); err != nil {
					t.Fatal(err)
				}
				names := fieldsOf[kind]
				for field := range body {
					if !slices.Contains(names, field) {
						t.Errorf("%s: field %s", e.event, field)
					}
				}
				if len(body) != len(names) || body["type"] != e.event || body["created_at"] != 1.8e9 || body["background"] != "opaque" ||
					body["quality"] != "high" || body["output_format"] != "png" {
					t.Errorf("event %v", body)
				}
				data, _ := base64.StdEncoding.DecodeString(body["b64_json"].(string))
				img, err := png.Decode(bytes.NewReader(data))
				if err != nil {
					t.Fatal(err)
				}
				if kind == p {
					if body["partial_image_index"] != part || body["size"] != test.size {
						t.Errorf("index %v, size %v", body["partial_image_index"], body["size"])
					}
					part++
					continue
				}
				if body["size"] != sizeText(img) || body["seed"] != seed || body["usage"].(map[string]any)["total_tokens"].(float64) < 13 {
					t.Errorf("event %v", body)
				}
				seed, part = seed+1, 0
			}
			if !slices.Equal(kinds, test.events) {
				t.Errorf("events %v", kinds)
			}
		})
	}
}

func TestStreamFails(t *testing.T) {
	e := newFake()
	e.fail, e.made = errors.New("the weights are damaged"), 1
	r := postJSON(New(e, testConfig()), generations, `{"prompt": "x", "stream": true, "n": 2}`)
	all := readEvents(t, r.Body)
	if r.StatusCode != 200 || len(all) != 2 || all[0].event != "image_generation.completed" || all[1].event != "error" {
		t.Fatalf("status %d, events %v", r.StatusCode, all)
	}
	var body struct{ Error map[string]any }
	if err := json.Unmarshal([]byte(all[1].data), &body); err != nil || body.Error["message"] != "the weights are damaged" ||
		body.Error["type"] != typeServer || body.Error["code"] != "internal_error" {
		t.Errorf("%s: %v", all[1].data, err)
	}
}

// TestStreamWaits checks that a stream without events has comments, and ends when the job is
// canceled elsewhere.
func TestStreamWaits(t *testing.T) {
	e := newFake()
	e.hang = true
	e.started = make(chan struct{}, 1)
	h := New(e, testConfig())
	h.tick = time.Millisecond
	s := httptest.NewServer(h)
	defer s.Close()
	r, err := http.Post(s.URL+generations, "application/json", strings.NewReader(`{"prompt": "x", "stream": true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewReader(r.Body)
	for { // events of the image that the fake makes first, and then comments
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ":\n" {
			break
		}
	}
	<-e.started
	e.jobs[0].Cancel()
	rest, err := io.ReadAll(lines)
	if err != nil || !bytes.Contains(rest, []byte(`data: {"error":{"message":"the job was canceled"`)) {
		t.Errorf("%q: %v", rest, err)
	}
}

// TestClientGone checks that jobs are canceled when their client goes away.
func TestClientGone(t *testing.T) {
	form, kind := formOf(t, text("prompt", "x"), part{"image", "a.png", pngOf(t, testImage(8, 8, 0))})
	for name, test := range map[string]struct{ path, kind, body string }{
		"generation": {generations, "application/json", `{"prompt": "x"}`},
		"stream":     {generations, "application/json", `{"prompt": "x", "stream": true}`},
		"edit":       {edits, kind, string(form)},
		"chat":       {completions, "application/json", `{"messages": [{"role": "user", "content": "x"}]}`},
		"chat that streams": {completions, "application/json",
			`{"messages": [{"role": "user", "content": "x"}], "stream": true}`},
		"epilogue": {edits, kind, string(form) + strings.Repeat(" ", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake()
			e.hang = true
			e.started = make(chan struct{}, 1)
			s := httptest.NewServer(New(e, testConfig()))
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", test.kind)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if r, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, r.Body) // ends with the context
					r.Body.Close()
				}
			}()
			<-e.started
			select {
			case <-e.jobs[0].canceled:
				t.Error("the job was canceled while its client waited")
			case <-time.After(50 * time.Millisecond):
			}
			cancel()
			select {
			case <-e.jobs[0].canceled:
			case <-time.After(10 * time.Second):
				t.Error("the job was not canceled")
			}
			<-done
		})
	}
}

// TestClientName checks that jobs have the name of their client.
func TestClientName(t *testing.T) {
	e := newFake()
	r := httptest.NewRequest(http.MethodPost, generations, strings.NewReader(`{"prompt": "x"}`))
	w := httptest.NewRecorder()
	New(e, testConfig()).ServeHTTP(w, r.WithContext(engine.WithClient(t.Context(), "anna")))
	if e.requests[0].Client != "anna" {
		t.Errorf("client %q", e.requests[0].Client)
	}
}

// TestPython runs openai-python against a server. GOMFLUX_OPENAI_PYTHON is a Python that has it.
func TestPython(t *testing.T) {
	python := os.Getenv("GOMFLUX_OPENAI_PYTHON")
	if python == "" {
		t.Skip("GOMFLUX_OPENAI_PYTHON is not set to a Python with openai")
	}
	failing := newFake()
	failing.fail, failing.made = errors.New("the weights are damaged"), 1
	full := newFake()
	full.submit = &engine.FullError{Jobs: 1, Retry: time.Second}
	hanging := newFake()
	hanging.hang, hanging.started = true, make(chan struct{}, 9)
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	defer s.Close()
	for name, e := range map[string]*fakeEngine{"ok": newFake(), "failing": failing, "full": full, "hanging": hanging} {
		c := testConfig()
		c.BaseURL = s.URL + "/" + name
		mux.Handle("/"+name+"/", http.StripPrefix("/"+name, New(e, c)))
	}
	image := t.TempDir() + "/in.png"
	if err := os.WriteFile(image, pngOf(t, testImage(16, 32, 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", s.URL, image).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all checks passed\n") {
		t.Fatalf("%v:\n%s", err, out)
	}
	select {
	case <-hanging.jobs[0].canceled:
	case <-time.After(10 * time.Second):
		t.Error("the job of a client that timed out was not canceled")
	}
}
