package sdapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// made are the fields of a response that clients read.
type made struct {
	Images     []string
	Parameters map[string]any
	Info       string // JSON in a string: a client fails if it is an object
}

// madeInfo are the fields of made.Info that clients read.
type madeInfo struct {
	Infotexts []string
	Seed      uint64
	AllSeeds  []uint64 `json:"all_seeds"`
	Width     int
	Height    int
	Steps     int
	CFGScale  float64 `json:"cfg_scale"`
	Sampler   string  `json:"sampler_name"`
	Model     string  `json:"sd_model_name"`
	Warnings  []string
}

// readMade checks a response: PNG files, and a text of settings for each.
func readMade(t *testing.T, r reply, images int) (made, madeInfo) {
	t.Helper()
	m := decode[made](t, r)
	var info madeInfo
	if err := json.Unmarshal([]byte(m.Info), &info); err != nil {
		t.Fatalf("info: %v: %s", err, m.Info)
	}
	if len(m.Images) != images || len(info.Infotexts) != images || len(info.AllSeeds) != images {
		t.Fatalf("%d images, %d infotexts and %d seeds, expected %d", len(m.Images), len(info.Infotexts), len(info.AllSeeds), images)
	}
	for _, img := range m.Images {
		data, err := base64.StdEncoding.DecodeString(img)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(data)); err != nil {
			t.Error(err)
		}
	}
	return m, info
}

// A step is a request of a client, and what it reads of the response.
type step struct {
	method, path, body string
	read               func(t *testing.T, r reply)
}

// names reads a member of each element of an array.
func names(member string, expected ...string) func(t *testing.T, r reply) {
	return func(t *testing.T, r reply) {
		t.Helper()
		found := []string{}
		for _, item := range decode[[]map[string]any](t, r) {
			name, ok := item[member].(string)
			if !ok {
				t.Errorf("%s: expected a string, found %v", member, item[member])
			}
			found = append(found, name)
		}
		if !slices.Equal(found, expected) {
			t.Errorf("%s: found %q, expected %q", member, found, expected)
		}
	}
}

// checkpoint reads the chosen model from the options.
func checkpoint(expected string) func(t *testing.T, r reply) {
	return func(t *testing.T, r reply) {
		t.Helper()
		options := decode[map[string]any](t, r)
		if options["sd_model_checkpoint"] != expected {
			t.Errorf("sd_model_checkpoint is %v, expected %s", options["sd_model_checkpoint"], expected)
		}
		if _, forge := options["forge_preset"]; forge {
			t.Error("the options are those of Forge")
		}
	}
}

func ok(t *testing.T, r reply) {
	t.Helper()
	if r.status/100 != 2 {
		t.Errorf("status %d: %s", r.status, r.body)
	}
}

// idle reads that nothing runs, which SillyTavern waits for after it has chosen a model.
func idle(t *testing.T, r reply) {
	t.Helper()
	p := decode[map[string]any](t, r)
	state := p["state"].(map[string]any)
	if p["progress"] != 0.0 || state["job_count"] != 0.0 {
		t.Errorf("busy: %s", r.body)
	}
}

// usedInfo reads the images of one request, and the settings of the first one in info.
func usedInfo(images int, model string, steps int, guidance float64, width, height int) func(t *testing.T, r reply) {
	return func(t *testing.T, r reply) {
		t.Helper()
		_, info := readMade(t, r, images)
		if info.Model != model || info.Steps != steps || info.CFGScale != guidance || info.Width != width || info.Height != height {
			t.Errorf("%+v, expected %s, %d steps, guidance %v, %dx%d", info, model, steps, guidance, width, height)
		}
	}
}

const sillyTavernBody = `{"url":"http://127.0.0.1:7860","auth":"user:secret","prompt":"a cat","negative_prompt":"ugly",
	"sampler_name":"DPM++ 2M","scheduler":"Karras","steps":20,"cfg_scale":7,"width":512,"height":768,"restore_faces":false,
	"enable_hr":false,"hr_upscaler":"Latent","hr_scale":2,"hr_additional_modules":[],"denoising_strength":0.7,
	"hr_second_pass_steps":0,"override_settings":{"CLIP_stop_at_last_layers":1},"override_settings_restore_afterwards":true,
	"clip_skip":1,"save_images":true,"send_images":true,"do_not_save_grid":false,"do_not_save_samples":false}`

// TestClients replays what clients send, and reads what they read.
func TestClients(t *testing.T) {
	clients := map[string][]step{
		"Open WebUI": {
			{"GET", "/sdapi/v1/options", "", ok}, // its test of the address
			{"GET", "/sdapi/v1/sd-models", "", names("title", "turbo", "base", "dev", "cfg", "edit")},
			{"GET", "/sdapi/v1/sd-models", "", names("model_name", "turbo", "base", "dev", "cfg", "edit")},
			{"GET", "/sdapi/v1/options", "", checkpoint("turbo")},
			{"POST", "/sdapi/v1/options", `{"sd_model_checkpoint":"base","sd_checkpoint_hash":"","sd_vae":"Automatic",
				"samples_format":"png","CLIP_stop_at_last_layers":1}`, ok},
			{"GET", "/sdapi/v1/options", "", checkpoint("base")},
			{"POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","batch_size":2,"width":512,"height":512,"steps":50}`,
				usedInfo(2, "base", 50, 4, 512, 512)},
			{"POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","batch_size":1,"width":512,"height":512,"steps":30,
				"negative_prompt":"ugly","cfg_scale":6.5,"sampler_name":"Heun","scheduler":null}`, // with its additional parameters
				usedInfo(1, "base", 30, 6.5, 512, 512)},
		},
		"SillyTavern, auto": {
			{"GET", "/sdapi/v1/options", "", ok},
			{"GET", "/sdapi/v1/upscalers", "", names("name", "None", "lanczos")},
			{"GET", "/sdapi/v1/latent-upscale-modes", "", names("name")},
			{"GET", "/sdapi/v1/sd-vae", "", names("model_name")},
			{"GET", "/sdapi/v1/sd-modules", "", names("model_name")},
			{"GET", "/sdapi/v1/samplers", "", names("name", "Euler", "Heun", "Linear")},
			{"GET", "/sdapi/v1/schedulers", "", names("name", "automatic")},
			{"GET", "/sdapi/v1/sd-models", "", names("title", "turbo", "base", "dev", "cfg", "edit")},
			{"POST", "/sdapi/v1/options", `{"sd_model_checkpoint":"turbo"}`, ok},
			{"GET", "/sdapi/v1/progress", "", idle},
			{"GET", "/sdapi/v1/options", "", checkpoint("turbo")},
			{"POST", "/sdapi/v1/txt2img", sillyTavernBody, usedInfo(1, "turbo", 8, 0, 512, 768)},
			{"POST", "/sdapi/v1/interrupt", "", ok},
		},
		"SillyTavern, sdcpp": {
			{"POST", "/sdapi/v1/txt2img", `{"model":"base","prompt":"a cat","negative_prompt":"ugly","width":512,"height":512,
				"steps":20,"cfg_scale":7,"seed":-1,"batch_size":1,"sampler_name":"euler_a","scheduler":"discrete"}`,
				usedInfo(1, "base", 20, 7, 512, 512)},
		},
		"SillyTavern, Draw Things": {
			{"HEAD", "/", "", ok},
			{"GET", "/", "", func(t *testing.T, r reply) {
				if settings := decode[map[string]any](t, r); settings["model"] != "turbo" {
					t.Errorf("settings %v", settings)
				}
			}},
			{"POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","negative_prompt":"","sampler_name":"UniPC","steps":20,"cfg_scale":7,
				"width":512,"height":512,"restore_faces":false,"enable_hr":false,"denoising_strength":0.7,
				"upscaler":{"scale":2,"name":"None"}}`, usedInfo(1, "turbo", 8, 0, 512, 512)},
		},
		"LibreChat": {
			{"POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","negative_prompt":"ugly","cfg_scale":4.5,"steps":22,"width":1024,
				"height":1024}`, func(t *testing.T, r reply) {
				_, info := readMade(t, r, 1)
				lines := strings.Split(info.Infotexts[0], "\n")
				if last := lines[len(lines)-1]; !strings.HasPrefix(last, "Steps: 8, ") || info.Width != 1024 || info.Height != 1024 {
					t.Errorf("%q and %+v", last, info)
				}
				if lines[0] != "a cat" || lines[1] != "Negative prompt: ugly" {
					t.Errorf("prompts are %q", lines)
				}
			}},
		},
	}
	for name, steps := range clients {
		t.Run(name, func(t *testing.T) {
			_, s := serve(t, &fakeEngine{}, api.Config{})
			for _, step := range steps {
				step.read(t, call(t, s, step.method, step.path, step.body))
				if t.Failed() {
					t.Fatalf("at %s %s", step.method, step.path)
				}
			}
		})
	}
}

// TestRoot checks who gets the page at /.
func TestRoot(t *testing.T) {
	_, s := serve(t, &fakeEngine{}, api.Config{})
	for accept, page := range map[string]bool{
		"": false, "*/*": false, "application/json": false,
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
	} {
		r, _ := http.NewRequest("GET", s.URL+"/", nil)
		r.Header.Set("Accept", accept)
		got := send(t, r)
		if (string(got.body) == "<html>") != page || got.header.Get("Vary") != "Accept" {
			t.Errorf("accept %q: %s %v", accept, got.body, got.header)
		}
	}
	if got := call(t, s, "POST", "/", "{}"); got.status != http.StatusMethodNotAllowed {
		t.Errorf("POST /: status %d", got.status)
	}
}

// TestClientModels checks that a client's choice is its own, and how a request overrides it.
func TestClientModels(t *testing.T) {
	e := &fakeEngine{}
	_, s := serve(t, e, api.Config{})
	as := func(client, path, body string) reply {
		r, _ := http.NewRequest("POST", s.URL+path, strings.NewReader(body))
		r.Header.Set("X-Client", client)
		return send(t, r)
	}
	used := func(client, body, expected string) {
		t.Helper()
		as(client, "/sdapi/v1/txt2img", body)
		if got := e.last(t); got.Model != expected || got.Client != client {
			t.Errorf("%s: model %s for client %s, expected %s for %s", body, got.Model, got.Client, expected, client)
		}
	}
	ok(t, as("a", "/sdapi/v1/options", `{"sd_model_checkpoint":"BASE.safetensors [0123abcd]"}`))
	used("a", `{}`, "base")
	used("b", `{}`, "turbo")
	used("a", `{"override_settings":{"sd_model_checkpoint":"edit"}}`, "edit")
	used("a", `{}`, "base")
	used("a", `{"override_settings":{"sd_model_checkpoint":"edit"},"override_settings_restore_afterwards":false}`, "edit")
	used("a", `{}`, "edit")
	used("a", `{"model":"base"}`, "base")
	used("b", `{"model":"sd-cpp-local"}`, "turbo") // of stable-diffusion.cpp
	ok(t, as("a", "/sdapi/v1/options", `{"samples_format":"webp","sd_model_checkpoint":null}`))
	used("a", `{}`, "edit")
}

// TestBoundedClients checks that the memory for choices is bounded.
func TestBoundedClients(t *testing.T) {
	h := New(&fakeEngine{}, api.Config{})
	for i := range 2 * maxClients {
		if err := h.choose(strings.Repeat("x", i), "base"); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.chosen); n != maxClients {
		t.Errorf("%d choices are kept, expected %d", n, maxClients)
	}
	if m, _ := h.current(strings.Repeat("x", 2*maxClients-1)); m.Name != "base" {
		t.Errorf("the newest choice is %s", m.Name)
	}
}

type noModels struct{ api.Engine }

func (noModels) Models() []engine.ModelInfo { return nil }

// TestNoModels checks a server without models.
func TestNoModels(t *testing.T) {
	h := New(noModels{}, api.Config{})
	_, err := h.generate(t.Context(), &fields{}, false)
	if err == nil || api.Status(err) != http.StatusNotFound {
		t.Errorf("found %v", err)
	}
	h.options(&http.Request{}) // does not panic
}
