package picture

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// mfluxFields maps keys of mflux's metadata (version 0.24.0) to fields of
// Settings.
var mfluxFields = map[string]string{
	"model": "model", "seed": "seed", "steps": "steps", "guidance": "guidance", "height": "height", "width": "width",
	"prompt": "prompt", "negative_prompt": "negative_prompt", "image_strength": "image_strength",
	"scheduler": "scheduler", "generation_time_seconds": "seconds",
}

// parseMflux reads mflux's metadata, a flat object in which null means unset. It
// ignores created_at, which has no time zone.
func parseMflux(members map[string]json.RawMessage) (*Found, error) {
	own := map[string]json.RawMessage{}
	for key, name := range mfluxFields {
		if raw, ok := members[key]; ok && !isNull(raw) {
			own[name] = raw
		}
	}
	var version, model, precision, image, mask string
	var images, loras []string
	var scales []float64
	var bits *int
	for _, m := range []struct {
		key, want string
		value     any
	}{
		{"mflux_version", "a string", &version}, {"model_path", "a string", &model}, {"precision", "a string", &precision},
		{"quantize", "a whole number", &bits}, {"lora_paths", "strings", &loras}, {"lora_scales", "numbers", &scales},
		{"image_path", "a string", &image}, {"masked_image_path", "a string", &mask}, {"image_paths", "strings", &images},
	} {
		if raw, ok := members[m.key]; ok && json.Unmarshal(raw, m.value) != nil {
			return nil, fmt.Errorf("%s: expected %s, found %s", m.key, m.want, show(raw))
		}
	}
	set := func(name string, given bool, value any) {
		if given {
			own[name], _ = json.Marshal(value) // consists of strings and finite numbers: cannot fail
		}
	}
	set("generator", true, "mflux "+version)
	set("model", model != "", model) // the argument of --model, if it was a folder or another repository
	set("dtype", precision != "", strings.TrimPrefix(precision, "mlx.core."))
	if bits != nil {
		set("quantize", true, strconv.Itoa(*bits))
	}
	var applied []LoRA
	for i, path := range loras {
		l := LoRA{Path: path, Scale: 1} // as in mflux, for one without a scale
		if i < len(scales) {
			l.Scale = scales[i]
		}
		applied = append(applied, l)
	}
	set("loras", len(loras) > 0, applied)
	var references []SourceImage
	for _, path := range images {
		references = append(references, SourceImage{Path: path})
	}
	edit, start := len(images) > 0, len(images) == 0 && image != "" // of an edit, image is the first reference
	set("references", edit, references)
	set("image", start, SourceImage{Path: image})
	set("mask", start && mask != "", SourceImage{Path: mask})
	if edit || start && mask != "" {
		delete(own, "image_strength") // has no effect
	}
	mfluxGuidance(own)
	f := &Found{Source: SourceMflux, NotUsed: mfluxLeft(members)}
	return f, f.readFields(own)
}

// mfluxGuidance sets how the guidance scale counts where mflux and diffusers differ: for Krea 2 mflux's counts
// from 1, and for Z-Image it is off up to 1 and counts from 0 above.
func mfluxGuidance(own map[string]json.RawMessage) {
	var scale float64
	model := strings.ToLower(string(own["model"]))
	switch {
	case json.Unmarshal(own["guidance"], &scale) != nil:
	case strings.Contains(model, "krea-2") || strings.Contains(model, "krea2"):
		own["guidance_unit"] = json.RawMessage(strconv.Quote(string(CFGScale)))
	case (strings.Contains(model, "z-image") || strings.Contains(model, "zimage")) && scale <= 1:
		own["guidance"] = json.RawMessage("0")
	}
}

// mfluxLeft lists the settings of mflux that are not taken over.
func mfluxLeft(members map[string]json.RawMessage) []Leftover {
	r := newReading(&program{quiet: []string{"mflux_version", "model_path", "base_model", "precision", "quantize", "lora_paths",
		"lora_scales", "image_path", "masked_image_path", "image_paths", "created_at"}})
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if mfluxFields[key] == "" {
			r.read(key, jsonText(members[key]))
		}
	}
	return r.left
}
