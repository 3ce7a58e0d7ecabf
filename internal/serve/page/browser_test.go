package page

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/serve/engine"
	"github.com/gomflux/gomflux/internal/serve/gallery"
	"github.com/gomflux/gomflux/internal/serve/native"
	"github.com/gomflux/gomflux/picture"
)

// envAxe is the file axe.min.js of the npm package axe-core, for TestAccessibility.
const envAxe = "GOMFLUX_TEST_AXE"

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
		if err := o.OnStep(gomflux.Step{Step: step + 1, Steps: s.Steps}); err != nil {
			return nil, err
		}
	}
	return &gomflux.Result{Image: coloured(s.Width, s.Height, *o.Seed), Settings: s}, nil
}

func (m *model) settings(o gomflux.Options) picture.Settings {
	s := picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: o.Prompt, NegativePrompt: o.NegativePrompt, Seed: *o.Seed,
		Steps: o.Steps, Height: o.Height, Width: o.Width,
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

// A browser shows the page of a server.
type browser struct {
	*testing.T
	ctx   context.Context
	url   string
	model *model
}

// open starts a server, and a browser that shows its page. At the end of the test the page must
// have had no errors and requested nothing from other hosts.
func open(t *testing.T) *browser {
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		t.Skip("there is no chromium (apt-get install chromium)")
	}
	b := &browser{T: t, model: &model{}}
	b.url = serve(t, b.model)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1280, 900), chromedp.UserDataDir(t.TempDir()))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	b.ctx = ctx
	var mu sync.Mutex
	var problems []string
	err := chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			problems = append(problems, fmt.Sprint(e.ExceptionDetails))
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "status of 4") { // answers are shown
				problems = append(problems, e.Entry.Text)
			}
		case *network.EventRequestWillBeSent:
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
	})
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	b.wait(`document.getElementById("model").value === "shapes"`)
	return b
}

// serve starts a server with the page and the interface that it uses.
func serve(t *testing.T, m *model) string {
	g, err := gallery.Open(t.TempDir(), gallery.DefaultSize)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Config{
		Open: func(context.Context, string, []gomflux.LoRA, func(gomflux.Progress)) (engine.Model, error) {
			return m, nil
		},
		Models: func() []engine.ModelInfo {
			return []engine.ModelInfo{
				{Name: "other", Edits: true, Missing: "not here (gomflux pull other)"},
				{Name: "shapes", Default: true, Licence: "MIT", Defaults: m.Defaults()},
			}
		},
		Queue: 10, KeepAlive: time.Minute, Keep: time.Minute,
	})
	api := native.New(e, native.Config{Gallery: g, LoRAs: func() []string { return []string{"owner/style"} }})
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", api)
	mux.Handle("/", Handler())
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // ends running jobs
		e.Close(ctx)
		api.Wait(context.Background())
		server.CloseClientConnections()
		server.Close()
		g.Close()
	})
	return server.URL
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
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
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// wait waits until an expression is true.
func (b *browser) wait(condition string) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if evaluate[bool](b, "!!("+condition+")") {
			return
		}
	}
	b.Fatalf("%s did not become true; the page shows:\n%s", condition, b.text("document.body.innerText"))
}

const loaded = `[...document.querySelectorAll("#gallery img")].every(i => i.complete && i.naturalWidth > 0)`

func TestMake(t *testing.T) {
	b := open(t)
	b.run(chromedp.SendKeys("#prompt", "a <b>lighthouse</b>"), chromedp.SendKeys("#seed", "7"),
		chromedp.SetValue("#count", "2"), chromedp.SendKeys("#prompt", kb.Enter))
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")?.naturalWidth === 8`)
	b.wait(`document.querySelector(".job .state").textContent.includes("Image 2 of 2, step")`)
	b.wait(`document.getElementById("status").textContent === "Generating image 2 of 2."`)
	b.wait(`document.querySelectorAll(".picture").length === 2 && !document.querySelector(".job")`)
	b.run(chromedp.ScrollIntoView(".picture"))
	b.wait(loaded)
	if got := b.text(`document.querySelector(".picture .prompt").textContent`); got != "a <b>lighthouse</b>\n" {
		t.Errorf("prompt %q", got)
	}
	if got := b.text(`document.getElementById("gallery-size").textContent`); !strings.HasPrefix(got, "2 images") {
		t.Errorf("size %q", got)
	}
	// the gallery survives a reload
	b.run(chromedp.Reload())
	b.wait(`document.querySelectorAll(".picture").length === 2`)
	b.run(chromedp.Click(".picture .use"))
	if got := b.text(`document.getElementById("seed").value`); got != "8" {
		t.Errorf("the newest image has the seed %s", got)
	}
	b.run(chromedp.Click(".picture .start"))
	b.wait(`document.querySelector("#start .chosen img")?.naturalWidth === 64`)
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".picture").length === 3`)
	if o := b.model.last(); o.Image == nil || o.ImageStrength != 0.4 || *o.Seed != 8 {
		t.Errorf("options %+v", o)
	}
	b.text(`window.confirm = () => true`)
	b.run(chromedp.Click(".picture .delete"))
	b.wait(`document.querySelectorAll(".picture").length === 2`)
	b.wait(`document.getElementById("gallery-size").textContent.startsWith("2 images")`)
}

func TestReloadAndCancel(t *testing.T) {
	b := open(t)
	b.run(chromedp.SendKeys("#prompt", "slow"), chromedp.SendKeys("#steps", "2000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	b.run(chromedp.Reload())
	b.wait(`document.querySelector(".job .preview:not([hidden])")?.naturalWidth === 8`)
	b.run(chromedp.Click(".job .cancel"))
	b.wait(`!document.querySelector(".job") && document.getElementById("status").textContent === "The job was canceled."`)
	if b.text(`document.activeElement.id`) != "generate" {
		t.Error("the focus is lost")
	}
	b.run(chromedp.SetValue("#prompt", "x"), chromedp.SetValue("#width", "100000"), chromedp.Click("#generate"))
	b.wait(`document.getElementById("error").textContent.includes("size 100000x0") || ` +
		`document.getElementById("error").textContent.includes("expected at most")`)
}

func TestReadSettings(t *testing.T) {
	b := open(t)
	s := &picture.Settings{
		Generator: "gomflux test", Model: "shapes", Prompt: "from a file", Seed: 1<<64 - 1, Steps: 3, Guidance: 1.5, Height: 32, Width: 48,
		Scheduler: "linear", LoRAs: []picture.LoRA{{Path: "owner/style", Scale: 0.5}},
	}
	var file bytes.Buffer
	if err := picture.Encode(&file, picture.PNG, coloured(48, 32, 1), s); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "made.png")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.SetUploadFiles("#read", []string{name}))
	filled := `document.getElementById("prompt").value === "from a file" && ` +
		`document.getElementById("seed").value === "18446744073709551615"`
	b.wait(filled)
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".picture").length === 1`)
	o := b.model.last()
	if *o.Seed != s.Seed || o.Steps != 3 || *o.Guidance != 1.5 || o.Height != 32 || o.Width != 48 || o.Scheduler != "linear" {
		t.Errorf("options %+v, seed %d", o, *o.Seed)
	}
	b.run(chromedp.Click("#empty"))
	b.wait(`document.getElementById("prompt").value === "" && document.querySelectorAll(".lora").length === 0`)

	// dropped
	drop := func(target string) string {
		return fmt.Sprintf(`(async () => {
			const picture = document.querySelector(".picture img");
			const file = new File([await (await fetch(picture.src)).blob()], "a.png", {type: "image/png"});
			const transfer = new DataTransfer();
			transfer.items.add(file);
			document.querySelector(%q).dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
		})()`, target)
	}
	b.run(chromedp.Evaluate[chromedp.Void](drop("#gallery")))
	b.wait(filled)
	b.run(chromedp.Evaluate[chromedp.Void](drop("#start legend")))
	b.wait(`document.querySelector("#start .chosen img")?.alt === "a.png"`)
	other := filepath.Join(t.TempDir(), "notes.png")
	if err := os.WriteFile(other, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.SetUploadFiles("#read", []string{other}))
	b.wait(`document.getElementById("error").textContent.startsWith("notes.png: not a PNG")`)
}

func TestKeyboardAndPhone(t *testing.T) {
	b := open(t)
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Focus("#prompt"), chromedp.KeyEvent("a cat"))
	for range 40 {
		if b.text("document.activeElement.id") == "generate" {
			break
		}
		b.run(chromedp.KeyEvent(kb.Tab))
	}
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelectorAll(".picture").length === 1`)
	if got := b.text("document.scrollingElement.scrollWidth"); got != "390" {
		t.Errorf("the page is %s pixels wide on a phone of 390", got)
	}
	b.run(chromedp.Focus("#prompt"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.wait(`document.querySelectorAll(".picture").length === 2`)
}

func TestAccessibility(t *testing.T) {
	file := os.Getenv(envAxe)
	if file == "" {
		t.Skipf("%s is not set to the file axe.min.js of the npm package axe-core", envAxe)
	}
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t)
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.Click("#add-lora"), chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".picture").length === 1`)
	b.run(chromedp.SendKeys("#steps", "1000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	for _, scheme := range []string{"light", "dark"} {
		b.run(emulateScheme(scheme))
		found := evaluate[[]string](b, string(script)+`;
			axe.run().then(r => r.violations.map(v => v.impact + ": " + v.id + ": " + v.nodes.map(n => n.html).join(" ")))`)
		for _, f := range found {
			t.Errorf("%s: %s", scheme, f)
		}
	}
}

// emulateScheme returns an action that prefers light or dark colours.
func emulateScheme(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}
