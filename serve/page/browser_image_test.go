package page_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve"
)

const loaded = `[...document.querySelectorAll("#gallery img")].every(i => i.complete && i.naturalWidth > 0)`

func TestMake(t *testing.T) {
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "a <b>lighthouse</b>"), chromedp.SendKeys("#seed", "7"), chromedp.SendKeys("#steps", "30"),
		chromedp.SetValue("#count", "2"), chromedp.SendKeys("#prompt", kb.Enter))
	b.run(chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")?.naturalWidth === 8`)
	if got := b.text(`document.querySelector(".job .preview").getBoundingClientRect().width`); got != "64" {
		t.Errorf("the preview is %s pixels wide, expected those of the image", got)
	}
	b.wait(`document.querySelector(".job .state").textContent.includes("Image 2 of 2, step")`)
	b.said("Generating image 2 of 2.")
	b.pictures(2)
	b.said("Image 2 of 2 is finished.")
	b.run(chromedp.ScrollIntoView(".picture"))
	b.wait(loaded)
	if got := b.text(`document.querySelector(".picture .prompt").textContent`); got != "a <b>lighthouse</b>\n" {
		t.Errorf("prompt %q", got)
	}
	if got := b.text(`document.getElementById("gallery-size").textContent`); !strings.HasPrefix(got, "2 images") {
		t.Errorf("size %q", got)
	}
	// what another program generates appears when people come back to the page
	answer, err := http.Post(b.url+"/v1/images/generations", "application/json", strings.NewReader(`{"prompt":"elsewhere"}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	b.until("the third image", func() bool { // which is stored just after the answer
		b.text(`document.dispatchEvent(new Event("visibilitychange"))`)
		return evaluate[bool](b, `document.querySelectorAll(".picture").length === 3`)
	})
	if got := b.text(`document.querySelector(".picture .prompt").textContent`); got != "elsewhere" {
		t.Errorf("the newest image is %q", got)
	}
}

// TestGallery uses what the buttons below an image do.
func TestGallery(t *testing.T) {
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.SendKeys("#seed", "7"), chromedp.SetValue("#count", "2"),
		chromedp.Click("#generate"))
	b.pictures(2)
	b.run(chromedp.Reload()) // the gallery survives it
	b.pictures(2)
	b.run(chromedp.Click(".picture .use"))
	if got := b.text(`document.getElementById("seed").value`); got != "8" {
		t.Errorf("the newest image has the seed %s", got)
	}
	b.run(chromedp.Click(".picture .start"))
	b.wait(`document.querySelector("#start .chosen img")?.naturalWidth === 64`)
	b.run(chromedp.Click("#generate"))
	b.pictures(3)
	if o := b.model.last(); o.Image == nil || o.ImageStrength != 0.4 || *o.Seed != 8 {
		t.Errorf("options %+v", o)
	}

	folder := t.TempDir()
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, cdpbrowser.SetDownloadBehavior, cdpbrowser.SetDownloadBehaviorParams{
			Behavior: cdpbrowser.SetDownloadBehaviorBehaviorAllow, DownloadPath: folder,
		})
		return err
	}), chromedp.Click(".picture .download"))
	var found *picture.Found
	b.until("the file is downloaded", func() bool {
		f, err := os.Open(filepath.Join(folder, "a-cat-8.png"))
		if err != nil {
			return false
		}
		defer f.Close()
		found, err = picture.ReadSettings(f)
		return err == nil
	})
	if s := found.Settings; s.Prompt != "a cat" || s.Seed != 8 || s.Image == nil {
		t.Errorf("settings in the downloaded file: %+v", s)
	}

	b.text(`window.confirm = () => true`)
	b.run(chromedp.Click(".picture .delete"))
	b.said("The image was deleted.")
	b.pictures(2)
	b.wait(`document.getElementById("gallery-size").textContent.startsWith("2 images")`)
	if !evaluate[bool](b, `document.activeElement.matches(".picture .delete")`) {
		t.Error("the focus is lost")
	}
}

func TestReloadAndCancel(t *testing.T) {
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "slow"), chromedp.SendKeys("#steps", "20000"), chromedp.Click("#generate"))
	b.wait(`document.querySelector(".job .preview:not([hidden])")`)
	b.run(chromedp.Reload())
	b.wait(`document.querySelector(".job .preview:not([hidden])")?.naturalWidth === 8`)
	b.run(chromedp.Click(".job .cancel"))
	b.wait(`!document.querySelector(".job")`)
	b.said("The job was canceled.")
	if b.text("document.activeElement.id") != "generate" {
		t.Error("the focus is lost")
	}
	b.run(chromedp.SetValue("#prompt", "x"), chromedp.SetValue("#width", "100000"), chromedp.Click("#generate"))
	b.wait(`document.getElementById("error").textContent.includes("expected at most")`)
}

// TestManyJobs starts more jobs than a browser has connections to a host. The page still answers.
func TestManyJobs(t *testing.T) {
	b := open(t, nil)
	b.run(chromedp.SendKeys("#prompt", "slow"), chromedp.SendKeys("#steps", "20000"), chromedp.Click("#generate"))
	b.wait(`document.querySelectorAll(".job").length === 1`)
	b.run(chromedp.SetValue("#steps", "2"))
	for n := 2; n <= 10; n++ {
		b.run(chromedp.Click("#generate"))
		b.wait(`document.querySelectorAll(".job").length === ` + strconv.Itoa(n))
	}
	b.wait(`document.querySelector(".job:last-child .state").textContent === "Waiting, 9 before it in the queue"`)
	b.run(chromedp.Click(".job:last-child .cancel"))
	b.wait(`document.querySelectorAll(".job").length === 9`)
	b.run(chromedp.Click(".job:first-child .cancel"))
	b.pictures(8)
	b.run(chromedp.ScrollIntoView(".picture:last-child"))
	b.wait(loaded)
}

// TestLogin opens the page of a server with tokens.
func TestLogin(t *testing.T) {
	const token = "0123456789abcdef"
	b := start(t, func(c *serve.Config) { c.Tokens = []serve.Token{{Name: "ann", Secret: token}} })
	b.run(chromedp.Navigate(b.url), chromedp.WaitVisible("#token"))
	if got := b.text("location.pathname"); got != "/login" {
		t.Errorf("the page is %s", got)
	}
	b.run(chromedp.SendKeys("#token", "wrong"+kb.Enter))
	b.wait(`document.querySelector("[role=alert]")?.textContent === "The token is wrong."`)
	b.run(chromedp.SendKeys("#token", token+kb.Enter))
	b.wait(`location.pathname === "/" && document.getElementById("model")?.value === "shapes"`)
	if got := b.text("document.cookie"); got != "" {
		t.Errorf("scripts see the cookie %q", got)
	}
	b.run(chromedp.SendKeys("#prompt", "a cat"), chromedp.Click("#generate"))
	b.pictures(1)
	// a session that has ended leads to the login again
	b.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.ClearBrowserCookies, cdp.Empty{})
		return err
	}), chromedp.Click("#generate"), chromedp.WaitVisible("#token"))
}
