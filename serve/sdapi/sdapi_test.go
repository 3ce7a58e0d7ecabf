package sdapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// pngFile returns a PNG file in base64.
func pngFile(width, height int) string {
	var b bytes.Buffer
	png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height)))
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// TestSubmitted checks what the engine is asked for.
func TestSubmitted(t *testing.T) {
	guidance := func(v float64) *float64 { return &v }
	const cfg, distilled = picture.CFGScale, picture.DistilledCFGScale
	for _, test := range []struct {
		body     string
		options  gomflux.Options
		loras    []gomflux.LoRA
		seeds    []uint64
		warnings []string // parts of them
	}{
		{body: `{"prompt":"a cat"}`, options: gomflux.Options{Prompt: "a cat"}},
		{body: `{"prompt":"a cat","seed":7}`, options: gomflux.Options{Prompt: "a cat"}, seeds: []uint64{7}},
		{body: `{"seed":18446744073709551615}`, seeds: []uint64{math.MaxUint64}},
		{body: `{"seed":"12"}`, seeds: []uint64{12}},
		{body: `{"seed":12.0}`, seeds: []uint64{12}},
		{body: `{"seed":7,"batch_size":2,"n_iter":3}`, seeds: []uint64{7, 8, 9, 10, 11, 12}},
		{body: `{"steps":20,"cfg_scale":7,"negative_prompt":"x"}`, options: gomflux.Options{NegativePrompt: "x"},
			warnings: []string{"steps 20 was not used: turbo is distilled and uses its own, 8", "cfg_scale 7", "negative_prompt"}},
		{body: `{"steps":8,"cfg_scale":1}`},
		{body: `{"cfg_scale":0}`, warnings: []string{"cfg_scale 0 was not used: turbo is distilled and uses its own, 1"}},
		{body: `{"model":"dev","cfg_scale":1,"distilled_cfg_scale":2.5}`, // of Forge
			options: gomflux.Options{Guidance: guidance(2.5), GuidanceUnit: distilled}},
		{body: `{"model":"dev","cfg_scale":7,"distilled_cfg_scale":3.5}`,
			options:  gomflux.Options{Guidance: guidance(3.5), GuidanceUnit: distilled},
			warnings: []string{"cfg_scale 7 was not used: dev takes distilled_cfg_scale"}},
		{body: `{"model":"cfg","cfg_scale":3,"distilled_cfg_scale":3.5,"negative_prompt":"x"}`,
			options: gomflux.Options{Guidance: guidance(3.5), GuidanceUnit: distilled, TrueCFGScale: 3, NegativePrompt: "x"}},
		{body: `{"model":"cfg","cfg_scale":1,"distilled_cfg_scale":3.5}`,
			options: gomflux.Options{Guidance: guidance(3.5), GuidanceUnit: distilled}},
		{body: `{"model":"cfg","cfg_scale":4,"negative_prompt":"x"}`, // of programs that know no distilled scale
			options:  gomflux.Options{Guidance: guidance(4), GuidanceUnit: cfg, NegativePrompt: "x"},
			warnings: []string{"negative_prompt has no effect: cfg needs a cfg_scale above 1 in addition to distilled_cfg_scale"}},
		{body: `{"model":"dev","cfg_scale":1}`, options: gomflux.Options{Guidance: guidance(1), GuidanceUnit: cfg}}, // stands for 3.5
		{body: `{"model":"base","cfg_scale":4,"distilled_cfg_scale":3.5}`,
			options: gomflux.Options{Guidance: guidance(4), GuidanceUnit: cfg}},
		{body: `{"model":"base","steps":20,"cfg_scale":7}`, options: gomflux.Options{Steps: 20, Guidance: guidance(7), GuidanceUnit: cfg}},
		{body: `{"model":"base","steps":"20","cfg_scale":"7.5"}`,
			options: gomflux.Options{Steps: 20, Guidance: guidance(7.5), GuidanceUnit: cfg}},
		{body: `{"model":"base","guidance_scale":3,"batch_count":2,"seed":1,"sampler":"Heun","strength":1}`, // of Draw Things
			options: gomflux.Options{Guidance: guidance(3), GuidanceUnit: cfg, Scheduler: gomflux.Heun}, seeds: []uint64{1, 2}},
		{body: `{"model":"base","guidance_scale":3,"sampler":7}`, options: gomflux.Options{Guidance: guidance(3), GuidanceUnit: cfg}},
		{body: `{"model":"other"}`, warnings: []string{"model other is not known, and turbo was used"}},
		{body: `{"width":512,"height":768}`, options: gomflux.Options{Width: 512, Height: 768}},
		{body: `{"width":1,"height":1000}`, options: gomflux.Options{Width: 16, Height: 1008},
			warnings: []string{"the size 1x1000 was rounded to 16x1008"}},
		{body: `{"model":"edit","width":48,"height":100}`, options: gomflux.Options{Width: 64, Height: 96},
			warnings: []string{"multiples of 32"}},
		{body: `{"sampler_name":"Heun"}`, options: gomflux.Options{Scheduler: gomflux.Heun}},
		{body: `{"sampler_index":"Euler"}`, options: gomflux.Options{Scheduler: gomflux.Euler}},
		{body: `{"sampler_name":"Euler a","scheduler":"Karras"}`, warnings: []string{"sampler_name Euler a", "scheduler Karras"}},
		{body: `{"scheduler":"Automatic"}`},
		{body: `{"tiling":true,"subseed_strength":0.5,"alwayson_scripts":{"x":{}},"script_name":"y"}`,
			warnings: []string{"alwayson_scripts are not supported and were ignored: x", "script_name", "subseed_strength", "tiling"}},
		{body: `{"enable_hr":"no","anything":[1,{"x":2}],"steps":null,"alwayson_scripts":{}}`},
		{body: `{"enable_hr":false,"hr_scale":2,"hr_upscaler":"Latent","subseed":7,"refiner_switch_at":0.8,"script_args":[1]}`},
		{body: `{"enable_hr":true,"hr_upscaler":"Lanczos","hr_scale":1.5,"hr_prompt":"","denoising_strength":0.3}`,
			options: gomflux.Options{Enlarge: &gomflux.EnlargeOptions{Upscaler: "lanczos",
				UpscaleOptions: gomflux.UpscaleOptions{Scale: 1.5}, Refine: &gomflux.RefineOptions{Strength: 0.3}}}},
		{body: `{"enable_hr":true,"hr_upscaler":"Latent","hr_prompt":"x","hr_resize_x":64,"denoising_strength":0}`,
			options: gomflux.Options{Enlarge: &gomflux.EnlargeOptions{Upscaler: "lanczos",
				UpscaleOptions: gomflux.UpscaleOptions{Width: 64}}},
			warnings: []string{"hr_prompt was ignored", "hr_upscaler Latent is not known, and lanczos was used"}},

		{body: `{"override_settings":{"sd_vae":"Automatic","CLIP_stop_at_last_layers":1,"samples_format":"webp","eta_noise_seed_delta":0}}`,
			warnings: nil},
		{body: `{"override_settings":{"sd_vae":"x.pt","CLIP_stop_at_last_layers":2,"anything":1}}`,
			warnings: []string{"override_settings: CLIP_stop", "override_settings: anything", "override_settings: sd_vae"}},
		{body: `{"prompt":"a (red) cat, 16:9 AND"}`, options: gomflux.Options{Prompt: "a (red) cat, 16:9 AND"}},
		{body: `{"prompt":"a (red:1.2) cat BREAK a dog AND a fish","negative_prompt":"[cat:dog:0.5] ((x)) <lora:style>"}`,
			options: gomflux.Options{Prompt: "a (red:1.2) cat BREAK a dog AND a fish", NegativePrompt: "[cat:dog:0.5] ((x)) <lora:style>"},
			warnings: []string{
				"negative_prompt: LoRAs", "negative_prompt: schedules", "negative_prompt: weights", "prompt: AND", "prompt: BREAK",
				"prompt: weights", "negative_prompt has no effect",
			}},
		{body: `{"prompt":"a cat <lora:missing:1>"}`, options: gomflux.Options{Prompt: "a cat"},
			warnings: []string{"the LoRA missing was not found and was ignored"}},
		{body: `{"prompt":"a <lora:style:0.5>cat <lora:Other.safetensors>"}`, options: gomflux.Options{Prompt: "a cat"},
			loras: []gomflux.LoRA{{Path: "style", Scale: 0.5}, {Path: "owner/name:folder/other.safetensors", Scale: 1}}},
		{body: `{"denoising_strength":7,"init_images":["x"]}`}, // of img2img only
	} {
		e := &fakeEngine{}
		_, s := serve(t, e, api.Config{LoRAs: testLoRAs})
		_, info := readMade(t, call(t, s, "POST", "/sdapi/v1/txt2img", test.body), max(1, len(test.seeds)))
		got := e.last(t)
		if !reflect.DeepEqual(got.Options, test.options) {
			t.Errorf("%s: %+v, expected %+v", test.body, got.Options, test.options)
		}
		if !reflect.DeepEqual(got.LoRAs, test.loras) {
			t.Errorf("%s: LoRAs %v, expected %v", test.body, got.LoRAs, test.loras)
		}
		if test.seeds != nil && !reflect.DeepEqual(got.Seeds, test.seeds) {
			t.Errorf("%s: seeds %d, expected %d", test.body, got.Seeds, test.seeds)
		}
		if len(info.Warnings) != len(test.warnings) {
			t.Errorf("%s: warnings %q, expected %q", test.body, info.Warnings, test.warnings)
			continue
		}
		for i, part := range test.warnings {
			if !strings.Contains(info.Warnings[i], part) {
				t.Errorf("%s: warning %q, expected %q in it", test.body, info.Warnings[i], part)
			}
		}
	}
}

func testLoRAs() []string {
	return []string{"style", "owner/name:folder/other.safetensors", "owner/whole"}
}

// TestRandomSeeds checks that seeds of 32 bits are drawn, differ, and are returned.
func TestRandomSeeds(t *testing.T) {
	e := &fakeEngine{}
	_, s := serve(t, e, api.Config{})
	seen := map[uint64]bool{}
	for range 2 {
		_, info := readMade(t, call(t, s, "POST", "/sdapi/v1/txt2img", `{"seed":-1,"batch_size":4}`), 4)
		for i, seed := range e.last(t).Seeds {
			if seen[seed] = true; seed != info.AllSeeds[i] || seed >= 1<<32 {
				t.Errorf("seed %d, and %d in the response", seed, info.AllSeeds[i])
			}
		}
		if info.Seed != info.AllSeeds[0] {
			t.Errorf("seed %d, and the first one is %d", info.Seed, info.AllSeeds[0])
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d different seeds, expected 8", len(seen))
	}
}

// TestLoRAs checks LoRAs in prompts.
func TestLoRAs(t *testing.T) {
	for _, test := range []struct {
		prompt, text string
		tags         []picture.LoRA
		fails        bool
	}{
		{"a cat", "a cat", nil, false},
		{" a < b > c ", " a < b > c ", nil, false},
		{"a cat <lora:x>", "a cat", []picture.LoRA{{Path: "x", Scale: 1}}, false},
		{"a <lora:x:0.8>cat <lora:y> sleeps", "a cat sleeps", []picture.LoRA{{Path: "x", Scale: 0.8}, {Path: "y", Scale: 1}}, false},
		{"<lora:x:0.8> a cat", "a cat", []picture.LoRA{{Path: "x", Scale: 0.8}}, false},
		{"a <lora:x:-1>, b <lyco:y z:2>", "a, b", []picture.LoRA{{Path: "x", Scale: -1}, {Path: "y z", Scale: 2}}, false},
		{"<lora:x:1:0.5><lora:y:unet=0.3:te=0.1>", "", []picture.LoRA{{Path: "x", Scale: 0.5}, {Path: "y", Scale: 0.3}}, false},
		{"<lora:x:>", "", []picture.LoRA{{Path: "x", Scale: 1}}, false},
		{"<lora:x:0>", "", nil, false},
		{`a \<lora:x:1>, <lora:y>`, "a <lora:x:1>,", []picture.LoRA{{Path: "y", Scale: 1}}, false},
		{`\<lora:x:1> `, "<lora:x:1> ", nil, false},
		{"<lora:x:nan>", "", nil, true},
		{"<lora:x:1e9>", "", nil, true},
		{"<lora:x:much>", "", nil, true},
		{"<lora::1>", "", nil, true},
		{strings.Repeat("<lora:x:1>", 33), "", nil, true},
	} {
		text, tags, err := picture.CutLoRAs(test.prompt)
		if text != test.text || !reflect.DeepEqual(tags, test.tags) || (err != nil) != test.fails {
			t.Errorf("%q: %q %v %v, expected %q %v", test.prompt, text, tags, err, test.text, test.tags)
		}
	}
	got := api.NamedLoRAs([]picture.LoRA{{Path: "STYLE", Scale: 0.5}, {Path: "other.safetensors", Scale: 1},
		{Path: "owner/whole", Scale: 2},
		{Path: "unlisted", Scale: 3}}, testLoRAs())
	expected := []gomflux.LoRA{{Path: "style", Scale: 0.5}, {Path: "owner/name:folder/other.safetensors", Scale: 1},
		{Path: "owner/whole", Scale: 2}, {Path: "unlisted", Scale: 3}}
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("found %v, expected %v", got, expected)
	}
	_, s := serve(t, &fakeEngine{}, api.Config{LoRAs: testLoRAs})
	names("name", "style", "other", "whole")(t, call(t, s, "GET", "/sdapi/v1/loras", ""))
}

func parse(body []byte, img2img bool) (*request, error) {
	f, err := readFields(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return parseRequest(f, img2img)
}

// TestUnused sends each field of the table with its defaults, which are no warning, and with another value.
func TestUnused(t *testing.T) {
	warnings := func(name, value string) []string {
		r, err := parse([]byte(fmt.Sprintf(`{"%s":%s}`, name, value)), false)
		if err != nil {
			t.Fatalf("%s %s: %v", name, value, err)
		}
		return r.warnings
	}
	for name, defaults := range unused {
		for _, value := range append([]string{"null", "0", "-1", "0.0", "false", `""`, "[ ]", "{}"}, defaults...) {
			if value == "Infinity" { // of Python's JSON
				continue
			}
			if w := warnings(name, value); len(w) > 0 {
				t.Errorf("%s %s: %q", name, value, w)
			}
		}
		for _, value := range []string{"0.7", `"x"`, `["x"]`, `{"x":1}`} {
			if w := warnings(name, value); len(w) != 1 || !strings.HasPrefix(w[0], name+" ") {
				t.Errorf("%s %s: %q", name, value, w)
			}
		}
	}
}

// TestRoutes asks for what clients ask when they connect.
func TestRoutes(t *testing.T) {
	_, s := serve(t, &fakeEngine{}, api.Config{})
	for _, test := range []struct {
		request, body, answer string
		status                int
	}{
		{"GET scripts", "", `{"img2img":[],"txt2img":[]}`, 200},
		{"GET script-info", "", "[]", 200},
		{"GET prompt-styles", "", "[]", 200},
		{"GET embeddings", "", `{"loaded":{},"skipped":{}}`, 200},
		{"GET hypernetworks", "", "[]", 200},
		{"GET face-restorers", "", "[]", 200},
		{"GET realesrgan-models", "", "[]", 200},
		{"GET cmd-flags", "", "{}", 200},
		{"GET memory", "", `"ram"`, 200},
		{"POST refresh-checkpoints", "", "null", 200},
		{"POST refresh-loras", "", "null", 200},
		{"POST refresh-vae", "", "null", 200},
		{"POST skip", "", "{}", 200},
		{"POST png-info", fmt.Sprintf(`{"image":"data:image/png;base64,%s"}`, pngFile(4, 4)), `"info":""`, 200},
		{"POST png-info", `{"image":"http://example.org/x.png"}`, "is not fetched", 400},
		{"GET upscalers", "", `"name":"lanczos"`, 200},
		{"POST extra-single-image", "{}", "image: ", 400},
		{"POST extra-batch-images", "{}", "imageList: expected 1 to 64 images, found 0", 400},
		{"POST extra-single-image", fmt.Sprintf(`{"image":%q,"upscaler_1":"/etc/passwd"}`, pngFile(4, 4)), "expected one of lanczos", 400},
		{"POST interrogate", fmt.Sprintf(`{"image":"data:image/png;base64,%s","model":"clip"}`, pngFile(4, 4)), `{"caption":"a cat"}`, 200},
		{"POST interrogate", fmt.Sprintf(`{"image":%q}`, pngFile(4, 4)), `{"caption":"a cat"}`, 200},
		{"POST interrogate", `{"model":"clip"}`, "Image not found", 404},
		{"POST interrogate", `{"image":"x","model":"deepdanbooru"}`, "Model not found", 404},
		{"POST interrogate", `{"image":"x","model":"clip"}`, "image: ", 400},
		{"POST interrogate", `{"image":3}`, "image: expected a string", 422},
		{"GET refresh-vae", "", "Method Not Allowed", 405},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		got := call(t, s, method, "/sdapi/v1/"+path, test.body)
		if got.status != test.status || !strings.Contains(string(got.body), test.answer) {
			t.Errorf("%s: status %d %s, expected %d %s", test.request, got.status, got.body, test.status, test.answer)
		}
	}
	made, _ := readMade(t, call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","steps":8}`), 1)
	got := call(t, s, "POST", "/sdapi/v1/png-info", fmt.Sprintf(`{"image":%q}`, made.Images[0]))
	info := decode[struct {
		Info       string
		Parameters map[string]any
	}](t, got)
	if !strings.HasPrefix(info.Info, "a cat\n") || info.Parameters["Prompt"] != "a cat" {
		t.Errorf("png-info %+v", info)
	}
}

// TestImg2Img checks input images.
func TestImg2Img(t *testing.T) {
	file := pngFile(40, 24)
	init := func(text string, more string) string { return fmt.Sprintf(`{"init_images":["%s"]%s}`, text, more) }
	for _, test := range []struct {
		body          string
		strength      float64 // of gomflux, 0 without an image to start from
		references    int
		width, height int
	}{
		{body: init(file, ""), strength: 0.25},
		{body: init("data:image/png;base64,"+file, `,"denoising_strength":0.6,"width":64,"height":32`), strength: 0.4,
			width: 64, height: 32},
		{body: init(file, `,"denoising_strength":0`), strength: math.Nextafter(1, 0)},
		{body: init(file, `,"strength":0.8`), strength: 0.2},
		{body: init(file, `,"denoising_strength":1`), width: 32, height: 16},
		{body: init(file, `,"denoising_strength":1,"width":64,"height":64`), width: 64, height: 64},
		{body: fmt.Sprintf(`{"init_images":"%s"}`, file), strength: 0.25},
		{body: fmt.Sprintf(`{"init_images":["%s","%s"],"model":"edit"}`, file, file), references: 2},
	} {
		e := &fakeEngine{}
		_, s := serve(t, e, api.Config{})
		m, info := readMade(t, call(t, s, "POST", "/sdapi/v1/img2img", test.body), 1)
		o := e.last(t).Options
		if math.Abs(o.ImageStrength-test.strength) > 1e-9 || (o.Image != nil) != (test.strength > 0) || o.ImageStrength >= 1 {
			t.Errorf("%.60s: strength %v, expected %v", test.body, o.ImageStrength, test.strength)
		}
		if len(o.References) != test.references || o.Width != test.width || o.Height != test.height {
			t.Errorf("%.60s: %d references and %dx%d", test.body, len(o.References), o.Width, o.Height)
		}
		if m.Parameters["init_images"] != nil {
			t.Errorf("%.60s: the response has the input images", test.body)
		}
		data, _ := base64.StdEncoding.DecodeString(m.Images[0])
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if (found.Settings.Image != nil) != (o.Image != nil) || len(found.Settings.References) != test.references {
			t.Errorf("%.60s: the settings have image %v and references %v", test.body, found.Settings.Image, found.Settings.References)
		}
		if i := found.Settings.Image; i != nil && (i.Path != "init_images[0]" || len(i.SHA256) != 64) {
			t.Errorf("%.60s: source %+v", test.body, i)
		}
		if test.references > 0 && len(info.Warnings) != 1 {
			t.Errorf("%.60s: warnings %q", test.body, info.Warnings)
		}
	}
}

// TestTransparentInput warns of an input image whose transparency the model does not see.
func TestTransparentInput(t *testing.T) {
	var b bytes.Buffer
	png.Encode(&b, image.NewNRGBA(image.Rect(0, 0, 16, 16)))
	body := fmt.Sprintf(`{"init_images":["%s"]}`, base64.StdEncoding.EncodeToString(b.Bytes()))
	e := &fakeEngine{}
	_, s := serve(t, e, api.Config{})
	_, info := readMade(t, call(t, s, "POST", "/sdapi/v1/img2img", body), 1)
	if len(info.Warnings) != 1 || info.Warnings[0] != "the transparent pixels of init_images[0] are white for turbo" {
		t.Errorf("warnings %q", info.Warnings)
	}
	if _, ok := e.last(t).Options.Image.(*image.NRGBA); !ok {
		t.Error("the engine got an opaque image")
	}
}

// TestInpaint checks masks.
func TestInpaint(t *testing.T) {
	file, mask := pngFile(40, 24), maskFile(40, 24)
	body := func(more string) string {
		return fmt.Sprintf(`{"init_images":["%s"],"mask":"%s"%s}`, file, mask, more)
	}
	for _, test := range []struct {
		body          string
		strength      float64
		want          gomflux.InpaintOptions
		blur          int
		width, height int
		warnings      int
	}{
		{body: body(""), strength: 0.25, want: gomflux.InpaintOptions{Crop: true}, blur: 4},
		{body: body(`,"denoising_strength":1,"inpaint_full_res":false,"inpainting_mask_invert":1,"mask_blur":0`),
			want: gomflux.InpaintOptions{Invert: true}},
		{body: body(`,"inpaint_full_res_padding":32,"mask_blur":9,"width":64,"height":64,"inpainting_fill":1`), strength: 0.25, blur: 9,
			want: gomflux.InpaintOptions{Crop: true, Padding: 32}, width: 64, height: 64},
		{body: body(`,"inpaint_full_res":false,"width":40,"height":24`), strength: 0.25, blur: 4, width: 48, height: 32, warnings: 1},
		{body: body(`,"inpaint_full_res":false,"width":80,"height":48,"inpainting_fill":0`), strength: 0.25, blur: 4,
			want: gomflux.InpaintOptions{NoPasteBack: true}, width: 80, height: 48, warnings: 2},
		{body: body(`,"model":"edit"`), strength: 0.25, want: gomflux.InpaintOptions{Crop: true}, blur: 4},
	} {
		e := &fakeEngine{}
		_, s := serve(t, e, api.Config{})
		m, info := readMade(t, call(t, s, "POST", "/sdapi/v1/img2img", test.body), 1)
		o := e.last(t).Options
		got := o.Inpaint
		if got.Feather == nil || *got.Feather != test.blur {
			t.Errorf("%.60s: blur %v", test.body, got.Feather)
		}
		got.Feather = nil
		if got != test.want || o.Mask == nil || o.Image == nil || len(o.References) > 0 || math.Abs(o.ImageStrength-test.strength) > 1e-9 {
			t.Errorf("%.60s: %+v, strength %g, expected %+v, %g", test.body, got, o.ImageStrength, test.want, test.strength)
		}
		if o.Width != test.width || o.Height != test.height || len(info.Warnings) != test.warnings {
			t.Errorf("%.60s: %dx%d, warnings %q", test.body, o.Width, o.Height, info.Warnings)
		}
		data, _ := base64.StdEncoding.DecodeString(m.Images[0])
		found, err := picture.ReadSettings(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if s := found.Settings; s.Image == nil || s.Mask == nil || s.Mask.Path != "mask" || len(s.Mask.SHA256) != 64 {
			t.Errorf("%.60s: the settings have image %v and mask %v", test.body, s.Image, s.Mask)
		}
	}
}

// maskFile is pngFile of a mask whose left half is white.
func maskFile(width, height int) string {
	mask := image.NewGray(image.Rect(0, 0, width, height))
	draw.Draw(mask, image.Rect(0, 0, width/2, height), image.White, image.Point{}, draw.Src)
	var b bytes.Buffer
	if err := png.Encode(&b, mask); err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// TestSameFile checks that an image is the file that the command writes.
func TestSameFile(t *testing.T) {
	e := &fakeEngine{}
	_, s := serve(t, e, api.Config{})
	m, info := readMade(t, call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","seed":5,"auth":"a:b","steps":3}`), 1)
	result := fakeResult(e.last(t), 5)
	result.Settings.Created, result.Settings.Seconds = time.Time{}, 0
	var b bytes.Buffer
	if err := picture.Encode(&b, picture.PNG, result.Image, &result.Settings); err != nil {
		t.Fatal(err)
	}
	if m.Images[0] != base64.StdEncoding.EncodeToString(b.Bytes()) {
		t.Error("the file differs")
	}
	expected := "a cat\nSteps: 8, Sampler: Euler, Schedule type: Simple, CFG scale: 0, Seed: 5, "
	if !strings.HasPrefix(info.Infotexts[0], expected) {
		t.Errorf("infotext %q, expected %q", info.Infotexts[0], expected)
	}
	if info.Sampler != "Euler" {
		t.Errorf("sampler %s", info.Sampler)
	}
	if m.Parameters["steps"] != 3.0 || m.Parameters["auth"] != nil {
		t.Errorf("parameters %v", m.Parameters)
	}
	m = decode[made](t, call(t, s, "POST", "/sdapi/v1/txt2img", `{"send_images":false}`))
	if m.Images == nil || len(m.Images) != 0 {
		t.Errorf("images %q without send_images", m.Images)
	}
}

// TestErrors checks the status of each error. The function send checks the form.
func TestErrors(t *testing.T) {
	file := pngFile(40, 24)
	for _, test := range []struct {
		path, body string
		status     int
		detail     string
	}{
		{"txt2img", ``, 422, "expected a JSON object"},
		{"txt2img", `{`, 422, "the JSON ends too early"},
		{"txt2img", `null`, 422, "found null"},
		{"txt2img", `[]`, 422, "expected a JSON object"},
		{"txt2img", `{"prompt":7}`, 422, "prompt: expected a string, found 7"},
		{"txt2img", `{"steps":0}`, 422, "steps: expected a whole number from 1 to 1048576, found 0"},
		{"txt2img", `{"steps":1.5}`, 422, "steps"},
		{"txt2img", `{"steps":"many"}`, 422, `steps: expected a number, found "many"`},
		{"txt2img", `{"width":100000}`, 422, "width"},
		{"txt2img", `{"height":-1}`, 422, "height"},
		{"txt2img", `{"cfg_scale":"NaN"}`, 422, "cfg_scale"},
		{"txt2img", `{"cfg_scale":1e999}`, 422, "cfg_scale"},
		{"txt2img", `{"seed":1.5}`, 422, "seed"},
		{"txt2img", `{"seed":1e30}`, 422, "seed"},
		{"txt2img", `{"batch_size":65}`, 422, "batch_size"},
		{"txt2img", `{"batch_size":0}`, 422, "batch_size"},
		{"txt2img", `{"batch_size":33,"n_iter":2}`, 400, "expected at most 64 images, found 66"},
		{"txt2img", `{"override_settings":[]}`, 422, "override_settings: expected an object"},
		{"txt2img", `{"override_settings":{"sd_model_checkpoint":7}}`, 422, "sd_model_checkpoint"},
		{"txt2img", `{"override_settings":{"sd_model_checkpoint":"other"}}`, 404, `model "other" not found`},
		{"txt2img", `{"override_settings":{"sd_model_checkpoint":"absent"}}`, 404, "gomflux pull absent"},
		{"txt2img", `{"prompt":"<lora:style:x>"}`, 400, "expected a scale"},
		{"img2img", `{}`, 400, "init_images: expected an image"},
		{"img2img", `{"init_images":[]}`, 400, "init_images: expected an image"},
		{"img2img", `{"init_images":{}}`, 422, "init_images: expected an array"},
		{"img2img", `{"init_images":["!"]}`, 400, "init_images[0]: expected base64"},
		{"img2img", `{"init_images":["aGVsbG8="]}`, 400, "init_images[0]: "},
		{"img2img", `{"init_images":["http://127.0.0.1/x.png"]}`, 400, "found a http URL, which is not fetched"},
		{"img2img", `{"init_images":["file:///etc/passwd"]}`, 400, "found a file URL"},
		{"img2img", `{"init_images":["data:image/png,x"]}`, 400, "expected a data: URL with base64"},
		{"img2img", `{"init_images":["` + pngFile(401, 400) + `"]}`, 400, "init_images[0]: 401x400: more pixels than the 160000"},
		{"img2img", `{"init_images":["` + pngFile(400, 397) + `","` + file + `"]}`, 400,
			"starts from one image, found 2"},
		{"img2img", `{"init_images":["` + pngFile(400, 400) + `","` + file + `"]}`, 400,
			"init_images[1]: 40x24: more pixels than the 0 "},
		{"img2img", `{"init_images":["` + file + `"],"mask":"!"}`, 400, "mask: expected base64"},
		{"img2img", `{"init_images":["` + file + `"],"mask":"` + maskFile(40, 40) + `"}`, 400, "the same size or proportions"},
		{"img2img", `{"init_images":["` + file + `"],"mask":"` + maskFile(40, 24) + `","mask_blur":-1}`, 422, "mask_blur"},
		{"img2img", `{"init_images":["` + file + `"],"denoising_strength":1.5}`, 422, "denoising_strength: expected a number from 0 to 1"},
		{"img2img", `{"init_images":["` + file + `","` + file + `"]}`, 400, "starts from one image, found 2"},
		{"img2img", `{"init_images":["` + strings.Repeat(`x","`, 16) + `"]}`, 400, "expected at most 16 images, found 17"},
		{"options", `7`, 422, "expected a JSON object"},
		{"options", `{"sd_model_checkpoint":7}`, 422, "sd_model_checkpoint"},
		{"options", `{"sd_model_checkpoint":"other"}`, 404, `model "other" not found`},
		{"options", `{"sd_model_checkpoint":"absent"}`, 404, "gomflux pull absent"},
		{"unknown", `{}`, 404, "Not Found"},
		{"samplers", `{}`, 405, "Method Not Allowed"},
	} {
		_, s := serve(t, &fakeEngine{}, api.Config{LoRAs: testLoRAs, MaxPixels: 40_000})
		got := call(t, s, "POST", prefix+test.path, test.body)
		if got.status != test.status || !strings.Contains(strings.ReplaceAll(string(got.body), `\"`, `"`), test.detail) {
			t.Errorf("%s %.60s: status %d %s, expected %d %s", test.path, test.body, got.status, got.body, test.status, test.detail)
		}
	}
}

// TestEngineErrors checks the errors of the engine, before and while a job runs.
func TestEngineErrors(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		class  string
	}{
		{&engine.FullError{Jobs: 9, Retry: 1500 * time.Millisecond}, 429, "HTTPException"},
		{engine.ErrClosed, 503, "HTTPException"},
		{errs.Requestf("height 45: must be a multiple of 8"), 400, "HTTPException"},
		{errs.NotFound(errors.New("no model")), 404, "HTTPException"},
		{fmt.Errorf("%w for images", gomflux.ErrMemory), 500, "OutOfMemoryError"},
		{errors.New("damaged\xff"), 500, "RuntimeError"},
		{errors.New("the language model wrote nothing"), 500, "RuntimeError"},
		{errs.NotFound(errors.New("model x: the chat template leaves out the text of the last message")), 404, "HTTPException"},
		{errs.Requestf("the chat template refuses the conversation"), 400, "HTTPException"},
	} {
		for _, e := range []*fakeEngine{{err: test.err}, {fail: test.err}} {
			_, s := serve(t, e, api.Config{})
			for path, body := range map[string]string{
				"txt2img": `{"prompt":"a cat"}`, "interrogate": fmt.Sprintf(`{"image":%q}`, pngFile(4, 4)),
			} {
				got := call(t, s, "POST", "/sdapi/v1/"+path, body)
				if got.status != test.status || !strings.Contains(string(got.body), `"error":"`+test.class+`"`) {
					t.Errorf("%s, %v: status %d %s, expected %d %s", path, test.err, got.status, got.body, test.status, test.class)
				}
				if retry := got.header.Get("Retry-After"); (retry == "2") != (test.status == 429) {
					t.Errorf("%s, %v: Retry-After is %q", path, test.err, retry)
				}
			}
		}
	}
}

// An error about the guidance scale has the field and the value that the client sent.
func TestGuidanceError(t *testing.T) {
	for sent, want := range map[string]string{
		`"cfg_scale":7`: "cfg_scale 7: it is distilled",
		`"cfg_scale":1,"distilled_cfg_scale":3.5`: "distilled_cfg_scale 3.5: it is distilled",
		`"steps":2`: "guidance 4: it is distilled",
	} {
		_, s := serve(t, &fakeEngine{fail: errs.Requestf("guidance 4: it is distilled")}, api.Config{})
		got := call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat",`+sent+`,"override_settings":{"sd_model_checkpoint":"dev"}}`)
		if got.status != 400 || !strings.Contains(string(got.body), `"`+want+`"`) {
			t.Errorf("%s: status %d %s, expected %s", sent, got.status, got.body, want)
		}
	}
}

// TestBody checks a body that is too large, and one that ends early.
func TestBody(t *testing.T) {
	h := New(&fakeEngine{}, api.Config{})
	for _, path := range []string{"txt2img", "img2img", "options"} {
		for status, body := range map[int]io.Reader{
			413: strings.NewReader(strings.Repeat(" ", 11)), 400: iotest.ErrReader(io.ErrUnexpectedEOF),
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", prefix+path, nil)
			r.Body = http.MaxBytesReader(w, io.NopCloser(body), 10)
			if h.ServeHTTP(w, r); w.Code != status || r.Pattern != "POST "+prefix+path {
				t.Errorf("%s: status %d, expected %d: %s (pattern %s)", path, w.Code, status, w.Body, r.Pattern)
			}
		}
	}
}

// wait waits until a condition holds.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestProgress follows a job: what progress returns, and interrupt by this and another client.
func TestProgress(t *testing.T) {
	e := &fakeEngine{stop: make(chan struct{})}
	h, s := serve(t, e, api.Config{})
	replies := make(chan reply)
	go func() { replies <- call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat","n_iter":3}`) }()
	wait(t, "a preview", func() bool {
		found, _ := h.running("")
		return found != nil && found.preview.Load() != nil
	})
	p := decode[progress](t, call(t, s, "GET", "/sdapi/v1/progress", ""))
	if p.Progress != 0.01 || p.State.JobCount != 3 || p.State.JobNo != 0 || p.State.SamplingSteps != 8 || p.CurrentImage == nil {
		t.Fatalf("progress %+v", p)
	}
	data, _ := base64.StdEncoding.DecodeString(*p.CurrentImage)
	if img, err := png.Decode(bytes.NewReader(data)); err != nil || img.Bounds().Dx() != 4 {
		t.Errorf("preview: %v", err)
	}
	if p := decode[progress](t, call(t, s, "GET", "/sdapi/v1/progress?skip_current_image=true", "")); p.CurrentImage != nil {
		t.Error("the preview was not skipped")
	}
	other, _ := http.NewRequest("POST", s.URL+"/sdapi/v1/interrupt", nil)
	other.Header.Set("X-Client", "other")
	ok(t, send(t, other))
	e.stop <- struct{}{}
	wait(t, "the second image", func() bool { _, s := h.running(""); return s.Image == 1 })
	ok(t, call(t, s, "POST", "/sdapi/v1/interrupt", ""))
	_, info := readMade(t, <-replies, 1)
	if len(info.Warnings) != 1 || info.Warnings[0] != "interrupted after 1 of 3 images" {
		t.Errorf("warnings %q", info.Warnings)
	}
	idle(t, call(t, s, "GET", "/sdapi/v1/progress", ""))
	if len(h.runs) != 0 {
		t.Errorf("%d clients have runs", len(h.runs))
	}
	// without a finished image
	go func() { replies <- call(t, s, "POST", "/sdapi/v1/txt2img", `{"prompt":"a cat"}`) }()
	wait(t, "the job", func() bool { found, _ := h.running(""); return found != nil })
	ok(t, call(t, s, "POST", "/sdapi/v1/interrupt", ""))
	got := decode[map[string]any](t, <-replies)
	text, _ := got["info"].(string)
	for _, want := range []string{
		`"prompt":"a cat"`, `"all_prompts":[]`, `"all_seeds":[]`, `"width":1024`, `"interrupted after 0 of 1 images"]`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("info %s, expected %s", text, want)
		}
	}
	if images, ok := got["images"].([]any); !ok || len(images) > 0 {
		t.Errorf("images %v, expected an empty list", got["images"])
	}
}

// A progress is the response of progress.
type progress struct {
	Progress     float64
	ETARelative  float64 `json:"eta_relative"`
	CurrentImage *string `json:"current_image"`
	TextInfo     *string
	State        struct {
		JobCount      int `json:"job_count"`
		JobNo         int `json:"job_no"`
		SamplingStep  int `json:"sampling_step"`
		SamplingSteps int `json:"sampling_steps"`
	}
}

// described returns what a client reads.
func described(t *testing.T, response any) (p progress) {
	t.Helper()
	text, err := json.Marshal(response)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestQueued checks progress and interrupt of a job that waits, next to one that runs.
func TestQueued(t *testing.T) {
	h := New(&fakeEngine{}, api.Config{})
	job := func(state engine.State) *fakeJob {
		ctx, cancel := context.WithCancel(t.Context())
		return &fakeJob{ctx: ctx, cancel: cancel, status: engine.Status{State: state, Images: 1, Model: "base", Left: 3 * time.Second}}
	}
	waiting, loading, ended := job(engine.Queued), job(engine.Loading), job(engine.Done)
	r, _ := http.NewRequest("GET", "/", nil)
	h.begin("", ended)
	if p := described(t, h.progress(r)); p.State.JobCount != 0 {
		t.Errorf("ended: %+v", p)
	}
	h.begin("", waiting)
	p := described(t, h.progress(r))
	if p.Progress != 0 || p.State.JobCount != 1 || p.TextInfo == nil || *p.TextInfo != "Waiting" || p.ETARelative != 3 {
		t.Errorf("waiting: %+v", p)
	}
	h.begin("", loading)
	if p := described(t, h.progress(r)); p.TextInfo == nil || *p.TextInfo != "Loading base" {
		t.Errorf("loading: %+v", p)
	}
	h.interrupt(r)
	if loading.ctx.Err() == nil || waiting.ctx.Err() != nil {
		t.Error("another job than the one that is loading was canceled")
	}
}

// TestGone checks that a client that goes away ends its job.
func TestGone(t *testing.T) {
	e := &fakeEngine{stop: make(chan struct{})}
	h, s := serve(t, e, api.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/sdapi/v1/txt2img", strings.NewReader(`{"prompt":"a cat"}`))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if response, err := http.DefaultClient.Do(r); err == nil {
			response.Body.Close()
		}
	}()
	wait(t, "the job", func() bool { found, _ := h.running(""); return found != nil })
	cancel()
	<-done
	select {
	case <-e.jobs[0].done:
	case <-time.After(10 * time.Second):
		t.Fatal("the job was not canceled")
	}
	wait(t, "the end of the run", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.runs) == 0
	})
}

// TestDistilled checks which models use their own steps and guidance scale.
func TestDistilled(t *testing.T) {
	for d, expected := range map[gomflux.Defaults]bool{
		{Steps: 4, Guidance: 0}: true, {Steps: 8, Guidance: 3}: true, {Steps: 28, Guidance: 1}: true, {}: true, // not known
		{Steps: 12, Guidance: 2}: false, {Steps: 28, Guidance: 3.5}: false, {Steps: 50, Guidance: 4}: false,
	} {
		if got := distilled(d); got != expected {
			t.Errorf("%+v: %v, expected %v", d, got, expected)
		}
	}
}

// TestNewestPreview checks that a newer preview replaces one that was asked for.
func TestNewestPreview(t *testing.T) {
	var r run
	seen := map[string]bool{}
	for side := range 3 {
		r.show(image.NewRGBA(image.Rect(0, 0, side+1, 1)))
		seen[*r.preview.Load()] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d different previews, expected 3", len(seen))
	}
}

// TestUnload checks unload-checkpoint, and that it answers an empty object.
func TestUnload(t *testing.T) {
	e := &fakeEngine{}
	_, s := serve(t, e, api.Config{})
	if got := call(t, s, "POST", "/sdapi/v1/unload-checkpoint", ""); strings.TrimSpace(string(got.body)) != "{}" || e.unloaded != 1 {
		t.Errorf("%s, and unloaded %d times", got.body, e.unloaded)
	}
}

// TestLongPrompt checks that an image whose settings cannot be written is returned without them.
func TestLongPrompt(t *testing.T) {
	_, s := serve(t, &fakeEngine{}, api.Config{})
	body := `{"prompt":"` + strings.Repeat("x", 300<<10) + `"}`
	if _, info := readMade(t, call(t, s, "POST", "/sdapi/v1/txt2img", body), 1); info.Infotexts[0] != "" {
		t.Errorf("infotext %.40q", info.Infotexts[0])
	}
}

// FuzzRequest checks that the parsers fail cleanly or return values within their limits.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		sillyTavernBody, `{"seed":"-1","steps":1e2,"prompt":"<lora:style:0.5:unet=1>"}`, `{"init_images":["aGVsbG8="],"mask":""}`,
		`{"init_images":["data:image/png;base64,` + pngFile(2, 2) + `"]}`, `{"override_settings":{"sd_model_checkpoint":"base"}}`, `null`,
	} {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	h := New(&fakeEngine{}, api.Config{LoRAs: testLoRAs, MaxPixels: 1 << 20})
	f.Fuzz(func(t *testing.T, body []byte, img2img bool) {
		r, err := parse(body, img2img)
		if err != nil {
			if s := api.Status(err); s != 400 && s != 422 {
				t.Errorf("status %d: %v", s, err)
			}
			return
		}
		p, err := h.plan(t.Context(), r)
		if err != nil {
			if s := api.Status(err); s != 400 && s != 404 {
				t.Errorf("status %d: %v", s, err)
			}
			return
		}
		o := p.Options
		switch {
		case len(p.Seeds) < 1 || len(p.Seeds) > maxImages || len(p.LoRAs) > 32 || o.Steps < 0 || o.Steps > picture.MaxCount:
			t.Errorf("%+v", p.Request)
		case o.Width%16 != 0 || o.Height%16 != 0 || o.ImageStrength < 0 || o.ImageStrength >= 1:
			t.Errorf("%+v", o)
		case o.Guidance != nil && (math.IsNaN(*o.Guidance) || math.IsInf(*o.Guidance, 0)):
			t.Errorf("guidance %v", *o.Guidance)
		}
		if o.Width*o.Height > 1<<20 { // which the server refuses
			return
		}
		if _, err := p.response([]*engine.Picture{{Seed: p.Seeds[0], Result: fakeResult(p.Request, p.Seeds[0])}}); err != nil {
			t.Error(err)
		}
	})
}
