package comfy

import (
	"encoding/json"
	"image"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/gomflux/gomflux/serve/api"
)

// masked is a graph that inpaints an image, of which the mask is the transparent part.
const masked = `
1 UNETLoader unet_name=flux1-dev weight_dtype=default
2 DualCLIPLoader clip_name1=clip_l.safetensors clip_name2=t5xxl_fp16.safetensors type=flux
3 VAELoader vae_name=ae.safetensors
4 LoadImage image=half.png
5 CLIPTextEncodeFlux clip=@2 clip_l="a dog" t5xxl="a dog" guidance=2.5
6 ConditioningZeroOut conditioning=@5
7 VAEEncode pixels=@4 vae=@3
8 SetLatentNoiseMask samples=@7 mask=@4.1
9 KSampler model=@1 seed=@12 steps=6 cfg=1 sampler_name=heun scheduler=simple positive=@5 negative=@6 latent_image=@8 denoise=0.6
10 VAEDecode samples=@9 vae=@3
11 SaveImage images=@10 filename_prefix=x
12 PrimitiveInt value=18446744073709551615`

// enlarged are nodes that enlarge the image of node 8.
const enlarged = `
11 UpscaleModelLoader model_name=Lanczos
10 ImageUpscaleWithModel upscale_model=@11 image=@8`

// Images that are enlarged by a network before they are saved.
func TestEnlarged(t *testing.T) {
	s := start(t, &fakeModel{}, Config{})
	text := strings.Replace(plain, "images=@8", "images=@10"+enlarged, 1)
	s.finish(ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(text)}).ID)
	if e := s.last().Enlarge; e == nil || e.Upscaler != "lanczos" || e.Scale != 2 {
		t.Errorf("enlarged by %+v", e)
	}
}

// Graphs with images and masks.
func TestImages(t *testing.T) {
	s := start(t, &fakeModel{}, Config{})
	s.upload("/upload/image", "half.png", pngOf(t, filled(64, 32, 0)), "subfolder", "a")
	s.upload("/upload/image", "half.png", pngOf(t, filled(64, 32, 0)), "overwrite", "true")
	s.upload("/upload/image", "full.png", pngOf(t, filled(64, 32, 255)))
	s.upload("/upload/image", "grey.png", pngOf(t, image.NewGray(image.Rect(0, 0, 64, 32))), "subfolder", "a")
	made := s.upload("/upload/mask", "clip.png", pngOf(t, filled(64, 32, 10)), "original_ref", `{"filename":"full.png","type":"input"}`)
	run := func(text string) []string {
		t.Helper()
		got := ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(text)})
		s.finish(got.ID)
		return got.Warnings
	}
	run(masked)
	o := s.last()
	p, err := o.PrepareMask()
	if err != nil {
		t.Fatal(err)
	}
	c := p.Image.RGBAAt(60, 3)
	if o.ImageStrength != 0.4 || o.Steps != 10 || *o.Guidance != 2.5 || o.Inpaint.Invert || p.Mask.GrayAt(60, 3).Y != 255 ||
		p.Mask.GrayAt(3, 3).Y != 0 || c.R != 200 || c.A != 255 || string(o.Scheduler) != "flow_match_heun_discrete" || *o.Seed != 1<<64-1 {
		t.Errorf("options %+v, colour %v, mask %d %d", o, c, p.Mask.GrayAt(3, 3).Y, p.Mask.GrayAt(60, 3).Y)
	}

	run(strings.NewReplacer("half.png", "clip.png",
		"mask=@4.1", "mask=@14", "11 SaveImage", "14 InvertMask mask=@13\n13 LoadImageMask image=a/grey.png channel=red\n11 SaveImage",
	).Replace(masked))
	if o = s.last(); made["name"] != "clip.png" || !o.Inpaint.Invert || o.Mask == nil || o.Image.Bounds().Dx() != 64 {
		t.Errorf("options %+v", o)
	}

	warnings := run(strings.NewReplacer("7 VAEEncode pixels=@4", "7 VAEEncodeForInpaint mask=@4.1 pixels=@4 grow_mask_by=6",
		"latent_image=@8", "latent_image=@7").Replace(masked))
	grow := []string{"VAEEncodeForInpaint 7 grow_mask_by 6 was not used"}
	if o = s.last(); o.ImageStrength != 0 || o.Mask == nil || !slices.Equal(warnings, grow) {
		t.Errorf("options %+v, warnings %q", o, warnings)
	}

	run(strings.NewReplacer("denoise=0.6", "denoise=1", "latent_image=@8", "latent_image=@7").Replace(masked))
	if o = s.last(); o.Image != nil || o.Width != 64 || o.Height != 32 {
		t.Errorf("options of noise %+v", o)
	}

	run(`
		1 CheckpointLoaderSimple ckpt_name=flux2
		2 LoadImage image=full.png
		3 FluxKontextImageScale image=@2
		4 LoadImage image="a/half.png [input]"
		5 TextEncodeQwenImageEditPlus clip=@1.1 vae=@1.2 image1=@3 image2=@4 prompt="both"
		6 TextEncodeQwenImageEditPlus clip=@1.1 vae=@1.2 image1=@3 image2=@4 prompt=""
		7 VAEEncode pixels=@3 vae=@1.2
		8 ModelSamplingAuraFlow model=@1 shift=3
		9 KSampler model=@8 seed=1 steps=4 cfg=1 sampler_name=euler scheduler=simple positive=@5 negative=@6 latent_image=@7 denoise=1
		10 VAEDecode samples=@9 vae=@1.2
		11 PreviewImage images=@10`)
	if o = s.last(); len(o.References) != 2 || o.Image != nil || o.Width != 0 {
		t.Errorf("options of an edit %+v", o)
	}
}

// Graphs that are refused name the node.
func TestRefused(t *testing.T) {
	const failed = "prompt_outputs_failed_validation"
	s := start(t, &fakeModel{}, Config{Config: api.Config{LoRAs: func() []string { return []string{"ann/ink"} }}})
	s.upload("/upload/image", "half.png", pngOf(t, filled(64, 32, 255)))
	for name, test := range map[string]struct {
		text, from, to string
		kind, node     string
		says           string
	}{
		"unknown node":    {plain, "7 CLIPTextEncode", "7 INPAINT_ExpandMask", "missing_node_type", "", "INPAINT_ExpandMask"},
		"no output":       {plain, "9 SaveImage", "9 ImageScale image=@8 upscale_method=area crop=disabled", "prompt_no_outputs", "", ""},
		"missing input":   {plain, "positive=@6", "", failed, "3", "positive"},
		"missing node":    {plain, "positive=@6", "positive=@66", failed, "3", "positive"},
		"missing output":  {plain, "positive=@6", "positive=@6.1", failed, "3", "positive"},
		"unknown model":   {plain, "ckpt_name=shapes", "ckpt_name=sdxl", failed, "4", `"sdxl" not in ["shapes"`},
		"no number":       {plain, "steps=3", "steps=x", failed, "3", "steps: not supported: x"},
		"large batch":     {plain, "batch_size=2", "batch_size=65", failed, "3", "at most 64"},
		"a part of steps": {plain, "cfg=7", "cfg=7 end_at_step=2", failed, "3", "end_at_step"},
		"unknown LoRA": {plain + "\n10 LoraLoaderModelOnly model=@4 lora_name=wash",
			"model=@4 neg", "model=@10 neg", failed, "10", "wash"},
		"changed image": {plain,
			"images=@8", "images=@10\n10 ImageScale image=@8 upscale_method=area crop=disabled", failed, "9", "VAEDecode"},
		"enlarged and not": {plain, "images=@8", "images=@8\n12 SaveImage images=@10" + enlarged, failed, "9", "or none"},
		"unknown network":  {plain, "images=@8", "images=@10" + strings.Replace(enlarged, "Lanczos", "x.pth", 1), failed, "11", "one of"},
		"image not sent":   {masked, "half.png", "other.png", failed, "4", "other.png"},
		"no transparency":  {masked, "", "", failed, "4", "transparent"},
		"cropped": {masked,
			"7 VAEEncode pixels=@4", "14 ImageScale image=@4 upscale_method=area crop=center\n7 VAEEncode pixels=@14",
			failed, "14", "crop"},
		"another rule": {masked,
			"7 VAEEncode pixels=@4", "14 ImageScaleBy image=@4 upscale_method=area\n7 VAEEncode pixels=@14", failed, "4", "ImageScale"},
		"no editor": {plain + "\n10 LoadImage image=half.png\n11 VAEEncode vae=@4.2 pixels=@10\n" +
			"12 ReferenceLatent conditioning=@6 latent=@11",
			"positive=@6", "positive=@12", "invalid_prompt", "", "reference images"},
		"no graph": {"", "", "", "invalid_prompt", "", "nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(test.text, test.from, test.to, 1)
			e := ask[refusal](s, 400, "POST", "/prompt", map[string]any{"prompt": graph(text)})
			whole, _ := json.Marshal(e)
			says := strings.Contains(strings.ReplaceAll(string(whole), `\"`, `"`), test.says)
			if e.Problem.Type != test.kind || (e.Nodes[test.node] == nil) != (test.node == "") || !says {
				t.Errorf("%s", whole)
			}
		})
	}
	ask[refusal](s, 400, "POST", "/prompt", `[`)
	ask[refusal](s, 404, "GET", "/models/x", nil)
	if list := ask[[]string](s, 200, "GET", "/models/loras", nil); !slices.Equal(list, []string{"ann/ink"}) {
		t.Errorf("LoRAs %q", list)
	}
	missing := ask[refusal](s, 404, "POST", "/prompt", map[string]any{"prompt": graph(strings.Replace(plain, "shapes", "gone", 1))})
	if !strings.Contains(missing.Problem.Message, "not on this machine") {
		t.Errorf("%+v", missing)
	}
}

// Clients with tokens see their own graphs and images, and pages of others open no socket.
func TestPrivate(t *testing.T) {
	private := Config{Config: api.Config{Private: true}, Origins: []string{"https://friend.example"}}
	s := start(t, &fakeModel{stop: make(chan struct{})}, private)
	got := ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(plain), "client_id": "x"}, "X-Client", "ann")
	c := s.connect("x", "X-Client", "ann")
	other := s.connect("x", "X-Client", "bob")
	ask[[]byte](s, 200, "POST", "/interrupt", `{}`, "X-Client", "bob")
	s.stop <- struct{}{}
	s.stop <- struct{}{}
	c.until(`"node":null`)
	if h := ask[map[string]entry](s, 200, "GET", "/history", nil, "X-Client", "bob"); len(h) != 0 {
		t.Errorf("another client sees %v", h)
	}
	img := ask[map[string]entry](s, 200, "GET", "/history", nil, "X-Client", "ann")[got.ID].Outputs["9"].Images[0]
	q := url.Values{"filename": {img.Filename}, "subfolder": {img.Subfolder}}
	ask[refusal](s, 404, "GET", "/view?"+q.Encode(), nil, "X-Client", "bob")
	ask[[]byte](s, 200, "GET", "/view?"+q.Encode(), nil, "X-Client", "ann")
	ask[submitted](s, 200, "POST", "/prompt", map[string]any{"prompt": graph(plain), "client_id": "x"}, "X-Client", "bob")
	s.stop <- struct{}{}
	s.stop <- struct{}{}
	if all := other.until(`"node":null`); slices.Index(all, "execution_start") > 2 {
		t.Errorf("messages of another client: %q", all)
	}
	for origin, ok := range map[string]bool{"https://friend.example": true, "https://else.example": false} {
		d := &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {origin}}}
		conn, _, err := websocket.Dial(t.Context(), s.url+"/ws", d)
		if (err == nil) != ok {
			t.Errorf("%s: %v", origin, err)
		}
		if err == nil {
			conn.CloseNow()
		}
	}
}

// All lines of the table can be described, and all inputs of graphs that the tests send are in it.
func TestTable(t *testing.T) {
	for name, c := range classes {
		for _, in := range c.inputs {
			if in.name == "" || in.kind == "" || strings.ContainsAny(in.name, "?=") {
				t.Errorf("%s: input %+v", name, in)
			}
		}
	}
	if c := classes["SplitSigmas"]; len(c.outputs) != 2 || c.inputs[1].otherwise != "0" || !classes["SaveImage"].saves() {
		t.Errorf("%+v", c)
	}
}
