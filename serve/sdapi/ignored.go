package sdapi

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// unused are the fields of AUTOMATIC1111's and Forge's requests that are not used here, with the values, in
// addition to null, false, 0, -1, "" and empty lists and objects, that change nothing: their defaults. With
// any other value a field is a warning. Fields that are in neither table are used, or unknown to
// AUTOMATIC1111 as well, which ignores them too.
var unused = map[string][]string{
	"styles": nil, "subseed_strength": nil, "seed_resize_from_h": nil, "seed_resize_from_w": nil, "restore_faces": nil, "tiling": nil,
	"eta": {"1"}, "s_min_uncond": nil, "s_churn": nil, "s_tmax": {`"inf"`, "Infinity"}, "s_tmin": nil, "s_noise": {"1"},
	"refiner_checkpoint": {`"None"`}, "disable_extra_networks": nil, "firstpass_image": nil,
	"script_name": {`"None"`}, "alwayson_scripts": nil, "infotext": nil, "resize_mode": nil, "image_cfg_scale": {"1.5"},
	"mask_round": {"true"}, "initial_noise_multiplier": {"1"}, "latent_mask": nil,
}

// unusedWith are fields that have an effect in AUTOMATIC1111 only with another one, which is the warning then.
var unusedWith = map[string][]string{
	"subseed_strength": {"subseed"}, "refiner_checkpoint": {"refiner_switch_at"}, "script_name": {"script_args"},
}

// usedOptions are options of override_settings that are used, or do not change images, and unusedOptions
// has the defaults of others.
var (
	usedOptions = []string{
		"sd_model_checkpoint", "sd_checkpoint_hash", "samples_format", "live_previews_enable", "return_grid", "samples_save", "grid_save",
		"save_images_add_number", "forge_inference_memory", "forge_async_loading", "forge_pin_shared_memory",
	}
	unusedOptions = map[string][]string{
		"CLIP_stop_at_last_layers": {"1"}, "sd_vae": {`"Automatic"`, `"None"`}, "forge_preset": {`"flux"`, `"all"`},
		"eta_noise_seed_delta": nil, "img2img_fix_steps": nil, "face_restoration_model": {`"None"`},
	}
)

// syntaxes are what AUTOMATIC1111 reads in prompts, and what is text here.
var syntaxes = []struct {
	name  string
	match *regexp.Regexp
}{
	{"weights such as (word:1.2)", regexp.MustCompile(`\([^()]*:\s*\d*\.?\d+\s*\)|\(\(|\[\[`)},
	{"schedules such as [from:to:0.5]", regexp.MustCompile(`\[[^\[\]]*:\s*\d*\.?\d+\s*\]|\[[^\[\]|]+\|[^\[\]]+\]`)},
	{"BREAK", regexp.MustCompile(`\bBREAK\b`)},
	{"AND", regexp.MustCompile(`\S\s+AND\s+\S`)},
	{"<hypernet:...>", regexp.MustCompile(`<hypernet:[^<>]+>`)},
}

var offTexts = []string{"", "0", "false", "no", "off"}

// isOff reports whether a value stands for something that is not asked for.
func isOff(raw json.RawMessage, defaults []string) bool {
	var number float64
	var text string
	switch value := strings.TrimSpace(string(raw)); {
	case json.Unmarshal(raw, &number) == nil && (number == 0 || number == -1):
		return true
	case json.Unmarshal(raw, &text) == nil && slices.Contains(offTexts, strings.ToLower(strings.TrimSpace(text))):
		return true
	case slices.Contains([]string{"", "null", "false", "[]", "{}"}, strings.Join(strings.Fields(value), "")):
		return true
	default:
		return slices.ContainsFunc(defaults, func(d string) bool {
			var other float64
			return value == d || json.Unmarshal(raw, &number) == nil && json.Unmarshal([]byte(d), &other) == nil && number == other
		})
	}
}

// ignored warns of everything that the client asks for and does not get, except what is not used because
// of the model. Types are not checked.
func (r *request) ignored(f, override *fields) {
	const text = " is not supported and was ignored"
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		raw := f.raw[name]
		if isOff(raw, unused[name]) {
			continue
		}
		var scripts map[string]json.RawMessage
		switch json.Unmarshal(raw, &scripts); {
		case name == "alwayson_scripts" && scripts != nil:
			r.warn("alwayson_scripts are not supported and were ignored: %s", strings.Join(slices.Sorted(maps.Keys(scripts)), ", "))
		default:
			also := slices.DeleteFunc(slices.Clone(unusedWith[name]), func(with string) bool { return isOff(f.raw[with], nil) })
			r.warnings = append(r.warnings, strings.Join(append([]string{name + text}, also...), ", and so was "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(override.raw)) {
		if !slices.Contains(usedOptions, name) && !isOff(override.raw[name], unusedOptions[name]) {
			r.warnings = append(r.warnings, "override_settings: "+name+text)
		}
	}
	for name, prompt := range map[string]string{"prompt": r.prompt, "negative_prompt": r.negative} {
		for _, s := range syntaxes {
			if s.match.MatchString(prompt) {
				r.warnings = append(r.warnings, name+": "+s.name+" has no meaning here, and stays text")
			}
		}
	}
	if strings.Contains(r.negative, "<lora:") {
		r.warn("negative_prompt: LoRAs have no meaning there, and stay text")
	}
	slices.Sort(r.warnings)
}
