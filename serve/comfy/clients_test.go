package comfy

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
)

// plain is the graph that most clients have as their first one.
const plain = `
3 KSampler cfg=7 denoise=1 latent_image=@5 model=@4 negative=@7 positive=@6 sampler_name=euler scheduler=normal seed=7 steps=3
4 CheckpointLoaderSimple ckpt_name=shapes
5 EmptyLatentImage batch_size=2 height=64 width=128
6 CLIPTextEncode clip=@4.1 text="a red circle"
7 CLIPTextEncode clip=@4.1 text="ugly"
8 VAEDecode samples=@3 vae=@4.2
9 SaveImage filename_prefix=test/x images=@8`

// What SillyTavern's server sends: it has no client id and no content type, and asks for the history again
// and again.
func TestSillyTavern(t *testing.T) {
	s := start(t, &fakeModel{}, Config{})
	ask[any](s, 200, "GET", "/system_stats", nil)
	info := ask[map[string]struct {
		Input struct {
			Required map[string][]any `json:"required"`
		} `json:"input"`
	}](s, 200, "GET", "/object_info", nil)
	for node, in := range map[string]string{
		"KSampler sampler_name": "euler", "KSampler scheduler": "simple", "CheckpointLoaderSimple ckpt_name": "shapes",
		"VAELoader vae_name": "ae.safetensors",
	} {
		class, name, _ := strings.Cut(node, " ")
		if values, ok := info[class].Input.Required[name][0].([]any); !ok || values[0] != in {
			t.Errorf("%s: values %v", node, info[class].Input.Required[name])
		}
	}
	text, _ := json.Marshal(graph(plain))
	got := ask[submitted](s, 200, "POST", "/prompt", "{\n \"prompt\": "+string(text)+"\n}")
	var item entry
	s.wait("the history", func() bool {
		var ok bool
		item, ok = ask[map[string]entry](s, 200, "GET", "/history", nil)[got.ID]
		return ok
	})
	images := item.Outputs["9"].Images
	if item.Status.Text != "success" || !item.Status.Completed || len(images) != 2 || len(item.Outputs) != 1 || len(item.Prompt) != 5 {
		t.Fatalf("history %+v", item)
	}
	for i, img := range images {
		if img.Type != "output" || img.Subfolder != "test" || !strings.HasPrefix(img.Filename, "x_0") {
			t.Errorf("image %+v", img)
		}
		q := url.Values{"filename": {img.Filename}, "subfolder": {img.Subfolder}, "type": {img.Type}}
		file := ask[[]byte](s, 200, "GET", "/view?"+q.Encode(), nil)
		if made, err := png.Decode(bytes.NewReader(file)); err != nil || made.(*image.RGBA).Pix[0] != uint8(7+i) {
			t.Errorf("image %d: %v", i, err)
		}
	}
	ask[[]byte](s, 404, "GET", "/view?filename=../x.png", nil)
	if o := s.last(); o.Prompt != "a red circle" || o.NegativePrompt != "ugly" || o.Width != 128 || o.Height != 64 || o.Steps != 3 ||
		o.TrueCFGScale != 7 || o.Guidance != nil || o.Scheduler != gomflux.Euler {
		t.Errorf("options %+v", o)
	}
	if !slices.Equal(got.Warnings, []string{"scheduler normal was not used"}) {
		t.Errorf("warnings %q", got.Warnings)
	}
	ask[[]byte](s, 200, "POST", "/interrupt", nil) // of nothing
	ask[[]byte](s, 200, "POST", "/history", `{"delete":["`+got.ID+`"]}`)
	if left := ask[map[string]any](s, 200, "GET", "/history", nil); len(left) != 0 {
		t.Errorf("history %v after it was deleted", left)
	}
}

// What Open WebUI's engine sends: it waits at the WebSocket, and for an edit sends the images before.
func TestOpenWebUI(t *testing.T) {
	s := start(t, &fakeModel{}, Config{})
	c := s.connect("abc")
	got := ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(plain), "client_id": "abc"},
		"Authorization", "Bearer ", "Content-Type", "application/json")
	messages := c.until(`"node":null`)
	want := []string{"status", "status", "execution_start", "execution_cached", "executing", "progress", "progress", "progress", "progress",
		"executing", "executed", "execution_success", "status", "executing"}
	if !slices.Equal(messages, want) {
		t.Errorf("messages %q, expected %q", messages, want)
	}
	if e := ask[map[string]entry](s, 200, "GET", "/history/"+got.ID, nil)[got.ID]; len(e.Outputs["9"].Images) != 2 {
		t.Errorf("history %+v", e)
	}

	name := s.upload("/api/upload/image", "in.png", pngOf(t, filled(32, 16, 255)), "type", "input")
	if name["name"] != "in.png" || name["type"] != "input" {
		t.Errorf("uploaded %v", name)
	}
	if again := s.upload("/upload/image", "in.png", pngOf(t, filled(32, 32, 255))); again["name"] == "in.png" {
		t.Error("an image replaced another one with its name")
	}
	got = ask[submitted](s, 200, "POST", "/api/prompt", map[string]any{"client_id": "abc", "prompt": graph(`
		1 UNETLoader unet_name=flux2.safetensors weight_dtype=default
		2 CLIPLoader clip_name=mistral_3_small_flux2_bf16.safetensors type=flux2
		3 VAELoader vae_name=flux2-vae.safetensors
		4 LoadImage image=in.png
		5 ImageScaleToTotalPixels image=@4 upscale_method=area megapixels=1
		6 VAEEncode pixels=@5 vae=@3
		7 CLIPTextEncode clip=@2 text="make it blue"
		8 FluxGuidance conditioning=@7 guidance=4
		9 ReferenceLatent conditioning=@8 latent=@6
		10 BasicGuider model=@1 conditioning=@9
		11 RandomNoise noise_seed=5
		12 Flux2Scheduler steps=20 width=64 height=64
		13 KSamplerSelect sampler_name=euler
		14 EmptyFlux2LatentImage width=64 height=64 batch_size=1
		15 SamplerCustomAdvanced noise=@11 guider=@10 sampler=@13 sigmas=@12 latent_image=@14
		16 VAEDecode samples=@15 vae=@3
		17 PreviewImage images=@16`)})
	c.until(`"node":null`)
	o := s.last()
	if len(o.References) != 1 || o.References[0].Bounds().Dx() != 32 || o.Image != nil ||
		*o.Guidance != 4 || *o.Seed != 5 || o.Steps != 20 ||
		o.Width != 64 || len(got.Warnings) != 0 {
		t.Errorf("options %+v, warnings %q", o, got.Warnings)
	}
	if e := s.finish(got.ID); len(e.Outputs["17"].Images) != 1 || e.Outputs["17"].Images[0].Type != "temp" {
		t.Errorf("history %+v", e)
	}
}

// krita is what Krita's plugin generates from an image with, if its server is ComfyUI.
const krita = `
1 CheckpointLoaderSimple ckpt_name=shapes
2 ETN_LoadImageCache id=0a1b2c3d
3 ImageScale image=@2 width=64 height=48 upscale_method=lanczos crop=disabled
4 VAEEncode pixels=@3 vae=@1.2
5 RepeatLatentBatch samples=@4 amount=1
6 CLIPTextEncode clip=@1.1 text="a cat"
7 CLIPTextEncode clip=@1.1 text=""
8 CFGGuider model=@1 positive=@6 negative=@7 cfg=4
9 BasicScheduler model=@1 scheduler=simple steps=20 denoise=1
10 SplitSigmas sigmas=@9 step=12
11 RandomNoise noise_seed=99
12 KSamplerSelect sampler_name=euler
13 SamplerCustomAdvanced noise=@11 guider=@8 sampler=@12 sigmas=@10.1 latent_image=@5
14 VAEDecode samples=@13.1 vae=@1.2
15 ETN_SaveImageCache images=@14 format=PNG`

// What Krita's plugin sends: it makes the ids, sends images with PUT, and counts messages for its progress.
func TestKrita(t *testing.T) {
	stop := make(chan struct{})
	s := start(t, &fakeModel{stop: stop}, Config{})
	device := ask[struct {
		Devices []struct{ Name, Type string } `json:"devices"`
	}](s, 200, "GET", "/system_stats", nil).Devices[0]
	if device.Type != "mlx" || device.Name == "" {
		t.Errorf("device %+v", device)
	}
	c := s.connect("k")
	ask[any](s, 200, "POST", "/api/etn/workflow/subscribe", `{"client_id":"k"}`)
	ask[any](s, 200, "GET", "/api/etn/languages", nil)
	ask[any](s, 200, "PUT", "/api/etn/image/0a1b2c3d", pngOf(t, filled(32, 16, 255)))
	send := func(id string) {
		t.Helper()
		extra := map[string]string{"preview_method": "auto"}
		body := map[string]any{"prompt": graph(krita), "client_id": "k", "prompt_id": id, "extra_data": extra}
		if got := ask[submitted](s, 200, "POST", "/prompt", body); got.ID != id || len(got.Warnings) != 0 {
			t.Errorf("answer %+v", got)
		}
	}
	send("first")
	messages := c.until(`"progress"`)
	send("second")
	send("third")
	var queue struct {
		Running [][]any `json:"queue_running"`
		Pending [][]any `json:"queue_pending"`
	}
	json.Unmarshal(ask[[]byte](s, 200, "GET", "/queue", nil), &queue)
	if len(queue.Running) != 1 || queue.Running[0][1] != "first" || len(queue.Pending) != 2 || queue.Pending[0][1] != "second" {
		t.Errorf("queue %+v", queue)
	}
	ask[[]byte](s, 200, "POST", "/queue", `{"delete":["second","first"]}`) // of which the first one runs
	stop <- struct{}{}
	messages = append(messages, c.until(`"node":null.*"first"`)...)
	if preview := "0000000100000001 image/jpeg"; !slices.Contains(messages, preview) || !slices.Contains(messages, "executed") {
		t.Errorf("messages %q, expected %q", messages, preview)
	}
	if o := s.last(); o.Width != 64 || o.Height != 48 || o.Image.Bounds().Dx() != 32 || o.ImageStrength != 0.6 || o.Steps != 20 ||
		o.TrueCFGScale != 4 || *o.Seed != 99 {
		t.Errorf("options %+v", o)
	}
	history := ask[map[string]struct {
		Outputs map[string]struct{ Images []struct{ Source, ID string } }
	}](s, 200, "GET", "/history", nil)
	made := history["first"].Outputs["15"].Images
	if len(history) != 1 || len(made) != 1 || made[0].Source != "http" {
		t.Fatalf("history %+v", history)
	}
	if file := ask[[]byte](s, 200, "GET", "/api/etn/image/"+made[0].ID, nil); !bytes.HasPrefix(file, []byte("\x89PNG")) {
		t.Error("the image is no PNG")
	}
	c.until(`"third".*"progress"`)
	ask[[]byte](s, 200, "POST", "/interrupt", `{}`)
	messages = c.until(`"node":null.*"third"`)
	if !slices.Contains(messages, "execution_interrupted") || s.finish("third").Status.Text != "error" {
		t.Errorf("messages %q", messages)
	}
	if info := ask[map[string]map[string]int](s, 200, "GET", "/prompt", nil); info["exec_info"]["queue_remaining"] != 0 {
		t.Errorf("queue %v", info)
	}
}

// A job that fails, and images that are only sent.
func TestMessages(t *testing.T) {
	s := start(t, &fakeModel{fail: errs.Requestf("height 3: expected more")}, Config{})
	c := s.connect("a")
	other := s.connect("b")
	got := ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(plain), "client_id": "a"})
	c.until(`height 3.*"execution_error"`)
	if e := s.finish(got.ID); e.Status.Text != "error" || e.Status.Completed || len(e.Outputs) != 0 || len(e.Status.Messages) != 3 {
		t.Errorf("history %+v", e)
	}
	s.fail = nil
	text := strings.Replace(plain, "SaveImage filename_prefix=test/x", "SaveImageWebsocket", 1)
	ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(text)}) // for all
	messages := other.until(`"node":null`)
	if n := len(slices.DeleteFunc(messages, func(m string) bool { return m != "0000000100000002 image/png" })); n != 2 {
		t.Errorf("%d images were sent", n)
	}
}
