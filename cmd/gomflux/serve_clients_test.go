package main

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Environment variables of the tests with OpenAI's clients, which make clients sets.
const (
	envPython = "GOMFLUX_OPENAI_PYTHON" // a Python with openai
	envNode   = "GOMFLUX_OPENAI_NODE"   // a folder whose node_modules has openai
)

// TestServePython runs openai-python against gomflux serve.
func TestServePython(t *testing.T) {
	python := os.Getenv(envPython)
	if python == "" {
		t.Skipf("%s is not set to a Python with openai (make clients does it)", envPython)
	}
	runClient(t, "", python, "testdata/openai/client.py")
}

// TestServeNode runs openai-node against gomflux serve.
func TestServeNode(t *testing.T) {
	modules := os.Getenv(envNode)
	if modules == "" {
		t.Skipf("%s is not set to a folder with openai in node_modules (make clients does it)", envNode)
	}
	runClient(t, "", "node", "testdata/openai/client.mjs", modules)
}

// runClient starts a server, and a program with its address. The image that the program got must be
// that of gomflux generate, with a guidance scale if it is not "".
func runClient(t *testing.T, scale string, program ...string) {
	const token = "0123456789abcdef"
	dir := t.TempDir()
	tokens, in, mask := filepath.Join(dir, "tokens"), filepath.Join(dir, "in.png"), filepath.Join(dir, "mask.png")
	result := filepath.Join(dir, "result.png")
	if err := os.WriteFile(tokens, []byte("ann:"+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	img, half := image.NewRGBA(image.Rect(0, 0, 64, 64)), image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		img.Set(i%64, i/64, color.RGBA{uint8(4 * i), uint8(i / 16), 99, 255})
		if i%64 >= 32 {
			half.Set(i%64, i/64, color.White)
		}
	}
	for name, img := range map[string]image.Image{in: img, mask: half} {
		var b bytes.Buffer
		if err := png.Encode(&b, img); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server, address, stderr := startServe(t, "--model", "shapes", "--model", absolute(tinyEditor), "--model", absolute(tinySeer),
		"--max-queue", "1",
		"--token-file", tokens, "--device", "cpu")
	args := append(program[1:], address, token, in, mask, result)
	client := exec.CommandContext(t.Context(), program[0], args...)
	if out, err := client.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "all checks passed\n") {
		server.Process.Kill()
		server.Wait()
		t.Fatalf("%v:\n%s\nlog of the server:\n%s", err, out, stderr)
	}

	want := filepath.Join(dir, "want.png")
	generate := exec.CommandContext(t.Context(), "gomflux", "generate", "--model", "shapes", "--prompt", "a red circle", "--seed", "7",
		"--steps", "3", "--width", "128", "--height", "64", "--device", "cpu", "--output", want)
	generate.Env = server.Env
	if scale != "" {
		generate.Args = append(generate.Args, "--guidance", scale)
	}
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	expected, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, expected) {
		t.Error("the client's image differs from that of gomflux generate")
	}
}

// An exchange is a request of a program, and what it reads of the answer.
type exchange struct {
	method, path, body string
	reads              string // regular expression
}

// sillyTavern are the settings that SillyTavern sends with a prompt, from its sliders.
const sillyTavern = `"negative_prompt": "ugly", "sampler_name": "DPM++ 2M", "scheduler": "Karras", "steps": 2, "cfg_scale": 7,
	"width": 64, "height": 128, "seed": -1, "restore_faces": false, "enable_hr": false, "hr_upscaler": "Latent", "hr_scale": 2,
	"denoising_strength": 0.7, "clip_skip": 1, "override_settings": {"CLIP_stop_at_last_layers": 1}, "save_images": true`

// readsImage reads an image and the settings that info must have, which is JSON in a string.
const readsImage = `^{"images":\["iVBOR[^]]+"\].*"info":"{.*\\"infotexts\\":\[\\"`

// exchanges are the requests of programs in their order, with the sizes and steps of a user who is in
// a hurry. Those with a token send it as the password of Basic authentication.
var exchanges = map[string]struct {
	token bool
	list  []exchange
}{
	"Open WebUI, automatic1111": {true, []exchange{
		{"GET", "/sdapi/v1/options", "", `"sd_model_checkpoint":"shapes"`},
		{"GET", "/sdapi/v1/sd-models", "", `"model_name":"shapes".*"title":"shapes"`},
		// it sends all options back
		{"POST", "/sdapi/v1/options", "{{options}}", ``},
		{"POST", "/sdapi/v1/txt2img", `{"prompt": "a cat", "batch_size": 2, "width": 64, "height": 64, "steps": 2}`, readsImage},
	}},
	"SillyTavern, auto": {true, []exchange{
		{"GET", "/sdapi/v1/options", "", `"sd_model_checkpoint":"shapes"`},
		{"GET", "/sdapi/v1/upscalers", "", `"name":"None"`},
		{"GET", "/sdapi/v1/latent-upscale-modes", "", `^\[`},
		{"GET", "/sdapi/v1/sd-vae", "", `^\[`},
		{"GET", "/sdapi/v1/sd-modules", "", `^\[`},
		{"GET", "/sdapi/v1/samplers", "", `"name":"Euler"`},
		{"GET", "/sdapi/v1/schedulers", "", `"name":`},
		{"GET", "/sdapi/v1/sd-models", "", `"title":"shapes"`},
		{"POST", "/sdapi/v1/options", `{"sd_model_checkpoint": "shapes"}`, ``},
		{"GET", "/sdapi/v1/progress", "", `"progress":0,.*"job_count":0`},
		{"POST", "/sdapi/v1/txt2img", `{"url": "http://x/", "auth": "a:b", "prompt": "a cat", ` + sillyTavern + `}`, readsImage},
		{"POST", "/sdapi/v1/interrupt", "", ``},
	}},
	"SillyTavern, sdcpp": {false, []exchange{
		{"OPTIONS", "/v1/images/generations", "", ``},
		{"GET", "/v1/models", "", `"data":\[{"id":"shapes"`},
		{"POST", "/sdapi/v1/txt2img", `{"model": "shapes", "prompt": "a cat", "negative_prompt": "ugly", "width": 64, "height": 64,
			"steps": 2, "cfg_scale": 7, "seed": 5, "batch_size": 1, "sampler_name": "euler_a", "scheduler": "discrete"}`, readsImage},
	}},
	"SillyTavern, Draw Things": {false, []exchange{
		{"HEAD", "/", "", ``},
		{"GET", "/", "", `"model":"shapes"`},
		{"POST", "/sdapi/v1/txt2img", `{"prompt": "a cat", "upscaler": {"scale": 2, "name": "None"}, ` + sillyTavern + `}`, readsImage},
	}},
	"Draw Things' clients": {false, []exchange{
		{"GET", "/sdapi/v1/options", "", `"sd_model_checkpoint":"shapes"`},
		{"POST", "/sdapi/v1/img2img", `{"prompt": "a cat", "init_images": ["{{image}}"], "width": 64, "height": 64, "steps": 2,
			"strength": 0.5}`, readsImage},
	}},
	"LibreChat, stable diffusion": {false, []exchange{ // its sizes are larger
		{"POST", "/sdapi/v1/txt2img", `{"prompt": "a cat", "negative_prompt": "ugly", "cfg_scale": 4.5, "steps": 2, "width": 64,
			"height": 64}`, readsImage + `a cat\\\\nNegative prompt: ugly\\\\nSteps: `},
	}},
}

// TestServeExchanges sends to a server what programs send, in their order.
func TestServeExchanges(t *testing.T) {
	const token = "0123456789abcdef"
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("ann:"+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewRGBA(image.Rect(0, 0, 64, 64))); err != nil {
		t.Fatal(err)
	}
	addresses := map[bool]string{}
	_, addresses[false], _ = startServe(t, "--model", "shapes", "--no-gallery", "--device", "cpu")
	_, addresses[true], _ = startServe(t, "--model", "shapes", "--no-gallery", "--device", "cpu", "--token-file", tokens)
	for name, program := range exchanges {
		t.Run(name, func(t *testing.T) {
			options := ""
			for _, x := range program.list {
				body := strings.ReplaceAll(x.body, "{{options}}", options)
				body = strings.ReplaceAll(body, "{{image}}", base64.StdEncoding.EncodeToString(small.Bytes()))
				r, err := http.NewRequest(x.method, strings.TrimSuffix(addresses[program.token], "/")+x.path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Basic ") // of programs without a password
				if program.token {
					r.SetBasicAuth("ann", token)
				}
				if body != "" {
					r.Header.Set("Content-Type", "application/json")
				}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode/100 != 2 || !regexp.MustCompile(x.reads).Match(answer) {
					t.Fatalf("%s %s: status %d, %.600s, %v", x.method, x.path, resp.StatusCode, answer, err)
				}
				if x.path == "/sdapi/v1/options" && x.method == "GET" {
					options = string(answer)
				}
			}
		})
	}
}
