package page_test

import (
	"context"
	"fmt"
	"image"
	"os"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/serve"
)

// envAxe is the file axe.min.js of the npm package axe-core, for TestAccessibility.
const envAxe = "GOMFLUX_TEST_AXE"

// phone is the size of a small phone.
func phone() chromedp.Action[chromedp.Void] {
	return chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile)
}

// tab presses a key until a condition is true.
func (b *browser) tab(key, condition string) {
	b.Helper()
	for range 100 {
		if evaluate[bool](b, "!!("+condition+")") {
			return
		}
		b.run(chromedp.KeyEvent(key))
	}
	b.Fatalf("the key %q does not lead to %s but to %s", key, condition, b.text("document.activeElement.outerHTML"))
}

// TestKeyboard makes, uses and deletes an image with the keyboard alone, on a phone.
func TestKeyboard(t *testing.T) {
	b := open(t, nil)
	b.run(phone())
	b.tab(kb.Tab, `document.activeElement.id === "prompt"`)
	b.run(chromedp.KeyEvent("a cat"))
	b.tab(kb.Tab, `document.activeElement.id === "seed"`)
	b.run(chromedp.KeyEvent("7"))
	b.tab(kb.Tab, `document.activeElement.id === "generate"`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.pictures(1)
	if got := b.text("document.scrollingElement.scrollWidth"); got != "390" {
		t.Errorf("the page is %s pixels wide on a phone of 390", got)
	}
	if got := b.text("document.activeElement.id"); got != "generate" {
		t.Errorf("the focus is on %q", got)
	}
	b.run(chromedp.Focus("#prompt"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.pictures(2)
	b.tab(kb.Tab, `document.activeElement.matches("summary")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.querySelector(".picture details").open`)
	b.tab(kb.Tab, `document.activeElement.matches(".use")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.activeElement.id === "prompt"`)
	b.tab(kb.Tab, `document.activeElement.matches(".picture .start")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.activeElement.closest("#start") && document.querySelector("#start .chosen img")`)
	b.text(`window.confirm = () => true`)
	b.tab(kb.Tab, `document.activeElement.matches(".picture .delete")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.pictures(1)
	// a running job is canceled
	b.run(chromedp.Focus("#prompt"))
	b.tab(kb.Tab, `document.activeElement.id === "steps"`)
	b.run(chromedp.KeyEvent("20000"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	b.tab(kb.Tab, `document.activeElement.matches(".cancel")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.said("The job was canceled.")
	b.wait(`document.activeElement.id === "generate"`)
}

// TestAccessibility checks each state of the page, in both colour schemes and two widths.
func TestAccessibility(t *testing.T) {
	file := os.Getenv(envAxe)
	if file == "" {
		t.Skipf("%s is not set to the file axe.min.js of the npm package axe-core", envAxe)
	}
	axe, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const token = "0123456789abcdef"
	hub := newHub(t)
	b := start(t, func(c *serve.Config) { c.Tokens, c.Pulls = []serve.Token{{Name: "ann", Secret: token}}, hub.puller("") })
	check := func(state string) {
		t.Helper()
		for _, scheme := range []string{"light", "dark"} {
			for i, size := range []chromedp.Action[chromedp.Void]{phone(), chromedp.EmulateViewport(1280, 900)} {
				if testing.Short() && (i == 0) != (scheme == "light") {
					continue
				}
				b.run(emulateScheme(scheme), size)
				found := evaluate[[]string](b, string(axe)+`;
					axe.run().then(r => r.violations.map(v => v.impact + ": " + v.id + ": " + v.nodes.map(n => n.html).join(" ")))`)
				for _, f := range found {
					t.Errorf("%s, %s: %s", state, scheme, f)
				}
			}
		}
	}
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#token"))
	check("login")
	b.run(chromedp.SendKeys("#token", "wrong"+kb.Enter))
	b.wait(`document.querySelector("[role=alert]")`)
	check("a wrong token")
	b.run(chromedp.SendKeys("#token", token+kb.Enter))
	b.wait(`document.getElementById("model")?.value === "shapes"`)
	check("empty")
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.Click("#generate"))
	b.pictures(1)
	b.run(chromedp.Click(".picture summary"), chromedp.Click("#add-lora"), chromedp.SetValue("#model", "several"), changed("#model"))
	b.drop("#start", b.file("one.png", nil))
	b.drop("#references", b.file("two.png", nil), b.file("three.png", nil))
	b.wait(`document.querySelectorAll(".chosen img").length === 3`)
	b.run(chromedp.Click("#mask summary"))
	check("an image and all fields")
	b.run(chromedp.Click("#gallery .start"))
	b.wait(`document.querySelector("#start .chosen img").naturalWidth === 64`)
	b.run(chromedp.Click("#generate"))
	b.pictures(2)
	b.run(chromedp.Click("#gallery .select"), chromedp.Click("#select-all"), chromedp.Click(".picture .favourite"))
	check("selected images")
	b.run(chromedp.Click(".picture .full"), chromedp.WaitVisible("#view-sources button"))
	check("the viewer")
	b.run(chromedp.Click("#view-sources button"), chromedp.Click("#view-slide"))
	check("a comparison")
	b.run(chromedp.Click("#view-close"), chromedp.Click("#clear-selection"), chromedp.SendKeys("#search", "x"))
	b.wait(`!document.getElementById("no-match").hidden`)
	check("nothing is found")
	b.drop("#start", b.file("one.png", nil))
	v := b.paint(image.Pt(48, 32))
	check("an empty mask")
	v = b.view(v.size)
	b.mouse(v, 0.2, 0.5, 0.8, 0.5)
	b.run(chromedp.Click("#painter summary"), chromedp.Click("#clear"), chromedp.Click("#painter-done"))
	b.wait(`!document.getElementById("painter-error").hidden`)
	check("the keys and an error")
	b.run(chromedp.Click("#undo"))
	check("a mask")
	b.painted()
	b.run(chromedp.SetValue("#steps", "20000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".job").length === 2`)
	check("a running and a waiting job")
	b.run(chromedp.SetValue("#width", "100000"), chromedp.Click("#generate"))
	b.wait(`!document.getElementById("error").hidden`)
	check("an error")
	b.run(chromedp.Click("#download-models"), chromedp.WaitVisible("#models"))
	b.wait(fmt.Sprintf(`document.querySelectorAll(".pullable").length === %d`, len(hub.models())))
	b.wait(`[...document.querySelectorAll(".size")].every(s => !s.textContent.includes("not known"))`)
	check("models")
	b.run(chromedp.Click(".pullable:first-child .choose"), chromedp.WaitVisible(".pullable:first-child .begin"))
	check("before a download")
	b.run(chromedp.Click(".pullable:first-child .begin"))
	b.wait(`document.querySelector("#pulls .state")?.textContent.includes(" of ")`)
	check("a download")
	b.run(chromedp.Click("#open-describe"), chromedp.WaitVisible("#describe"), chromedp.Click("#describe-start"))
	check("a description")
	b.run(chromedp.Click("#describe-close"))
	b.text(`document.getElementById("as-typed").hidden = false`)
	b.run(chromedp.Click("#open-history"), chromedp.WaitVisible("#prompts button"))
	check("the history")
	b.run(chromedp.Click("#close-history"), chromedp.Click("#open-presets"), chromedp.SendKeys("#preset-name", "fast"+kb.Enter))
	b.wait(`document.querySelector("#preset-list button")`)
	check("presets")
	b.run(chromedp.Click("#close-presets"), b.emptied("width"), chromedp.Click("#grid-options summary"))
	b.run(chromedp.SetValue("#grid-x", "seed"), chromedp.SendKeys("#grid-x-values", "1-4"), chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".grid .state").length === 4 && !document.querySelector(".grid .cancel").hidden`)
	b.text(`document.getElementById("offline").hidden = false`)
	check("a grid and no server")
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

// Over a slow network the page loads, the form works as soon as it is seen, and progress shows.
func TestSlowNetwork(t *testing.T) {
	b := start(t, nil)
	slow := network.Conditions{Latency: 100, DownloadThroughput: 300_000, UploadThroughput: 50_000} // bytes a second
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		if _, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{}); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, target, cdp.Command[network.Conditions, cdp.Empty]{Method: "Network.emulateNetworkConditions"}, slow)
		return err
	}))
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	const fastest = `Math.min(...performance.getEntriesByType("resource").map(e => e.duration))`
	if took := evaluate[float64](b, fastest); took < slow.Latency {
		t.Errorf("a part of the page was there in %g ms: the network is not slow", took)
	}
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.SendKeys("#steps", "20"))
	b.wait(`document.getElementById("model").value !== ""`)
	if text := b.text(`document.getElementById("prompt").value`); text != "a cat" {
		t.Errorf("the prompt became %q when the page was loaded", text)
	}
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job progress")?.value > 0 && document.querySelector(".job progress").value < 1`)
	b.pictures(1)
	b.wait(`document.querySelector(".picture img").complete`)
}
