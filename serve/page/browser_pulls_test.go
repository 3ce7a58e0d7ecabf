package page_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/serve"
	"github.com/gomflux/gomflux/serve/pulls"
)

// A fakeHub has a model that can be downloaded, and sends half of it until release is called.
type fakeHub struct {
	*testing.T
	*hubtest.Hub
	release func()
}

func newHub(t *testing.T) *fakeHub {
	h := hubtest.New(t, "me/mine", map[string][]byte{
		"model_index.json":                        []byte(`{"_class_name": "Test", "vae": ["diffusers", "AutoencoderKL"]}`),
		"vae/config.json":                         []byte(`{}`),
		"vae/diffusion_pytorch_model.safetensors": make([]byte, 2<<20),
	})
	cache := t.TempDir()
	for name, value := range map[string]string{"HF_HUB_CACHE": cache, "HF_HOME": cache, "HF_TOKEN": "", "HF_ENDPOINT": h.URL} {
		t.Setenv(name, value)
	}
	release, _ := h.Hold()
	return &fakeHub{t, h, release}
}

func (h *fakeHub) models() []pulls.Model {
	return []pulls.Model{
		{
			Name: "missing", Repo: "me/mine", Licence: family.Licence{
				Name: "Own Non-Commercial License", URL: "https://example.org/licence",
				Commercial: family.CommercialForbidden, Terms: "no commercial use",
			},
			Gated: true, Access: "accept its conditions at https://example.org/", Command: "gomflux pull missing",
		},
		{Name: "other", Repo: "me/other", Licence: family.Licence{Name: "MIT"}, Command: "gomflux pull other"},
	}
}

func (h *fakeHub) puller(refusal string) *pulls.Puller {
	return pulls.New(pulls.Config{
		Models: h.models, Client: hub.NewClient, Refusal: refusal,
		Warnings: func(*hub.Plan) []string { return []string{"It is too large for this machine."} },
	})
}

// TestPull downloads a model: it is canceled, resumed with the keyboard, and found after a reload.
func TestPull(t *testing.T) {
	h := newHub(t)
	b := open(t, func(c *serve.Config) { c.Pulls = h.puller("") })
	b.run(chromedp.SetValue("#model", "missing"), changed("#model"), chromedp.WaitVisible("#download-models"))
	b.run(chromedp.Click("#download-models"), chromedp.WaitVisible("#models"))
	b.wait(`document.activeElement.getAttribute("aria-label") === "Download missing"`)
	row := func(n int, part string) string {
		return fmt.Sprintf(`document.querySelector(".pullable:nth-child(%d) %s").textContent`, n, part)
	}
	b.wait(row(1, ".size") + ` === "Size: 2.1 MB"`)
	for part, want := range map[string]string{
		"h3": "missing", ".licence": "Licence: Own Non-Commercial License", ".terms": "No commercial use.",
		".access": "Gated: accept its conditions at https://example.org/.", ".warnings": "It is too large for this machine.",
	} {
		if got := b.text(row(1, part)); got != want {
			t.Errorf("%s is %q, expected %q", part, got, want)
		}
	}
	if got := b.text(`document.querySelector(".licence").href`); got != "https://example.org/licence" {
		t.Errorf("the licence is at %s", got)
	}
	b.wait(row(2, ".size") + ` === "Size: unknown"`)
	b.wait(row(2, ".error") + `.includes("me/other: not available from the hub")`)

	b.run(chromedp.Click(".pullable:first-child .choose"), chromedp.WaitVisible(".pullable:first-child .begin"))
	if got := b.text(row(1, ".question")); got != "Download 2.1 MB? Own Non-Commercial License: no commercial use." {
		t.Errorf("question %q", got)
	}
	if h.Asked("store", "vae/diffusion_pytorch_model.safetensors") > 0 {
		t.Error("the download began without a question")
	}
	b.run(chromedp.Click(".pullable:first-child .begin"))
	const state = `document.querySelector("#pulls .state")?.textContent`
	b.said("Downloading missing.")
	b.wait(state + `?.startsWith("524.4 KB of 2.1 MB")`)
	if evaluate[bool](b, `document.getElementById("models").open`) {
		t.Error("the dialog is still open")
	}
	b.run(chromedp.Click("#pulls .cancel"))
	b.said("The download of missing was canceled.")
	b.wait(`!document.querySelector("#pulls .job") && !document.getElementById("no-jobs").hidden`)

	b.run(chromedp.Focus("#download-models"), chromedp.KeyEvent(kb.Enter))
	b.wait(row(1, ".size") + `?.endsWith("are here")`)
	b.wait(`document.activeElement.matches(".choose")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(`document.activeElement.matches(".begin")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.wait(state + `?.includes(" of 2.1 MB")`)
	b.run(chromedp.Reload())
	b.wait(state + `?.includes(" of 2.1 MB")`)
	h.release()
	b.said("missing is downloaded.")
	b.wait(`!document.querySelector("#pulls .job")`)
}

// TestPullRefused: a server that downloads nothing shows commands.
func TestPullRefused(t *testing.T) {
	h := newHub(t)
	b := open(t, func(c *serve.Config) { c.Pulls = h.puller("it was started with --no-pull") })
	b.run(chromedp.WaitVisible("#download-models"), chromedp.Click("#download-models"), chromedp.WaitVisible("#models"))
	b.wait(`document.getElementById("models-note").textContent.includes("it was started with --no-pull")`)
	b.wait(`document.querySelector(".pullable .size").textContent === "gomflux pull missing"`)
	if evaluate[bool](b, `[...document.querySelectorAll(".choose")].some(button => !button.hidden)`) {
		t.Error("there is a button for a download")
	}
	b.run(chromedp.SetValue("#prompt", "x"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(kb.ModifierCtrl)))
	b.run(chromedp.KeyEvent(kb.Escape))
	b.wait(`!document.getElementById("models").open && document.activeElement.id === "download-models"`)
	if h.Asked("hub", "api") > 0 {
		t.Error("the hub was asked")
	}
	if !evaluate[bool](b, `document.querySelector(".job, .picture") === null`) {
		t.Error("a key in the dialog started a job")
	}
}
