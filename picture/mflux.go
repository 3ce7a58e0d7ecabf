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

// isMflux reports whether a JSON object is mflux's metadata.
func isMflux(members map[string]json.RawMessage) bool {
	_, ok := members["mflux_version"]
	return ok
}

// parseMflux reads mflux's metadata, a flat object in which null means unset. It
// ignores created_at, which has no time zone.
func parseMflux(members map[string]json.RawMessage) (Settings, []string, error) {
	own := map[string]json.RawMessage{}
	for key, name := range mfluxFields {
		if raw, ok := members[key]; ok && !isNull(raw) {
			own[name] = raw
		}
	}
	set := func(name string, value any) {
		own[name], _ = json.Marshal(value) // consists of strings: cannot fail
	}
	version, err := mfluxString(members, "mflux_version")
	if err != nil {
		return Settings{}, nil, err
	}
	set("generator", "mflux "+version)
	// the argument of --model, if it was a folder or another repository
	if path, err := mfluxString(members, "model_path"); err != nil {
		return Settings{}, nil, err
	} else if path != "" {
		set("model", path)
	}
	if precision, err := mfluxString(members, "precision"); err != nil {
		return Settings{}, nil, err
	} else if precision != "" {
		set("dtype", strings.TrimPrefix(precision, "mlx.core."))
	}
	if err := mfluxWeights(members, set); err != nil {
		return Settings{}, nil, err
	}
	path, err := mfluxString(members, "image_path")
	if err != nil {
		return Settings{}, nil, err
	}
	mask, err := mfluxString(members, "masked_image_path")
	if err != nil {
		return Settings{}, nil, err
	}
	var paths []string
	if raw, ok := members["image_paths"]; ok && !isNull(raw) {
		if err := json.Unmarshal(raw, &paths); err != nil {
			return Settings{}, nil, fmt.Errorf("image_paths: expected strings, found %s", show(raw))
		}
	}
	switch {
	case len(paths) > 0: // an edit; image_path is the first of them
		var references []SourceImage
		for _, path := range paths {
			references = append(references, SourceImage{Path: path})
		}
		set("references", references)
		delete(own, "image_strength") // has no effect on edits
	case path != "":
		set("image", SourceImage{Path: path})
		if mask != "" {
			set("mask", SourceImage{Path: mask})
			delete(own, "image_strength")
		}
	}
	mfluxGuidance(own, set)
	return readFields(own)
}

// mfluxGuidance sets how the guidance scale counts where mflux and diffusers differ: for Krea 2 mflux's counts
// from 1, and for Z-Image it is off up to 1 and counts from 0 above.
func mfluxGuidance(own map[string]json.RawMessage, set func(name string, value any)) {
	var scale float64
	model := strings.ToLower(string(own["model"]))
	switch {
	case json.Unmarshal(own["guidance"], &scale) != nil:
	case strings.Contains(model, "krea-2") || strings.Contains(model, "krea2"):
		set("guidance_unit", CFGScale)
	case (strings.Contains(model, "z-image") || strings.Contains(model, "zimage")) && scale <= 1:
		set("guidance", 0)
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

// mfluxString returns the string under a key, "" if it is missing or null.
func mfluxString(members map[string]json.RawMessage, key string) (string, error) {
	raw, ok := members[key]
	if !ok || isNull(raw) {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: expected a string, found %s", key, show(raw))
	}
	return s, nil
}

// mfluxWeights reads quantization and LoRAs. A LoRA without a scale has scale 1 in
// mflux.
func mfluxWeights(members map[string]json.RawMessage, set func(name string, value any)) error {
	var bits *int
	if raw, ok := members["quantize"]; ok && json.Unmarshal(raw, &bits) != nil {
		return fmt.Errorf("quantize: expected a whole number, found %s", show(raw))
	}
	if bits != nil {
		set("quantize", strconv.Itoa(*bits))
	}
	var paths []string
	if raw, ok := members["lora_paths"]; ok && json.Unmarshal(raw, &paths) != nil {
		return fmt.Errorf("lora_paths: expected strings, found %s", show(raw))
	}
	var scales []float64
	if raw, ok := members["lora_scales"]; ok && json.Unmarshal(raw, &scales) != nil {
		return fmt.Errorf("lora_scales: expected numbers, found %s", show(raw))
	}
	var loras []LoRA
	for i, path := range paths {
		l := LoRA{Path: path, Scale: 1}
		if i < len(scales) {
			l.Scale = scales[i]
		}
		loras = append(loras, l)
	}
	if len(loras) > 0 {
		set("loras", loras)
	}
	return nil
}
