package picture

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/plainjson"
)

// parameters returns the text that AUTOMATIC1111's web UI introduced and that most
// galleries and other programs show: the prompt, the negative prompt and a line of
// settings. It is meant for those programs. The format is ambiguous if values
// contain colons, commas or line breaks.
func (s *Settings) parameters() string {
	var b strings.Builder
	b.WriteString(loraTags.ReplaceAllString(printable(s.Prompt), `\$0`))
	for _, l := range s.LoRAs { // as users of the web UI write them
		fmt.Fprintf(&b, " <lora:%s:%s>", l.Tag(), strconv.FormatFloat(l.Scale, 'g', -1, 64))
	}
	if s.NegativePrompt != "" {
		b.WriteString("\nNegative prompt: " + printable(s.NegativePrompt))
	}
	fmt.Fprintf(&b, "\nSteps: %d", s.Steps)
	if s.Scheduler != "" {
		b.WriteString(s.sampler())
	}
	fmt.Fprintf(&b, "%s, Seed: %d, Size: %dx%d", s.guidance(), s.Seed, s.Width, s.Height)
	for _, own := range ownLabels {
		raw, _ := json.Marshal(s.field(own.field)) // a string or finite numbers: cannot fail
		if value := strings.Trim(jsonText(raw), "[]"); value != "" && value != "0" && value != "null" {
			b.WriteString(", " + own.label + ": " + quoteValue(value))
		}
	}
	b.WriteString(s.inpainting())
	if s.Model != "" {
		b.WriteString(", Model: " + quoteValue(s.Model))
	}
	if s.Generator != "" {
		b.WriteString(", Version: " + quoteValue(s.Generator))
	}
	b.WriteString(s.hashes())
	return b.String()
}

// ownLabels are the labels in the text of settings that other programs do not have: numbers, words, and lists of
// numbers, which are written without brackets.
var ownLabels = []struct{ label, field string }{
	{"Guidance interval", "guidance_interval"}, {"CFG normalization", "cfg_normalization"}, {"CFG truncation", "cfg_truncation"},
	{"Step cache", "step_cache"}, {"Sigmas", "sigmas"},
}

// sampler returns the scheduler as other programs name it, if they have it.
func (s *Settings) sampler() string {
	for name, scheduler := range samplers {
		if scheduler == s.Scheduler {
			return ", Sampler: " + strings.ToUpper(name[:1]) + name[1:] + ", Schedule type: Simple"
		}
	}
	return ", Sampler: " + quoteValue(s.Scheduler)
}

// inpainting returns the settings of inpainting as AUTOMATIC1111's web UI writes them,
// and those that it does not have. The text does not name the image and the mask.
func (s *Settings) inpainting() string {
	if s.Mask == nil && s.Expand == nil {
		return ""
	}
	text := ", Denoising strength: " + strconv.FormatFloat(1-s.ImageStrength, 'g', 15, 64)
	if s.MaskBlur != nil {
		text += fmt.Sprintf(", Mask blur: %d", *s.MaskBlur)
	}
	if s.InvertMask {
		text += ", Mask mode: " + notMasked
	}
	if s.MaskCrop != nil {
		text += fmt.Sprintf(", Inpaint area: %s, Masked area padding: %d", onlyMasked, *s.MaskCrop)
	}
	if e := s.Expand; len(e) == 4 {
		text += ", Expand: " + quoteValue(fmt.Sprintf("%d,%d,%d,%d", e[0], e[1], e[2], e[3]))
	}
	if s.NoPasteBack {
		text += ", Paste back: no"
	}
	return text
}

// Values of the web UI.
const notMasked, onlyMasked = "Inpaint not masked", "Only masked"

// parseInpainting adds settings of inpainting, as JSON. own is true for a text of gomflux.
func parseInpainting(pairs, values map[string]string, own bool) {
	if pairs["Mask mode"] == notMasked {
		values["invert_mask"] = "true"
	}
	if pairs["Inpaint area"] == onlyMasked {
		values["mask_crop"] = pairs["Masked area padding"]
	}
	if e := pairs["Expand"]; own && e != "" {
		values["expand"] = "[" + e + "]"
	}
	if own && pairs["Paste back"] == "no" {
		values["no_paste_back"] = "true"
	}
}

// hashes returns the beginnings of the hashes of the LoRAs' files, by which Civitai
// finds LoRAs. They are at the end of the line, because some readers do not parse
// the quotes.
func (s *Settings) hashes() string {
	found := map[string]string{}
	for _, l := range s.LoRAs {
		if l.SHA256 != "" {
			found["lora:"+l.Tag()] = l.SHA256[:10]
		}
	}
	if len(found) == 0 {
		return ""
	}
	text, _ := plainjson.Marshal(found, "") // consists of strings: cannot fail
	return ", Hashes: " + string(text)
}

// printable replaces control characters, which text chunks must not have.
func printable(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}

// quoteValue quotes a value as a JSON string if it would be ambiguous otherwise.
func quoteValue(value string) string {
	if !strings.ContainsAny(value, ",:\n\"") && value == strings.TrimSpace(value) {
		return printable(value)
	}
	quoted, _ := plainjson.Marshal(value, "") // a string: cannot fail
	return printable(string(quoted))
}

// splitParameters splits a parameters text into the prompts and the pairs of the
// settings line: the last line with a whole number of Steps. It drops lines after
// it, which some programs add. ok is false if there is no settings line.
func splitParameters(text string) (prompt, negative string, pairs map[string]string, ok bool) {
	if !strings.Contains(text, "Steps:") {
		return "", "", nil, false
	}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	last := len(lines) - 1
	for ; last >= 0; last-- {
		if !strings.Contains(lines[last], "Steps:") {
			continue
		}
		pairs = splitPairs(lines[last])
		if _, err := strconv.ParseUint(pairs["Steps"], 10, 32); err == nil {
			break
		}
	}
	if last < 0 {
		return "", "", nil, false
	}
	text = strings.Join(lines[:last], "\n")
	const label = "Negative prompt:"
	if strings.HasPrefix(text, label) {
		negative = text[len(label):]
	} else {
		prompt, negative, _ = strings.Cut(text, "\n"+label)
	}
	return strings.TrimSpace(prompt), strings.TrimSpace(negative), pairs, true
}

// splitPairs parses "Key: value, Key: "quoted, value", ...". Of equal keys the
// first counts.
func splitPairs(line string) map[string]string {
	pairs := map[string]string{}
	for line != "" {
		key, rest, ok := strings.Cut(line, ":")
		if !ok {
			break
		}
		key = strings.TrimSpace(key[strings.LastIndexByte(key, ',')+1:])
		rest = strings.TrimLeft(rest, " \t")
		var value string
		value, line = cutValue(rest)
		if _, ok := pairs[key]; !ok {
			pairs[key] = value
		}
	}
	return pairs
}

// cutValue returns the value at the start of text and the text after its comma.
func cutValue(text string) (value, rest string) {
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		var raw json.RawMessage
		if d := json.NewDecoder(strings.NewReader(text)); d.Decode(&raw) == nil {
			after := strings.TrimLeft(text[d.InputOffset():], " \t")
			if after == "" || after[0] == ',' {
				return string(raw), strings.TrimPrefix(after, ",")
			}
		}
	}
	if strings.HasPrefix(text, `"`) {
		for i := 1; i < len(text); i++ {
			if text[i] == '\\' {
				i++
				continue
			}
			if text[i] != '"' {
				continue
			}
			after := strings.TrimLeft(text[i+1:], " \t")
			if json.Unmarshal([]byte(text[:i+1]), &value) == nil && (after == "" || after[0] == ',') {
				return value, strings.TrimPrefix(after, ",")
			}
			break
		}
	}
	value, rest, _ = strings.Cut(text, ",")
	return strings.TrimSpace(value), rest
}

// settingName matches the names in a settings line. Others are from within values.
var settingName = regexp.MustCompile(`^\w[\w \-/]+$`)

// parseParameters parses a parameters text of any program, nil for another text.
func parseParameters(text string) *Found {
	prompt, negative, pairs, ok := splitParameters(text)
	if !ok {
		return nil
	}
	r := newReading(parametersProgram)
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		if settingName.MatchString(key) && key != "Lora weights" {
			r.read(key, pairs[key])
		}
	}
	r.values["prompt"], r.values["negative_prompt"] = prompt, negative
	r.cutTags()
	r.readHashes(pairs)
	own := strings.HasPrefix(pairs["Version"], "gomflux ") // other programs have other names
	parseInpainting(pairs, r.values, own)
	if own {
		for _, own := range ownLabels {
			value := pairs[own.label]
			if _, list := new(Settings).field(own.field).(*[]float64); list && value != "" {
				value = "[" + value + "]"
			}
			r.values[own.field] = value
		}
	}
	f := r.found()
	f.Parameters = text
	return f
}

// readHashes reads the LoRAs that the prompt does not name, "name: value, name: value": with their scales
// from Fooocus. Of those with a hash alone the scale is not known.
func (r *reading) readHashes(pairs map[string]string) {
	known := func(name string) bool {
		return slices.ContainsFunc(r.loras, func(l LoRA) bool { return l.Tag() == (&LoRA{Path: name}).Tag() })
	}
	for _, key := range []string{"Lora weights", "Lora hashes"} {
		for one := range strings.SplitSeq(pairs[key], ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(one), ": ")
			scale, err := strconv.ParseFloat(value, 64)
			switch {
			case name == "" || known(name):
			case key == "Lora weights" && err == nil && scale != 0 && len(r.loras) < maxLoRAs:
				r.loras = append(r.loras, LoRA{Path: name, Scale: scale})
			default:
				r.leave(key, one)
			}
		}
	}
}
