package page_test

import (
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/engine"
	"github.com/gomflux/gomflux/serve/gallery"
)

var patience = flag.Duration("patience", 2*time.Minute, "how long tests wait for the page; the machine may be busy")

// A model generates images of one colour, slowly.
type model struct {
	mu   sync.Mutex
	runs []gomflux.Options
}

func (m *model) Generate(ctx context.Context, o gomflux.Options) (*gomflux.Result, error) {
	m.mu.Lock()
	m.runs = append(m.runs, o)
	m.mu.Unlock()
	s := m.settings(o)
	for step := range s.Steps {
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		o.Progress(gomflux.Progress{Phase: gomflux.PhaseStep, Step: step + 1, Steps: s.Steps})
		if o.OnStep == nil {
			continue
		}
		if err := o.OnStep(gomflux.Step{Step: step + 1, Steps: s.Steps}); err != nil {
			return nil, err
		}
	}
	res := &gomflux.Result{Image: coloured(s.Width, s.Height, *o.Seed), Settings: s}
	for i := range s.Layers {
		layer := image.NewNRGBA(res.Image.Rect)
		layer.Set(i, i, color.NRGBA{uint8(i), 0, 0, 255})
		res.Layers = append(res.Layers, layer)
	}
	return res, nil
}

func (m *model) settings(o gomflux.Options) picture.Settings {
	s := picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: o.Prompt, OriginalPrompt: o.OriginalPrompt, EnhancedBy: o.EnhancedBy,
		NegativePrompt: o.NegativePrompt, Seed: *o.Seed,
		Steps: o.Steps, Height: o.Height, Width: o.Width, Layers: o.Layers,
	}
	if s.Steps == 0 {
		s.Steps = 10
	}
	if s.Height == 0 {
		s.Height, s.Width = 64, 64
	}
	return s
}

func (m *model) last() gomflux.Options {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[len(m.runs)-1]
}

func (*model) Check(gomflux.Options) error { return nil }
func (*model) Defaults() gomflux.Defaults  { return gomflux.Defaults{Steps: 10, Height: 64, Width: 64} }
func (*model) Multiple() int               { return 16 }
func (*model) Class() string               { return "Test" }
func (*model) Close() error                { return nil }

func (*model) Preview(context.Context, gomflux.Latents) (*image.RGBA, error) {
	return coloured(8, 8, 3), nil
}

func coloured(w, h int, seed uint64) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		img.Set(i%w, i/w, color.RGBA{uint8(seed), uint8(i), 120, 255})
	}
	return img
}

// models are those of the test's server: the default one takes no reference images, the others one
// or several. missing is not here.
func models() []engine.ModelInfo {
	defaults := (&model{}).Defaults()
	return []engine.ModelInfo{
		{Name: "shapes", Default: true, Licence: family.Licence{Name: "MIT"}, Defaults: defaults},
		{Name: "one", Repo: "Tongyi-MAI/Z-Image-Turbo", Edits: true, Writes: true, Defaults: defaults},
		{Name: "several", Edits: true, Multiple: true, Writes: true, Sees: true, Boxes: true, Defaults: defaults},
		{Name: "layers", Edits: true, Layers: 4, Defaults: defaults},
		{Name: "missing", Missing: "not downloaded (gomflux pull missing)", Licence: family.Licence{Name: "Own"}},
	}
}

// A browser shows the page of a server.
type browser struct {
	*testing.T
	store *gallery.Gallery // the server's
	ctx   context.Context
	url   string
	model *model
	// unreachable reports that the test loses the server, of which the browser complains.
	unreachable bool
}

// opens returns a function that opens a model.
func opens(m *model) func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
	return func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
		return m, nil
	}
}

// chromium returns the path of the browser, and skips the test without one.
func chromium(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("there is no chromium (apt-get install chromium)")
	return ""
}

// open starts a server, and a browser that shows its page.
func open(t *testing.T, edit func(*serve.Config)) *browser {
	b := start(t, edit)
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	b.wait(`document.getElementById("model").value !== ""`)
	return b
}

// start starts a server, and a browser. At the end of the test the page must have had no errors and
// requested nothing from other hosts.
func start(t *testing.T, edit func(*serve.Config)) *browser {
	program := chromium(t)
	b := &browser{T: t, model: &model{}}
	b.url = b.serve(edit)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 900), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(*patience))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b.ctx = ctx
	var mu sync.Mutex
	var problems []string
	requests := 0
	err := chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			problems = append(problems, fmt.Sprint(e.ExceptionDetails))
		case *log.EventEntryAdded:
			known := strings.Contains(e.Entry.Text, "the server responded with a status of") ||
				b.unreachable && strings.Contains(e.Entry.Text, "net::ERR_")
			if e.Entry.Level == log.EntryLevelError && !known {
				problems = append(problems, e.Entry.Text) // answers with errors are shown on the page
			}
		case *network.EventRequestWillBeSent:
			requests++
			if to := e.Request.URL; !strings.HasPrefix(to, b.url) && !strings.HasPrefix(to, "data:") && !strings.HasPrefix(to, "blob:") {
				problems = append(problems, "request to "+to)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range problems {
			t.Error(p)
		}
		if requests == 0 {
			t.Error("no requests were seen")
		}
	})
	return b
}

// serve starts a server, and returns its address.
func (b *browser) serve(edit func(*serve.Config)) string {
	g, err := gallery.Open(b.TempDir(), gallery.DefaultSize)
	if err != nil {
		b.Fatal(err)
	}
	b.store = g
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	c := serve.Config{
		Engine: engine.New(engine.Config{
			Open: opens(b.model), OpenLanguage: b.model.openLanguage, Models: models, Queue: 20, KeepAlive: time.Minute, Keep: time.Minute,
		}),
		Address: listener.Addr().String(), MaxBody: 25e6, MaxPixels: 1 << 22, MaxSteps: 1 << 20, Gallery: g,
		LoRAs: func() []string { return []string{"owner/style"} }, Log: slog.New(slog.DiscardHandler), Version: "test",
	}
	if edit != nil {
		edit(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- serve.New(c).Serve(ctx, listener) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		g.Close()
	})
	return "http://" + listener.Addr().String()
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, *patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatalf("%v; the page shows:\n%s", err, b.text("document.body.innerText"))
	}
}

// text returns the value of an expression as text.
func (b *browser) text(expression string) string {
	b.Helper()
	return evaluate[string](b, "String("+expression+")")
}

// evaluate returns the value of an expression, or of its promise.
func evaluate[T any](b *browser, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, *patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%s: %v", expression, err)
	}
	return v
}

// wait waits until an expression is true.
func (b *browser) wait(condition string) {
	b.Helper()
	b.until(condition, func() bool { return evaluate[bool](b, "!!("+condition+")") })
}

// until waits until a condition is true.
func (b *browser) until(name string, condition func() bool) {
	b.Helper()
	for deadline := time.Now().Add(*patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	b.Fatalf("waited for %s; the page shows:\n%s", name, b.text("document.body.innerText"))
}

// said waits for an announcement.
func (b *browser) said(text string) {
	b.Helper()
	b.wait(fmt.Sprintf(`document.getElementById("status").textContent === %q`, text))
}

// pictures waits until the gallery shows n images.
func (b *browser) pictures(n int) {
	b.Helper()
	b.wait(fmt.Sprintf(`document.querySelectorAll(".picture").length === %d && !document.querySelector(".job")`, n))
}
