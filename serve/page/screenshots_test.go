package page_test

import (
	"context"
	"flag"
	"image"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/family"
	_ "github.com/gomflux/gomflux/models/shapes"
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/engine"
)

var screenshots = flag.String("screenshots", "", "folder for screenshots of the page, with images of the built-in model")

// largest is the largest size of a screenshot in bytes, since it is in the repository.
const largest = 150_000

// TestScreenshots writes the images of docs/serve.md.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots is not set")
	}
	var model *gomflux.Model
	b := start(t, func(c *serve.Config) {
		c.Engine = engine.New(engine.Config{
			Open: func(ctx context.Context, name string, _ []gomflux.LoRA, progress func(gomflux.Progress)) (engine.Model, error) {
				return model, nil
			},
			Models: func() []engine.ModelInfo {
				return []engine.ModelInfo{{Name: "shapes", Default: true, Licence: family.Licence{Name: "MIT"}, Defaults: model.Defaults()}}
			},
			Queue: 20, KeepAlive: -1, Keep: time.Minute,
		})
		var err error
		if model, err = gomflux.Open(t.Context(), "shapes", &gomflux.OpenOptions{Device: gomflux.CPU}); err != nil {
			t.Fatal(err)
		}
	})
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#prompt"))
	b.wait(`document.getElementById("model").value === "shapes"`)
	prompts := []string{
		"a purple circle", "a yellow triangle and a blue circle", "an orange square", "a red square",
		"a blue triangle", "a red circle and a yellow square",
	}
	for i, prompt := range prompts {
		b.run(chromedp.SetValue("#prompt", prompt), chromedp.SetValue("#seed", strconv.Itoa(7+i)), chromedp.Click("#generate"))
		b.pictures(i + 1)
	}
	b.run(chromedp.SetValue("#prompt", "a green circle"), chromedp.SetValue("#seed", "42"),
		chromedp.SetValue("#steps", "100"), chromedp.Click("#generate"))
	b.wait(`Number(document.querySelector(".job .state")?.textContent.match(/step (\d+)/)?.[1]) > 50`)
	b.wait(loaded)
	b.run(emulateScheme("light"), chromedp.EmulateViewport(1440, 1000),
		chromedp.Evaluate[chromedp.Void](`scrollTo(0, 0); document.getElementById("new").scrollTo(0, 0)`))
	b.wait("scrollY === 0")
	b.screenshot("serve-page.png")
	b.run(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile, chromedp.EmulateScale(2)), emulateScheme("dark"),
		chromedp.Evaluate[chromedp.Void](`document.querySelector(".job").scrollIntoView()`))
	b.wait("scrollY > 0")
	b.screenshot("serve-page-phone.png")
	b.wait(`!document.querySelector(".job")`)
	b.run(emulateScheme("light"), chromedp.EmulateViewport(1200, 760),
		chromedp.Click(".picture:nth-child(2) .select"), chromedp.Click(".picture:nth-child(3) .select"),
		chromedp.Click("#compare"), chromedp.WaitVisible("#view-other"))
	b.wait(`["view-image", "view-other"].every(id => document.getElementById(id).complete)`)
	b.screenshot("serve-page-viewer.png")
	b.run(chromedp.Click("#view-close"), chromedp.Click("#clear-selection"))
	b.run(emulateScheme("light"), chromedp.EmulateViewport(900, 700),
		chromedp.Click(".picture:nth-child(2) .inpaint"), chromedp.WaitVisible("#painter-mask"))
	b.wait(`document.getElementById("painter-state").textContent.startsWith("0 %")`)
	b.set("brush-size", 60)
	v := b.view(image.Pt(256, 256))
	b.mouse(v, 0.55, 0.86, 0.66, 0.80)
	b.screenshot("serve-page-mask.png")
}

// screenshot writes what the browser shows.
func (b *browser) screenshot(name string) {
	b.Helper()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		found, err := cdp.Call(ctx, target, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng})
		if err != nil {
			return err
		}
		if len(found.Data) > largest {
			b.Errorf("%s has %d bytes, expected at most %d", name, len(found.Data), largest)
		}
		return os.WriteFile(filepath.Join(*screenshots, name), found.Data, 0o644)
	}))
}
