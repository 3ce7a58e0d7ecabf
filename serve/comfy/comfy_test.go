package comfy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

var models = []engine.ModelInfo{
	{Name: "shapes", Default: true, GuidanceUnit: picture.CFGScale, Defaults: gomflux.Defaults{Steps: 9, Height: 64, Width: 64}},
	{Name: "flux1-dev", GuidanceUnit: picture.DistilledCFGScale, TrueCFG: true, SizeMultiple: 16},
	{Name: "flux2", GuidanceUnit: picture.DistilledCFGScale, Edits: true, Multiple: true},
	{Name: "gone", Missing: "is not on this machine"},
}

// A fakeModel generates images of one colour. With stop, each waits until it can receive from it, after a
// step with a preview.
type fakeModel struct {
	stop chan struct{}
	fail error

	mu   sync.Mutex
	runs []gomflux.Options
}

func (m *fakeModel) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	m.mu.Lock()
	m.runs = append(m.runs, o)
	m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 1, Steps: 2})
	if o.OnStep != nil {
		o.OnStep(gomflux.Step{Step: 1, Steps: 2})
	}
	if m.stop != nil {
		select {
		case <-m.stop:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Step: 2, Steps: 2})
	img := image.NewRGBA(image.Rect(0, 0, 16, 8))
	for i := range img.Pix {
		img.Pix[i] = max(uint8(*o.Seed), uint8(i%4/3*255))
	}
	s := gomflux.Settings{
		Version: 1, Generator: "gomflux test", Model: "shapes", Prompt: o.Prompt, Seed: *o.Seed, Steps: 2, Height: 8, Width: 16,
	}
	return &gomflux.Result{Image: img, Settings: s}, nil
}

func (m *fakeModel) Preview(context.Context, gomflux.Latents) (*image.RGBA, error) {
	return image.NewRGBA(image.Rect(0, 0, 8, 4)), nil
}
func (*fakeModel) Check(gomflux.Options) error { return nil }
func (*fakeModel) Defaults() gomflux.Defaults  { return models[0].Defaults }
func (*fakeModel) Multiple() int               { return 16 }
func (*fakeModel) Class() string               { return "Fake" }
func (*fakeModel) Close() error                { return nil }

// A server answers requests with the engine of gomflux serve. Its clients are named by the header X-Client.
type server struct {
	*testing.T
	*fakeModel
	h   *Handler
	url string
}

func start(t *testing.T, m *fakeModel, c Config) *server {
	e := engine.New(engine.Config{
		Open: func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
			return m, nil
		},
		Models: func() []engine.ModelInfo { return models }, Queue: 8, KeepAlive: time.Minute, Keep: time.Minute,
		Log: slog.New(slog.DiscardHandler),
	})
	h, mux := New(api.Adapted{Engine: e}, c), http.NewServeMux()
	h.Mount(mux)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(engine.WithClient(r.Context(), r.Header.Get("X-Client"))))
	}))
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		e.Close(ended)
		h.HangUp()
		s.Close()
	})
	return &server{t, m, h, s.URL}
}

// last returns the options of the newest image.
func (s *server) last() gomflux.Options {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[len(s.runs)-1]
}

// ask sends a request with a status as its answer, and decodes the answer.
func ask[T any](s *server, status int, method, path string, body any, header ...string) (answer T) {
	s.Helper()
	data, isBytes := body.([]byte)
	if text, ok := body.(string); ok {
		data, isBytes = []byte(text), true
	}
	if !isBytes && body != nil {
		data, _ = json.Marshal(body)
	}
	r, err := http.NewRequest(method, s.url+path, bytes.NewReader(data))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		s.Fatalf("%s %s: status %d %s (%v), expected %d", method, path, resp.StatusCode, data, err, status)
	}
	switch to := any(&answer).(type) {
	case *[]byte:
		*to = data
	default:
		if err := json.Unmarshal(data, to); err != nil {
			s.Fatalf("%s %s: %v: %s", method, path, err, data)
		}
	}
	return answer
}

// wait waits until a condition holds.
func (s *server) wait(what string, ok func() bool) {
	s.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Fatalf("waited too long for %s", what)
}

// inputs matches an input of a node in the text of a graph.
var inputs = regexp.MustCompile(`(\w+)=("[^"]*"|\S+)`)

// graph returns a graph. Each line is a node: its id, its class, and its inputs, of which @4.1 is output 1
// of node 4.
func graph(text string) map[string]any {
	g := map[string]any{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		in := map[string]any{}
		for _, m := range inputs.FindAllStringSubmatch(line, -1) {
			var value any
			if link, ok := strings.CutPrefix(m[2], "@"); ok {
				id, output, _ := strings.Cut(link, ".")
				value = []any{id, json.RawMessage(cmp.Or(output, "0"))}
			} else if json.Unmarshal([]byte(m[2]), &value) != nil {
				value = m[2]
			} else {
				value = json.RawMessage(m[2])
			}
			in[m[1]] = value
		}
		g[words[0]] = map[string]any{"class_type": words[1], "inputs": in, "_meta": map[string]string{"title": words[1]}}
	}
	return g
}

// A socketClient reads the messages of a WebSocket.
type socketClient struct {
	*server
	c *websocket.Conn
}

func (s *server) connect(id string, header ...string) *socketClient {
	s.Helper()
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	c, _, err := websocket.Dial(s.Context(), s.url+"/ws?clientId="+id, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.CloseNow() })
	return &socketClient{s, c}
}

// until reads messages up to one whose text matches, and returns them in short: their types, and the
// bytes of images.
func (c *socketClient) until(last string) (all []string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	for {
		kind, data, err := c.c.Read(ctx)
		if err != nil {
			c.Fatalf("%v after %q", err, all)
		}
		if kind == websocket.MessageBinary {
			all = append(all, fmt.Sprintf("%x %s", data[:8], http.DetectContentType(data[8:])))
			continue
		}
		var m struct{ Type string }
		if err := json.Unmarshal(data, &m); err != nil {
			c.Fatal(err)
		}
		all = append(all, m.Type)
		if regexp.MustCompile(last).Match(data) {
			return all
		}
	}
}

func pngOf(t testing.TB, img image.Image) []byte {
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// filled returns an image whose right half has an alpha.
func filled(width, height int, alpha uint8) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		c := color.NRGBA{200, 100, 50, 255}
		if i%width >= width/2 {
			c.A = alpha
		}
		img.SetNRGBA(i%width, i/width, c)
	}
	return img
}

// upload sends an image, with the fields of a form.
func (s *server) upload(path, name string, data []byte, fields ...string) map[string]string {
	s.Helper()
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	part, err := form.CreateFormFile("image", name)
	if err != nil {
		s.Fatal(err)
	}
	part.Write(data)
	for i := 0; i < len(fields); i += 2 {
		form.WriteField(fields[i], fields[i+1])
	}
	form.Close()
	return ask[map[string]string](s, 200, "POST", path, b.Bytes(), "Content-Type", form.FormDataContentType())
}

// The answer to a graph, and an entry of the history.
type (
	submitted struct {
		ID       string   `json:"prompt_id"`
		Number   int      `json:"number"`
		Warnings []string `json:"warnings"`
	}
	entry struct {
		Prompt  []json.RawMessage `json:"prompt"`
		Outputs map[string]struct {
			Images []struct{ Filename, Subfolder, Type string } `json:"images"`
		} `json:"outputs"`
		Status struct {
			Text      string  `json:"status_str"`
			Completed bool    `json:"completed"`
			Messages  [][]any `json:"messages"`
		} `json:"status"`
	}
)

// finish waits for the entry of a graph.
func (s *server) finish(id string) (e entry) {
	s.Helper()
	s.wait("the history", func() bool {
		var ok bool
		e, ok = ask[map[string]entry](s, 200, "GET", "/history/"+id, nil)[id]
		return ok
	})
	return e
}
