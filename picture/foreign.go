package picture

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Leftover is a setting of another program that was not taken over.
type Leftover struct {
	Field string `json:"field"` // as in the file
	Value string `json:"value"`
}

// A program is another program whose files have their settings as a JSON object.
type program struct {
	source Source
	name   string   // of the program, before its version
	inside string   // key of the object with the settings, "" for the whole object
	marks  []string // keys that tell the object from others
	// fields maps keys, which can have a dot, to fields of Settings or to the names of reading.set.
	fields map[string]string
	// quiet are keys without effect on the image, or whose effect is in other keys.
	quiet []string
}

// programs are the programs, in the order in which they are tried. Their scales of classifier-free
// guidance count from 1, and their strengths are parts of the noise.
var programs = []*program{{
	source: SourceSwarmUI, name: "SwarmUI", inside: "sui_image_params", marks: []string{"prompt"},
	fields: map[string]string{
		"prompt": "prompt", "negativeprompt": "negative_prompt", "model": "model", "seed": "seed", "steps": "steps", "width": "width",
		"height": "height", "cfgscale": "cfg", "fluxguidancescale": "distilled", "sampler": "sampler", "scheduler": "schedule",
		"initimagecreativity": "denoising", "swarm_version": "generator", "loras": "loras", "loraweights": "weights",
		"refinerupscale": "upscale",
	},
	quiet: []string{"date", "generation_time", "nopreviews", "wildcardseed", "aspectratio", "images", "imageformat", "donotsave",
		"personalnote", "automaticvae", "original_prompt", "used_wildcards", "used_embeddings", "sidelength"},
}, {
	source: SourceInvokeAI, name: "InvokeAI", marks: []string{"positive_prompt"},
	fields: map[string]string{
		"positive_prompt": "prompt", "negative_prompt": "negative_prompt", "model.name": "model", "model.model_name": "model",
		"seed": "seed", "steps": "steps", "width": "width", "height": "height", "cfg_scale": "cfg", "guidance": "distilled",
		"scheduler": "sampler", "strength": "denoising", "app_version": "generator", "loras": "loras",
	},
	quiet: []string{"model", "generation_mode", "rand_device", "canvas_v2_metadata"},
}, {
	source: SourceFooocus, name: "Fooocus", marks: []string{"prompt", "base_model", "guidance_scale"},
	fields: map[string]string{
		"prompt": "prompt", "negative_prompt": "negative_prompt", "base_model": "model", "seed": "seed", "steps": "steps",
		"resolution": "size", "guidance_scale": "cfg", "sampler": "sampler", "scheduler": "schedule", "version": "generator",
		"loras": "loras",
	},
	quiet: []string{"full_prompt", "full_negative_prompt", "base_model_hash", "refiner_model_hash", "metadata_scheme", "created_by",
		"lora_combined_1", "lora_combined_2", "lora_combined_3", "lora_combined_4", "lora_combined_5"},
}, {
	source: SourceFooocus, name: "RuinedFooocus", marks: []string{"Prompt", "base_model_name"},
	fields: map[string]string{
		"Prompt": "prompt", "Negative": "negative_prompt", "base_model_name": "model", "seed": "seed", "steps": "steps", "width": "width",
		"height": "height", "cfg": "cfg", "sampler_name": "sampler", "scheduler": "schedule", "software": "generator",
	},
	quiet: []string{"base_model_hash"},
}, easyDiffusion, {
	source: SourceDrawThings, name: "Draw Things", marks: []string{"c", "scale"},
	fields: map[string]string{
		"c": "prompt", "uc": "negative_prompt", "model": "model", "seed": "seed", "steps": "steps", "size": "size", "scale": "cfg",
		"v2.guidanceEmbed": "embed", "v2.speedUpWithGuidanceEmbed": "embedded", "sampler": "sampler", "strength": "denoising",
		"lora": "loras",
	},
	quiet: []string{"v2", "seed_mode", "profile", "tiled_decoding", "tiled_diffusion"},
}}

var easyDiffusion = &program{
	source: SourceEasyDiffusion, name: "Easy Diffusion", marks: []string{"prompt", "num_inference_steps"},
	fields: map[string]string{
		"prompt": "prompt", "negative_prompt": "negative_prompt", "use_stable_diffusion_model": "model", "seed": "seed",
		"num_inference_steps": "steps", "width": "width", "height": "height", "guidance_scale": "cfg",
		"distilled_guidance_scale": "distilled", "sampler_name": "sampler", "scheduler_name": "schedule", "prompt_strength": "denoising",
		"use_lora_model": "loras", "lora_alpha": "weights",
	},
}

// parametersProgram has the fields of parameters texts.
var parametersProgram = &program{
	source: SourceParameters,
	fields: map[string]string{
		"Steps": "steps", "Seed": "seed", "Size": "size", "Model": "model", "Unet": "model", "Version": "generator", "CFG scale": "cfg",
		"Distilled CFG Scale": "distilled", "Guidance": "distilled", "Denoising strength": "denoising", "Sampler": "sampler",
		"Schedule type": "schedule", "Scheduler": "schedule", "Hires upscale": "upscale", "Hires resize": "final size",
		"Hires size": "final size", "App": "app", "Mask blur": "mask_blur",
	},
	quiet: []string{"Model hash", "VAE hash", "Hashes", "Lora hashes", "Index", "Batch", "User", "RNG", "Pipeline", "Parser", "Operations",
		"SDCPP", "Raw prompt", "Raw negative prompt", "Created Date", "Generation time", "Civitai resources", "Civitai metadata",
		"Step cache", "Sigmas", "Guidance interval", "CFG normalization", "CFG truncation",
		"Mask mode", "Inpaint area", "Masked area padding", "Expand", "Paste back"},
}

// samplers maps samplers of other programs to schedulers, and schedules has the noise schedules that are
// those of the models, in lower case.
var (
	samplers  = map[string]string{"euler": "flow_match_euler_discrete", "heun": "flow_match_heun_discrete"}
	schedules = []string{"", "automatic", "simple", "discrete", "default"}
)

// A reading collects the settings of another program.
type reading struct {
	program *program
	values  map[string]string // by the names that fields has
	keys    map[string]string // of the file, by the same names
	loras   []LoRA
	left    []Leftover
}

func newReading(p *program) *reading {
	return &reading{program: p, values: map[string]string{}, keys: map[string]string{}}
}

// read adds a value of the file, as text.
func (r *reading) read(key, value string) {
	switch name := r.program.fields[key]; {
	case name != "":
		r.values[name], r.keys[name] = value, key
	case !slices.Contains(r.program.quiet, key):
		r.leave(key, value)
	}
}

// leave adds a value that is not taken over, unless it stands for something that is off.
func (r *reading) leave(key, value string) {
	switch strings.ToLower(value) {
	case "", "none", "null", "false", "[]", "{}", `""`, "-1", "inf", "undefined":
		return
	}
	n, err := strconv.ParseFloat(value, 64)
	lower := strings.ReplaceAll(strings.ToLower(key), "_", " ")
	if err == nil && (n == 0 || n == 1 && (lower == "clip skip" || strings.HasSuffix(lower, "shift") || lower == "subseed strength")) {
		return
	}
	r.left = append(r.left, Leftover{key, show(json.RawMessage(value))})
}

// take returns the value of a name, and removes it.
func (r *reading) take(name string) string {
	v := r.values[name]
	delete(r.values, name)
	return v
}

// number takes the value of a name if it is a finite number.
func (r *reading) number(name string) (x float64, ok bool) {
	x, err := strconv.ParseFloat(r.values[name], 64)
	if ok = err == nil && !math.IsNaN(x) && !math.IsInf(x, 0); ok {
		r.take(name)
	}
	return x, ok
}

func (r *reading) set(name string, x float64) {
	r.values[name] = strconv.FormatFloat(x, 'g', -1, 64)
}

// twoNumbers matches a size: 64x32, or (64, 32).
var twoNumbers = regexp.MustCompile(`^\D?(\d+)\D+(\d+)\D?$`)

// found converts what was read. Since these formats have no standard, it passes over values that it
// does not understand, as leftovers.
func (r *reading) found() *Found {
	f := &Found{Source: r.program.source}
	r.convertGuidance()
	r.convertSampler()
	r.convertSize()
	if d, ok := r.number("denoising"); ok && d > 0 && d < 1 {
		r.set("image_strength", rounded(1-d))
	}
	if g := r.values["generator"]; r.program.name != "" && !strings.HasPrefix(g, r.program.name) {
		r.values["generator"] = strings.TrimSpace(r.program.name + " " + g)
	}
	if len(r.loras) > 0 {
		text, _ := json.Marshal(r.loras) // consists of strings and finite numbers: cannot fail
		r.values["loras"] = string(text)
	} else {
		delete(r.values, "loras")
	}
	for _, name := range settingsFields {
		value := r.take(name)
		if value == "" && name != "prompt" {
			continue
		}
		raw := json.RawMessage(value)
		if _, ok := f.Settings.field(name).(*string); ok {
			raw, _ = json.Marshal(value) // a string: cannot fail
		}
		if t := f.Settings; t.readField(name, raw) != nil {
			r.leave(cmp.Or(r.keys[name], name), value)
		} else {
			f.Settings, f.Fields = t, append(f.Fields, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.values)) {
		r.leave(cmp.Or(r.keys[name], name), r.values[name])
	}
	f.NotUsed = r.left
	return f
}

// convertGuidance sets the fields of guidance. Programs that know distilled scales have both: the scale of
// classifier-free guidance is that of models without a distilled one.
func (r *reading) convertGuidance() {
	cfg, hasCFG := r.number("cfg")
	distilled, ok := r.number("distilled")
	if embed, given := r.number("embed"); r.take("embedded") == "false" && given { // else cfg is that of any model
		distilled, ok = embed, true
	}
	both := ok || slices.Contains(slices.Collect(maps.Values(r.program.fields)), "distilled") && r.program != parametersProgram
	if ok {
		r.set("guidance", distilled)
	}
	if ok || hasCFG && both {
		r.values["guidance_unit"] = string(DistilledCFGScale)
	}
	switch {
	case hasCFG && both:
		r.set("true_cfg_scale", cfg)
	case hasCFG:
		r.set("guidance", cfg)
		if r.values["app"] != "SD.Next" || cfg <= 1 { // which passes others on to diffusers
			r.values["guidance_unit"] = string(CFGScale)
		}
	}
	r.take("app")
}

// convertSampler sets the scheduler.
func (r *reading) convertSampler() {
	name := r.take("sampler")
	plain := strings.ToLower(name)
	for _, s := range schedules[1:] { // stable-diffusion.cpp appends it
		plain = strings.TrimSuffix(plain, " "+s)
	}
	if ours := cmp.Or(samplers[plain], name); ours != name || strings.HasPrefix(r.values["generator"], "gomflux ") {
		r.values["scheduler"] = ours // gomflux writes names of its own too
	} else {
		r.leave(r.keys["sampler"], name)
	}
	if s := r.take("schedule"); !slices.Contains(schedules, strings.ToLower(s)) {
		r.leave(r.keys["schedule"], s)
	}
}

// convertSize sets the size: that of the finished image if a second pass enlarged it, whose strength is
// not that of an image to start from.
func (r *reading) convertSize() {
	if m := twoNumbers.FindStringSubmatch(r.values["size"]); m != nil {
		r.take("size")
		r.values["width"], r.values["height"] = m[1], m[2]
	}
	upscale, ok := r.number("upscale")
	m := twoNumbers.FindStringSubmatch(r.values["final size"])
	if m == nil && !(ok && upscale > 1) {
		r.take("final size")
		return
	}
	for i, name := range []string{"width", "height"} {
		if m != nil && m[i+1] != "0" {
			r.values[name] = m[i+1]
		} else if n, err := strconv.ParseFloat(r.values[name], 64); err == nil && ok {
			r.values[name] = strconv.Itoa(int(n * upscale))
		}
	}
	r.take("final size")
	r.leave(r.keys["denoising"], r.take("denoising"))
}

// parse reads the object of a program, nil for that of another one.
func (p *program) parse(members map[string]json.RawMessage) *Found {
	if p.inside != "" {
		inner, err := parseObject(members[p.inside])
		if err != nil {
			return nil
		}
		extra, _ := parseObject(members["sui_extra_data"]) // newer versions have it apart
		maps.Copy(inner, extra)
		members = inner
	}
	for _, key := range p.marks {
		if _, ok := members[key]; !ok {
			return nil
		}
	}
	r := newReading(p)
	for _, key := range slices.Sorted(maps.Keys(members)) {
		r.read(key, jsonText(members[key]))
		inner, err := parseObject(members[key])
		for _, name := range slices.Sorted(maps.Keys(inner)) {
			if key := key + "." + name; err == nil && p.fields[key] != "" {
				r.read(key, jsonText(inner[name]))
			}
		}
	}
	r.loras = loraList(r.take("loras"), r.take("weights"))
	r.cutTags()
	return r.found()
}

// cutTags takes the LoRAs out of the prompt.
func (r *reading) cutTags() {
	text, loras, err := CutLoRAs(r.values["prompt"])
	if err != nil || len(r.loras)+len(loras) > maxLoRAs {
		return // stays text
	}
	r.values["prompt"], r.loras = text, append(r.loras, loras...)
}

// jsonText returns a JSON value as text: the content of a string, others as they are.
func jsonText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// loraList reads LoRAs as programs write them: names with the weights apart, or a pair or an object each.
func loraList(names, weights string) (loras []LoRA) {
	list, scales := elements(names), elements(weights)
	for i, raw := range list {
		l := LoRA{Scale: 1}
		scale := ""
		var pair []json.RawMessage
		if o, err := parseObject(raw); err == nil {
			for _, key := range []string{"model", "lora", "file", "name"} {
				inner, _ := parseObject(o[key])
				l.Path = cmp.Or(l.Path, jsonText(inner["name"]), jsonText(inner["model_name"]))
				if inner == nil {
					l.Path = cmp.Or(l.Path, jsonText(o[key]))
				}
			}
			scale = jsonText(o["weight"])
		} else if json.Unmarshal(raw, &pair) == nil && len(pair) >= 2 {
			l.Path, scale = jsonText(pair[0]), jsonText(pair[1])
		} else if l.Path = jsonText(raw); i < len(scales) {
			scale = jsonText(scales[i])
		}
		if x, err := strconv.ParseFloat(scale, 64); err == nil {
			l.Scale = x
		}
		if l.Path != "" && l.Path != "None" && l.Scale != 0 && !math.IsNaN(l.Scale) && !math.IsInf(l.Scale, 0) {
			l.Path = l.Tag()
			loras = append(loras, l)
		}
	}
	return loras[:min(len(loras), maxLoRAs)]
}

// elements returns the elements of a JSON array, or of a list with commas.
func elements(text string) (list []json.RawMessage) {
	if json.Unmarshal([]byte(text), &list) == nil || text == "" {
		return list
	}
	for word := range strings.SplitSeq(text, ",") {
		raw, _ := json.Marshal(strings.Trim(word, ` []'"`)) // a string, of a list as Python prints it too: cannot fail
		list = append(list, raw)
	}
	return list
}
