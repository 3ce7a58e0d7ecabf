package picture

import (
	"bytes"
	"errors"
	"html"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const euler = "flow_match_euler_discrete"

// foreign are settings of other programs in their formats, as their writers have the fields.
var foreign = []struct {
	name, text string
	source     Source
	want       Settings
	left       string // fields and values that are not used
}{
	{
		"SwarmUI (T2IParamInput.GenMetadataObject), FLUX.1",
		`{"sui_image_params": {"prompt": "a cat", "negativeprompt": "", "model": "Flux/flux1-dev-fp8", "seed": 5, "steps": 25,
		"cfgscale": 1.0,
		"fluxguidancescale": 2.5, "width": 512, "height": 768, "sampler": "euler", "scheduler": "normal", "sigmashift": 3.0,
		"loras": ["styles/ink", "wash.safetensors"], "loraweights": ["0.7", "-1"], "initimagecreativity": 0.75, "swarm_version": "0.9.6.1"},
		"sui_extra_data": {"date": "2026-01-02"}}`,
		SourceSwarmUI,
		Settings{Generator: "SwarmUI 0.9.6.1", Model: "Flux/flux1-dev-fp8", Prompt: "a cat", Seed: 5, Steps: 25, Guidance: 2.5,
			GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 768, Width: 512, Scheduler: euler, ImageStrength: 0.25,
			LoRAs: []LoRA{{Path: "ink", Scale: 0.7}, {Path: "wash", Scale: -1}}},
		"sigmashift=3.0 scheduler=normal",
	},
	{
		"SwarmUI, with classifier-free guidance",
		`{"sui_image_params": {"prompt": "a cat <lora:ink:0.5>", "seed": -1, "steps": 9, "cfgscale": 4, "width": 64, "height": 32,
		"refinerupscale": 1.5, "refinermethod": "PostApply"}}`,
		SourceSwarmUI,
		Settings{Generator: "SwarmUI", Prompt: "a cat", Steps: 9, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 4, Height: 48, Width: 96,
			LoRAs: []LoRA{{Path: "ink", Scale: 0.5}}},
		"refinermethod=PostApply",
	},
	{
		"InvokeAI (core_metadata), FLUX.1",
		`{"generation_mode": "flux_img2img", "positive_prompt": "a cat", "negative_prompt": null, "guidance": 4, "steps": 30, "seed": 3,
		"width": 64, "height": 48, "scheduler": "heun", "strength": 0.6, "model": {"key": "k", "hash": "blake3:1", "name": "FLUX Dev",
		"base": "flux", "type": "main"}, "loras": [{"model": {"key": "l", "name": "ink"}, "weight": 0.5}, {"lora": {"model_name": "old"},
		"weight": 2}], "vae": {"name": "ae"}, "clip_skip": 0, "app_version": "6.14.2"}`,
		SourceInvokeAI,
		Settings{Generator: "InvokeAI 6.14.2", Model: "FLUX Dev", Prompt: "a cat", Seed: 3, Steps: 30, Guidance: 4,
			GuidanceUnit: DistilledCFGScale, Height: 48, Width: 64, Scheduler: "flow_match_heun_discrete", ImageStrength: 0.4,
			LoRAs: []LoRA{{Path: "ink", Scale: 0.5}, {Path: "old", Scale: 2}}},
		`vae={"name": "ae"}`,
	},
	{
		"InvokeAI, Z-Image",
		`{"generation_mode": "z_image_txt2img", "positive_prompt": "a cat", "cfg_scale": 1, "steps": 8, "seed": 3, "model": {"name": "z"}}`,
		SourceInvokeAI,
		Settings{Generator: "InvokeAI", Model: "z", Prompt: "a cat", Seed: 3, Steps: 8, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1},
		"",
	},
	{
		"Fooocus (FooocusMetadataParser)",
		`{"base_model": "juggernaut", "base_model_hash": "1", "full_prompt": ["a cat", "cinematic"], "guidance_scale": 4.0,
		"lora_combined_1": "ink : 0.1", "loras": [["ink", 0.1, "abc"]], "metadata_scheme": "fooocus", "negative_prompt": "dog",
		"prompt": "a cat", "resolution": "(1152, 896)", "sampler": "dpmpp_2m", "scheduler": "karras", "seed": "12", "sharpness": 2.0,
		"steps": 30, "version": "Fooocus v2.5.5"}`,
		SourceFooocus,
		Settings{Generator: "Fooocus v2.5.5", Model: "juggernaut", Prompt: "a cat", NegativePrompt: "dog", Seed: 12, Steps: 30, Guidance: 4,
			GuidanceUnit: CFGScale, Height: 896, Width: 1152, LoRAs: []LoRA{{Path: "ink", Scale: 0.1}}},
		"sharpness=2.0 sampler=dpmpp_2m scheduler=karras",
	},
	{
		"Fooocus, as AUTOMATIC1111 (A1111MetadataParser)",
		"a cat\nNegative prompt: dog\nSteps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 12, Size: 64x32, CFG scale: 4.0, Model: juggernaut, " +
			"Scheduler: karras, Raw prompt: a cat, Lora hashes: \"ink: abc, wash: def\", Lora weights: \"ink: 0.1, wash: 1\", " +
			"Version: Fooocus v2.5.5",
		SourceParameters,
		Settings{Generator: "Fooocus v2.5.5", Model: "juggernaut", Prompt: "a cat", NegativePrompt: "dog", Seed: 12, Steps: 30, Guidance: 4,
			GuidanceUnit: CFGScale, Height: 32, Width: 64, LoRAs: []LoRA{{Path: "ink", Scale: 0.1}, {Path: "wash", Scale: 1}}},
		"Sampler=DPM++ 2M SDE Karras Scheduler=karras",
	},
	{
		"AUTOMATIC1111 with a second pass, and a LoRA that only its hash names",
		"a cat\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x768, Denoising strength: 0.4, Clip skip: 2, " +
			"Hires upscale: 2, " +
			"Hires upscaler: Latent, Lora hashes: \"ink: abc\", Civitai resources: [{\"type\":\"lora\",\"weight\":1}], Version: v1.10.1",
		SourceParameters,
		Settings{Generator: "v1.10.1", Prompt: "a cat", Seed: 1, Steps: 20, Guidance: 7, GuidanceUnit: CFGScale, Height: 1536, Width: 1024},
		"Clip skip=2 Hires upscaler=Latent Lora hashes=ink: abc Sampler=Euler a Denoising strength=0.4",
	},
	{
		"SD.Next, whose scale is that of the model's pipeline",
		"a cat\nNegative prompt: \nSteps: 8, Size: 64x32, Sampler: Euler, Seed: 1, CFG scale: 4.0, CFG true: 2, App: SD.Next, " +
			"Version: abc, " +
			"Pipeline: ZImagePipeline, Operations: txt2img",
		SourceParameters,
		Settings{Generator: "abc", Prompt: "a cat", Seed: 1, Steps: 8, Guidance: 4, Height: 32, Width: 64, Scheduler: euler},
		"CFG true=2",
	},
	{
		"SD.Next without guidance",
		"a cat\nSteps: 8, Seed: 1, CFG scale: 1.0, App: SD.Next",
		SourceParameters,
		Settings{Prompt: "a cat", Seed: 1, Steps: 8, Guidance: 1, GuidanceUnit: CFGScale},
		"",
	},
	{
		"Forge Neo, whose shift is the noise schedule's",
		"a cat\nSteps: 9, Sampler: Euler, Schedule type: Beta, CFG scale: 1, Shift: 9, Seed: 1, Size: 64x32, Version: neo",
		SourceParameters,
		Settings{Generator: "neo", Prompt: "a cat", Seed: 1, Steps: 9, Guidance: 1, GuidanceUnit: CFGScale, Height: 32, Width: 64,
			Scheduler: euler},
		"Shift=9 Schedule type=Beta",
	},
	{
		"Draw Things (ImageConverter.imageData): the scale is the distilled one",
		`{"c": "a cat & <b>", "uc": "", "model": "flux_1_dev_q8p.ckpt", "sampler": "Euler A Trailing", "scale": 3.5, "seed": 9,
		"size": "64x32",
		"steps": 4, "strength": 0.7, "seed_mode": "Scale Alike", "shift": 3.16, "lora": [{"model": "ink_lora_f16.ckpt", "weight": 0.4}],
		"v2": {"guidanceEmbed": 2.0, "speedUpWithGuidanceEmbed": true}}`,
		SourceDrawThings,
		Settings{Generator: "Draw Things", Model: "flux_1_dev_q8p.ckpt", Prompt: "a cat & <b>", Seed: 9, Steps: 4, Guidance: 3.5,
			GuidanceUnit: CFGScale, Height: 32, Width: 64, ImageStrength: 0.3, LoRAs: []LoRA{{Path: "ink_lora_f16.ckpt", Scale: 0.4}}},
		"shift=3.16 sampler=Euler A Trailing",
	},
	{
		"Draw Things, with both",
		`{"c": "a cat", "scale": 2, "steps": 4, "strength": 1, "v2": {"guidanceEmbed": 3, "speedUpWithGuidanceEmbed": false}}`,
		SourceDrawThings,
		Settings{Generator: "Draw Things", Prompt: "a cat", Steps: 4, Guidance: 3, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 2},
		"",
	},
	{
		"ComfyUI: KSampler, with LoRAs, a switch and a number that Python alone has as JSON",
		`{"1": {"class_type": "KSampler", "inputs": {"seed": ["9", 0], "steps": 4, "cfg": 3.5, "sampler_name": "euler", "scheduler": "beta",
		"denoise": 1, "model": ["2", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}, "is_changed": [NaN]},
		"2": {"class_type": "LoraLoaderModelOnly", "inputs": {"lora_name": "z\\ink.safetensors", "strength_model": 0.6, "model": ["3", 0]}},
		"3": {"class_type": "LoraLoader", "inputs": {"lora_name": "wash.safetensors", "strength_model": 1, "strength_clip": 1,
		"model": ["4", 0]}},
		"4": {"class_type": "ModelSamplingAuraFlow", "inputs": {"shift": 3, "model": ["8", 0]}},
		"5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": ["11", 0], "height": 32, "batch_size": 2}},
		"6": {"class_type": "CLIPTextEncode", "inputs": {"text": ["10", 0], "clip": ["12", 0]}},
		"7": {"class_type": "CLIPTextEncode", "inputs": {"text": "dog", "clip": ["12", 0]}},
		"8": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "z.safetensors"}},
		"9": {"class_type": "Reroute", "inputs": {"": ["13", 0]}}, "13": {"class_type": "PrimitiveInt", "inputs": {"value": 77}},
		"10": {"class_type": "StringConcatenate", "inputs": {"string_a": "a", "string_b": "cat", "delimiter": " "}},
		"11": {"class_type": "PrimitiveInt", "inputs": {"value": 64}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI", Model: "z.safetensors", Prompt: "a cat", NegativePrompt: "dog", Seed: 77, Steps: 4,
			GuidanceUnit: DistilledCFGScale, TrueCFGScale: 3.5,
			Height: 32, Width: 64, Scheduler: euler, LoRAs: []LoRA{{Path: "wash", Scale: 1}, {Path: "ink", Scale: 0.6}}},
		"ModelSamplingAuraFlow 4 shift=3 EmptySD3LatentImage 5 batch_size=2 scheduler=beta",
	},
	{
		"ComfyUI: SamplerCustomAdvanced",
		`{"1": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["2", 0], "guider": ["3", 0], "sampler": ["4", 0],
		"sigmas": ["5", 0],
		"latent_image": ["6", 0]}}, "2": {"class_type": "RandomNoise", "inputs": {"noise_seed": 8}},
		"3": {"class_type": "BasicGuider", "inputs": {"model": ["7", 0], "conditioning": ["8", 0]}},
		"4": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "dpmpp_2m"}},
		"5": {"class_type": "BasicScheduler", "inputs": {"scheduler": "simple", "steps": 20, "denoise": 1, "model": ["7", 0]}},
		"6": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 32, "batch_size": 1}},
		"7": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux1-dev.safetensors"}},
		"8": {"class_type": "CLIPTextEncodeFlux", "inputs": {"clip_l": "cat", "t5xxl": "a cat", "guidance": 2.5, "clip": ["9", 0]}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI", Model: "flux1-dev.safetensors", Prompt: "a cat", Seed: 8, Steps: 20, Guidance: 2.5,
			GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 32, Width: 64},
		"sampler_name=dpmpp_2m",
	},
	{
		"ComfyUI: an edit, from an image, and a second pass",
		`{"1": {"class_type": "KSampler", "inputs": {"seed": 1, "steps": 4, "cfg": 1, "sampler_name": "euler", "scheduler": "simple",
		"denoise": 0.75, "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0]}},
		"2": {"class_type": "TextEncodeQwenImageEditPlus", "inputs": {"prompt": "a cat", "image1": ["5", 0]}},
		"3": {"class_type": "TextEncodeQwenImageEditPlus", "inputs": {"prompt": "", "image1": ["5", 0]}},
		"4": {"class_type": "VAEEncode", "inputs": {"pixels": ["5", 0]}}, "5": {"class_type": "LoadImage", "inputs": {"image": "in.png"}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI", Prompt: "a cat", Seed: 1, Steps: 5, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1,
			Scheduler: euler, ImageStrength: 0.25}, // of which the last 4 run
		"LoadImage 5=in.png",
	},
	{
		"ComfyUI: from a scaled image with a mask, in the last steps",
		`{"1": {"class_type": "SamplerCustomAdvanced", "inputs": {"guider": ["2", 0], "sigmas": ["3", 1], "latent_image": ["5", 0]}},
		"2": {"class_type": "CFGGuider", "inputs": {"positive": ["9", 0], "negative": ["10", 0], "cfg": 2}},
		"3": {"class_type": "SplitSigmas", "inputs": {"sigmas": ["4", 0], "step": 29}},
		"4": {"class_type": "Flux2Scheduler", "inputs": {"steps": 50, "width": 64, "height": 32}},
		"5": {"class_type": "RepeatLatentBatch", "inputs": {"samples": ["6", 0], "amount": 2}},
		"6": {"class_type": "SetLatentNoiseMask", "inputs": {"samples": ["7", 0], "mask": ["12", 0]}},
		"7": {"class_type": "VAEEncode", "inputs": {"pixels": ["8", 0]}},
		"8": {"class_type": "ImageScale", "inputs": {"image": ["11", 0], "width": 64, "height": 32, "crop": "disabled"}},
		"9": {"class_type": "ReferenceLatent", "inputs": {"conditioning": ["13", 0], "latent": ["7", 0]}},
		"10": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["13", 0]}},
		"11": {"class_type": "LoadImage", "inputs": {"image": "in.png"}},
		"12": {"class_type": "InvertMask", "inputs": {"mask": ["14", 0]}},
		"13": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat"}},
		"14": {"class_type": "GrowMask", "inputs": {"mask": ["11", 1]}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI", Prompt: "a cat", Steps: 50, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 2,
			ImageStrength: math.Nextafter(0.58, 1)}, // of which the last 21 run
		"GrowMask 14=changes an image LoadImage 11=in.png",
	},
	{
		"ComfyUI: two samplers, and a prompt of a language model",
		`{"1": {"class_type": "KSamplerAdvanced", "inputs": {"noise_seed": 1, "steps": 4, "cfg": 1, "start_at_step": 0, "end_at_step": 2,
		"positive": ["3", 0], "latent_image": ["4", 0]}}, "2": {"class_type": "KSamplerAdvanced", "inputs": {"noise_seed": 2, "steps": 4,
		"start_at_step": 2, "end_at_step": 10000, "positive": ["3", 0], "latent_image": ["1", 0]}},
		"3": {"class_type": "CLIPTextEncode", "inputs": {"text": ["5", 0]}}, "5": {"class_type": "TextGenerate",
		"inputs": {"max_length": 3}},
		"4": {"class_type": "EmptyFlux2LatentImage", "inputs": {"width": 64, "height": 32, "batch_size": 1}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI", Seed: 1, Steps: 4, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 32, Width: 64},
		"KSamplerAdvanced 2=samples after the first one CLIPTextEncode 3 text=comes from another node KSamplerAdvanced 1 end_at_step=2",
	},
	{
		"ComfyUI: nodes in a circle, and no sampler",
		`{"1": {"class_type": "Reroute", "inputs": {"a": ["2", 0]}}, "2": {"class_type": "Reroute", "inputs": {"a": ["1", 0]}},
		"3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}}}`,
		SourceComfyUI,
		Settings{Generator: "ComfyUI"},
		"nodes=0 known samplers, not one of them certain",
	},
}

// Each format in each of the places where programs write it.
func TestForeign(t *testing.T) {
	for _, c := range foreign {
		xmp := `<x:xmpmeta><exif:UserComment><rdf:Alt><rdf:li xml:lang="x-default">` + html.EscapeString(c.text) +
			`</rdf:li></rdf:Alt></exif:UserComment></x:xmpmeta>`
		chunk := func(key, text string) []byte { return pngWith(t, true, appendPNGText(nil, key, text)) }
		files := map[string][]byte{"JPEG": jpegWith(t, appendEXIF([]byte(exifPrefix), "", c.text)), "sidecar": []byte("\ufeff" + c.text)}
		switch c.source {
		case SourceInvokeAI:
			files = map[string][]byte{"PNG": chunk("invokeai_metadata", c.text), "sidecar": files["sidecar"]}
		case SourceDrawThings:
			files = map[string][]byte{"PNG": chunk(xmpKey, xmp), "JPEG": jpegWith(t, []byte(xmpPrefix+xmp))}
		case SourceComfyUI:
			exif := appendEXIF([]byte(exifPrefix), "prompt:"+c.text, "")
			files = map[string][]byte{"PNG": chunk("prompt", c.text), "EXIF": jpegWith(t, exif)}
		case SourceParameters:
			delete(files, "sidecar")
			fallthrough
		default:
			files["PNG"] = chunk("parameters", c.text)
		}
		for where, data := range files {
			f, err := ReadSettings(bytes.NewReader(data))
			if err != nil {
				t.Errorf("%s: %s: %v", c.name, where, err)
				continue
			}
			var left []string
			for _, l := range f.NotUsed {
				left = append(left, l.Field+"="+l.Value)
			}
			if f.Source != c.source || !reflect.DeepEqual(f.Settings, c.want) || strings.Join(left, " ") != c.left {
				t.Errorf("%s: %s: got %s settings\n%+v, want\n%+v\nnot used: %s, want %s", c.name, where, f.Source, f.Settings, c.want,
					strings.Join(left, " "), c.left)
			}
		}
	}
	_, err := ReadSettings(bytes.NewReader(pngWith(t, false, appendPNGText(nil, "workflow", `{"nodes":[],"links":[]}`))))
	if !errors.Is(err, ErrNoSettings) || !strings.Contains(err.Error(), "ComfyUI") {
		t.Error(err)
	}
}

// jpegWith is a JPEG file with a segment APP1.
func jpegWith(t testing.TB, segment []byte) []byte {
	data := encode(t, JPEG, nil)
	return bytes.Join([][]byte{data[:2], appendSegment(nil, markerAPP1, segment), data[2:]}, nil)
}

// LoRAs are found by their file names, or by those that Draw Things' importer makes of them.
func TestNamedLoRAs(t *testing.T) {
	known := []string{"Oil", "me/loras/Ink & Wash-v1.5.safetensors"}
	for name, want := range map[string]string{
		"OIL": "Oil", "ink & wash-V1.5": known[1], "ink___wash_v1.5_lora_f16.ckpt": known[1], "ink_lora_f16.ckpt": "ink_lora_f16.ckpt",
	} {
		if l := (LoRA{Path: name}).Named(known); l.Path != want {
			t.Errorf("%s: got %s, want %s", name, l.Path, want)
		}
	}
}

// Easy Diffusion's own writer made these files.
func TestEasyDiffusionFiles(t *testing.T) {
	want := Settings{
		Generator: "Easy Diffusion", Model: "flux1-dev", Prompt: "a cät, “sitting”", NegativePrompt: "dog", Seed: 42, Steps: 4,
		Guidance: 3, GuidanceUnit: DistilledCFGScale, TrueCFGScale: 1, Height: 48, Width: 64, Scheduler: euler, ImageStrength: 0.25,
		LoRAs: []LoRA{{Path: "ink", Scale: 0.5}, {Path: "wash", Scale: -1}},
	}
	for _, ext := range []string{"png", "jpg", "webp", "metadata.json"} {
		f, err := ReadSettingsFile(filepath.Join("testdata", "easydiffusion."+ext))
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Source != SourceEasyDiffusion || !reflect.DeepEqual(f.Settings, want) ||
			!reflect.DeepEqual(f.NotUsed, []Leftover{{"use_vae_model", "ae"}}) {
			t.Errorf("%s: got %s settings %+v, want %+v, not used %v", ext, f.Source, f.Settings, want, f.NotUsed)
		}
	}
}

// mflux's scales for families that diffusers counts in another way.
func TestMfluxGuidance(t *testing.T) {
	for model, want := range map[string]Settings{
		`"krea/Krea-2-Raw","guidance":4.5`:      {Guidance: 4.5, GuidanceUnit: CFGScale},
		`"Tongyi-MAI/Z-Image","guidance":4`:     {Guidance: 4},
		`"Tongyi-MAI/Z-Image","guidance":1`:     {}, // is off
		`"z-image-turbo","guidance":null`:       {},
		`"FLUX.1-Krea-dev","guidance":4.5`:      {Guidance: 4.5},
		`"qwen-image","guidance":1,"cfg_end":1`: {Guidance: 1},
	} {
		f, err := ReadSettings(strings.NewReader(
			`{"mflux_version":"0.24.0","redux_image_paths":["a.png"],"model":` + model + `}`))
		if err != nil || f.Settings.Guidance != want.Guidance || f.Settings.GuidanceUnit != want.GuidanceUnit {
			t.Errorf("%s: %+v, %v", model, f, err)
			continue
		}
		if len(f.NotUsed) == 0 || f.NotUsed[len(f.NotUsed)-1] != (Leftover{"redux_image_paths", `["a.png"]`}) {
			t.Errorf("%s: not used %v", model, f.NotUsed)
		}
	}
}
