package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/engine"
)

// second opens the page in another tab.
func (b *browser) second() *browser {
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.Cleanup(cancel)
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[string](`""`)); err != nil { // the first context is that of the tab
		b.Fatal(err)
	}
	tab := *b
	tab.ctx = ctx
	tab.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	tab.wait(`document.getElementById("model").value !== ""`)
	return &tab
}

// emptied returns an action that empties a field, as SetValue does not.
func (b *browser) emptied(id string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.getElementById(%q).value = ""`, id))
}

// elsewhere generates an image with another API.
func (b *browser) elsewhere(prompt string) {
	b.Helper()
	body, err := json.Marshal(map[string]string{"prompt": prompt})
	if err != nil {
		b.Fatal(err)
	}
	answer, err := http.Post(b.url+"/v1/images/generations", "application/json", strings.NewReader(string(body)))
	if err != nil {
		b.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		b.Fatal(answer.Status)
	}
}

// TestFormStays reloads a form that was not sent, and opens it in a second tab.
func TestFormStays(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.run(chromedp.SetValue("#model", "several"), changed("#model"), chromedp.SendKeys("#prompt", "not sent"),
		chromedp.SendKeys("#seed", "18446744073709551615"), chromedp.Click("#add-lora"), chromedp.SetValue(".lora select", "owner/style"),
		chromedp.SetValue(".lora input", "0.4"))
	b.drop("#start", b.file("one.png", nil))
	b.drop("#references", b.file("two.png", nil), b.file("three.png", nil))
	b.wait(`document.querySelectorAll(".chosen img").length === 3`)
	b.paint(image.Pt(48, 32))
	b.run(chromedp.Click("#paint-all"), chromedp.Click("#painter-done"))
	b.wait(`document.querySelectorAll("#mask .chosen img").length === 1`)
	check := func(b *browser, prompt string) {
		t.Helper()
		b.wait(`document.querySelectorAll("#references .chosen img").length === 2 && document.querySelector("#mask .chosen img")`)
		for id, value := range map[string]string{"prompt": prompt, "model": "several", "seed": "18446744073709551615"} {
			b.field(id, value)
		}
		if got := b.text(`[...document.querySelectorAll(".lora select, .lora input")].map(f => f.value)`); got != "owner/style,0.4" {
			t.Errorf("LoRA %s", got)
		}
	}
	b.run(chromedp.Reload())
	check(b, "not sent")
	tab := b.second()
	check(tab, "not sent")
	tab.run(chromedp.SetValue("#prompt", "of the second tab"))
	b.run(chromedp.Reload()) // each tab has its own
	tab.run(chromedp.Reload())
	check(b, "not sent")
	check(tab, "of the second tab")
	b.run(chromedp.Click("#empty"), chromedp.Reload())
	b.wait(`document.getElementById("model").value === "shapes" && document.getElementById("prompt").value === ""`)
	if got := b.text(`document.querySelectorAll(".lora, .chosen img").length`); got != "0" {
		t.Errorf("%s LoRAs and images after a reset", got)
	}
}

// TestTabs shows jobs of one tab, and of other programs, in all tabs, with their prompts and images.
func TestTabs(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	tab := b.second()
	b.run(chromedp.SendKeys("#prompt", "a slow cat"), chromedp.SetValue("#steps", "20000"), chromedp.Click("#generate"))
	for _, each := range []*browser{b, tab} {
		each.wait(`document.querySelector(".job .prompt")?.textContent === "a slow cat"`)
		each.wait(`document.querySelector(".job .preview:not([hidden])")?.naturalWidth === 8`)
		each.wait(`/^\d+ % · gomflux$/.test(document.title)`)
		each.wait(`document.querySelector("#now img:not([hidden])") && document.querySelector("#now p").textContent.includes("step")`)
	}
	tab.run(chromedp.Reload())
	tab.wait(`document.querySelector(".job .prompt")?.textContent === "a slow cat"`)
	tab.run(chromedp.Click(".job .cancel"))
	b.wait(`!document.querySelector(".job") && document.title === "gomflux" && document.getElementById("now").hidden`)
	b.elsewhere("elsewhere")
	for _, each := range []*browser{b, tab} {
		each.pictures(1)
		each.wait(`document.querySelector(".picture .prompt").textContent === "elsewhere"`)
	}
}

// TestOffline loses the server and finds it again.
func TestOffline(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	target, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			panic(http.ErrAbortHandler)
		}
		r.Header.Del("Origin") // that of the front
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		down.Store(true) // for streams that are open
		front.CloseClientConnections()
		front.Close()
	})
	direct := b.url
	b.url, b.unreachable = front.URL, true
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	b.wait(`document.getElementById("model").value !== ""`)
	b.run(chromedp.SendKeys("#prompt", "while away"), chromedp.SetValue("#steps", "30"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	down.Store(true)
	front.CloseClientConnections()
	b.wait(`!document.getElementById("offline").hidden`)
	b.run(chromedp.SetValue("#prompt", "typed while away"), chromedp.Click("#generate"))
	b.wait(`document.getElementById("error").textContent === "the server does not answer"`)
	(&browser{T: t, url: direct}).elsewhere("of another program") // after the first job
	down.Store(false)
	b.wait(`document.getElementById("offline").hidden && document.getElementById("error").hidden`)
	b.pictures(2)
	b.field("prompt", "typed while away")
	b.run(chromedp.SetValue("#steps", "1"), chromedp.Click("#generate"))
	b.pictures(3)
}

// TestGrid makes a grid, loads the page again, downloads it as an image, and cancels another one.
func TestGrid(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *serve.Config) {
		model := &model{}
		c.Engine = engine.New(engine.Config{Open: opens(model), Models: models, Queue: 2, KeepAlive: -1, Keep: 60e9})
	})
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.Click("#grid-options summary"),
		chromedp.SetValue("#grid-x", "steps"), chromedp.SendKeys("#grid-x-values", "5, 6 7"),
		chromedp.SetValue("#grid-y", "prompt"), chromedp.SendKeys("#grid-y-values", "a fox"+kb.Enter+"a dog that runs"),
		chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".grid .preview:not([hidden])").length >= 2`)
	b.run(chromedp.Reload())
	b.wait(`document.querySelector(".grid .title")?.textContent === "Grid: 6 of 6 images"`)
	b.wait(`document.querySelectorAll(".picture").length === 6`)
	got := b.text(`[...document.querySelectorAll(".grid th")].map(th => th.textContent)`)
	if got != "steps 5,steps 6,steps 7,a fox,a dog that runs" {
		t.Errorf("labels %s", got)
	}
	if got := b.text(`document.querySelectorAll(".job").length`); got != "0" {
		t.Errorf("%s jobs are listed", got)
	}
	// the images of a grid differ only by its values
	prompts := b.text(`new Set([...document.querySelectorAll(".picture dl")].map(dl => /seed(\d+)/.exec(dl.textContent)[1])).size`)
	if prompts != "1" {
		t.Errorf("%s seeds", prompts)
	}
	folder := t.TempDir()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{
			Behavior: cdpbrowser.SetDownloadBehaviorBehaviorAllow, DownloadPath: folder,
		})
		return err
	}), chromedp.Click(".grid .save"))
	b.until("the grid is downloaded", func() bool {
		f, err := os.Open(filepath.Join(folder, "grid-3x2.png"))
		if err != nil {
			return false
		}
		defer f.Close()
		img, err := png.Decode(f)
		return err == nil && img.Bounds().Dx() > 3*64 && img.Bounds().Dy() > 2*64
	})
	b.run(chromedp.Click(".grid .close"), chromedp.Reload())
	b.wait(`document.querySelectorAll(".picture").length === 6 && !document.querySelector(".grid")`)

	for _, c := range []struct{ x, values, problem string }{
		{"seed", "1-65", "65 times 1 images, expected at most 64"},
		{"steps", "4, x", "“x” is not a whole number"},
		{"guidance", "1-4", "“1-4” is not a number"},
		{"seed", " ", "the columns have no values"},
		{"prompt", "a", "columns and rows have the same setting"},
	} {
		b.run(chromedp.SetValue("#grid-x", c.x), chromedp.SetValue("#grid-x-values", c.values), b.emptied("grid-y"))
		if c.x == "prompt" {
			b.run(chromedp.SetValue("#grid-y", "prompt"))
		}
		b.run(chromedp.Click("#generate"))
		b.wait(fmt.Sprintf(`document.getElementById("error").textContent.includes(%q)`, c.problem))
	}
	b.run(chromedp.SetValue("#grid-x", "seed"), chromedp.SetValue("#grid-x-values", "18446744073709551611-18446744073709551615"),
		b.emptied("grid-y"), chromedp.SetValue("#steps", "20000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".grid .preview:not([hidden])")`)
	b.run(chromedp.Click(".grid .cancel"))
	b.wait(`document.querySelector(".grid .title").textContent === "Grid: 0 of 5 images" && document.querySelector(".grid .cancel").hidden`)
	b.run(b.emptied("grid-x"), chromedp.SetValue("#steps", "1"), chromedp.Click("#generate"))
	b.pictures(7) // nothing else waits

	// a job ends before the answer that it was sent
	b.text(`window.fetch = (send => async (...call) => {
		const answer = await send(...call);
		if (call[1]?.method === "POST") await new Promise(resolve => { setTimeout(resolve, 500); });
		return answer;
	})(window.fetch)`)
	b.run(chromedp.SetValue("#grid-x", "seed"), chromedp.SetValue("#grid-x-values", "1"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".grid .title").textContent === "Grid: 1 of 1 images" && document.querySelector(".grid .cancel").hidden`)
}

// TestPresetsAndHistory saves, uses and deletes presets and prompts.
func TestPresetsAndHistory(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.text(`window.confirm = () => true`)
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.SendKeys("#steps", "3"), chromedp.SetValue("#count", "2"),
		chromedp.SetValue("#model", "one"), changed("#model"), chromedp.Click("#open-presets"), chromedp.WaitVisible("#preset-name"))
	b.wait(`!document.getElementById("no-presets").hidden`)
	b.run(chromedp.SendKeys("#preset-name", "two/fast"+kb.Enter))
	b.wait(`document.querySelector("#preset-list button")?.textContent === "two/fast"`)
	b.run(chromedp.Click("#close-presets"), chromedp.Click("#empty"), chromedp.SendKeys("#prompt", "a dog"))
	tab := b.second()
	tab.run(chromedp.SetValue("#prompt", "a dog"), chromedp.Click("#open-presets"), chromedp.Click("#preset-list button"))
	tab.said("Preset two/fast filled in.")
	for id, value := range map[string]string{"prompt": "a dog", "steps": "3", "count": "2", "model": "one"} {
		tab.field(id, value)
	}
	b.run(chromedp.Click("#generate"))
	b.pictures(1)
	b.run(b.emptied("prompt"), chromedp.Click("#generate")) // an empty prompt is one
	b.pictures(2)
	b.run(chromedp.SetValue("#prompt", "a fox"), chromedp.Click("#generate"))
	b.pictures(3)
	b.run(chromedp.Click("#open-history"), chromedp.WaitVisible("#prompts"))
	const prompts = `[...document.querySelectorAll("#prompts li")].map(li => li.firstChild.textContent)`
	if got := b.text(prompts); got != "a fox,a dog" {
		t.Errorf("history %s", got)
	}
	b.run(chromedp.Click("#prompts li:last-child button"))
	b.field("prompt", "a dog")
	b.wait(`document.activeElement.id === "prompt"`)
	b.run(chromedp.Click("#open-history"), chromedp.Click("#prompts li:first-child button:last-child"))
	if got := b.text(prompts); got != "a dog" {
		t.Errorf("history %s after deleting", got)
	}
	b.run(chromedp.KeyEvent(kb.Escape), chromedp.Click("#open-presets"), chromedp.Click("#preset-list button:last-child"))
	b.wait(`document.querySelectorAll("#preset-list li").length === 0 && document.activeElement.id === "preset-name"`)
}

// TestSizesAndModels chooses a size by its ratio, and reads what the page says of models.
func TestSizesAndModels(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *serve.Config) {
		large, small := models()[0], models()[1]
		large.Defaults.Width, large.Defaults.Height, large.SizeMultiple = 1024, 1024, 16
		large.Bytes, large.Peak, large.Free = 12e9, 20e9, 16e9
		small.Defaults.Width, small.Defaults.Height, small.SizeMultiple = 512, 512, 64
		small.Peak, small.Free = 2e9, 16e9
		c.MaxPixels = 1 << 20
		c.LoRAs = nil
		list := func() []engine.ModelInfo { return []engine.ModelInfo{large, small} }
		c.Engine = engine.New(engine.Config{Open: opens(&model{}), Models: list})
	})
	size := func(ratio, width, height string) {
		t.Helper()
		b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.getElementById("ratio").value = %q`, ratio)), changed("#ratio"))
		b.field("width", width)
		b.field("height", height)
	}
	size("1:1", "1024", "1024")
	size("3:2", "1248", "832")
	b.run(chromedp.Click("#swap"))
	b.field("width", "832")
	b.field("height", "1248")
	b.field("ratio", "2:3")
	size("16:9", "1360", "768")
	size("4:3", "1152", "864")
	b.run(chromedp.SetValue("#width", "100"), chromedp.SendKeys("#width", "0"))
	b.field("ratio", "own")
	size("", "", "")
	const note = `document.getElementById("model-note").textContent`
	if got := b.text(note); got != "12.0 GB on the disk. Needs about 20.0 GB of memory, 16.0 GB are available: too little. Licence: MIT." {
		t.Errorf("note %q", got)
	}
	if got := b.text(`document.querySelector("#model option").textContent`); got != "shapes (too large for the memory)" {
		t.Errorf("option %q", got)
	}
	b.run(chromedp.SetValue("#model", "one"), changed("#model"))
	if got := b.text(note); got != "Needs about 2.0 GB of memory, 16.0 GB are available." {
		t.Errorf("note %q", got)
	}
	size("16:9", "576", "320")
	if !evaluate[bool](b, `document.getElementById("add-lora").disabled && !document.getElementById("no-loras").hidden`) {
		t.Error("a LoRA can be added to an empty list")
	}
}

// TestGenerateStaysInView scrolls the form and the gallery on a laptop.
func TestGenerateStaysInView(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	b.run(chromedp.SetValue("#steps", "1"), chromedp.SetValue("#count", "12"), chromedp.Click("#generate"))
	b.pictures(12)
	const seen = `(() => {
		const r = document.getElementById("generate").getBoundingClientRect();
		const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
		return r.top >= 0 && r.bottom <= innerHeight && top?.id === "generate";
	})()`
	for _, size := range []chromedp.Action[chromedp.Void]{chromedp.EmulateViewport(1280, 720), phone()} {
		b.run(size)
		b.text(`scrollTo(0, 0)`)
		b.wait(seen)
		b.run(chromedp.ScrollIntoView("#references + .buttons, #grid-options"))
		b.wait(seen)
	}
	b.run(chromedp.EmulateViewport(1280, 720), chromedp.ScrollIntoView(".picture:last-child"))
	b.wait("scrollY > 500")
	b.wait(seen)
	b.run(chromedp.SetValue("#steps", "20000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector("#now img:not([hidden])")?.getBoundingClientRect().bottom <= innerHeight`)
	b.wait(`!document.getElementById("generate").disabled`) // it takes the focus when the job was sent
	b.run(chromedp.Focus("#grid-options summary"))
	// what has the focus is not below the bar
	b.tab(kb.Tab, `document.activeElement.id === "read"`)
	const side = ".getBoundingClientRect()"
	b.wait("document.activeElement.parentElement" + side + `.bottom <= document.getElementById("actions")` + side + ".top")
}
