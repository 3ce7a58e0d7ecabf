package sdapi

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux"
)

// maxLoRAs is the largest number of LoRAs of a request: as many as the metadata of an image can have.
const maxLoRAs = 32

// A loraTag is a LoRA in a prompt.
type loraTag struct {
	name  string
	scale float64
}

// loraTags matches LoRAs in a prompt.
var loraTags = regexp.MustCompile(`<(?:lora|lyco):([^<>:]*)((?::[^<>:]*)*)>`)

// splitPrompt removes LoRAs from a prompt: <lora:name>, <lora:name:0.8>, or with two scales, of
// the text encoder and of the network, <lora:name:1:0.8> or <lora:name:unet=0.8>. The scale of
// the network counts.
func splitPrompt(prompt string) (text string, tags []loraTag, err error) {
	end := 0 // of the last LoRA
	for _, at := range loraTags.FindAllStringSubmatchIndex(prompt, -1) {
		whole, tag := prompt[at[0]:at[1]], loraTag{name: strings.TrimSpace(prompt[at[2]:at[3]])}
		if tag.name == "" {
			return "", nil, badRequest("prompt: %s: the name of the LoRA is missing", whole)
		}
		if tag.scale, err = loraScale(prompt[at[4]:at[5]]); err != nil {
			return "", nil, badRequest("prompt: %s: expected a scale from -100 to 100", whole)
		}
		tags = append(tags, tag)
		text += prompt[end:at[0]]
		if end = at[1]; end == len(prompt) || strings.IndexByte(" \t\n,.", prompt[end]) >= 0 {
			text = strings.TrimRight(text, " \t") // one space between words, and no space before a comma
		}
	}
	if len(tags) > maxLoRAs {
		return "", nil, badRequest("prompt: expected at most %d LoRAs, found %d", maxLoRAs, len(tags))
	}
	if len(tags) == 0 {
		return prompt, nil, nil
	}
	return strings.TrimSpace(text + prompt[end:]), tags, nil
}

// loraScale returns the scale of the network in the arguments of a LoRA: ":1:0.8".
func loraScale(args string) (scale float64, err error) {
	scale = 1
	for i, arg := range strings.Split(args, ":")[1:] {
		key, value, named := strings.Cut(arg, "=")
		if !named {
			key, value = "unet", arg
		}
		if key != "unet" || !named && i > 1 || arg == "" {
			continue
		}
		scale, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err == nil && !(math.Abs(scale) <= 100) {
			err = strconv.ErrRange
		}
		if err != nil {
			return 0, err
		}
	}
	return scale, nil
}

// findLoRAs returns the LoRAs of tags. A LoRA with scale 0 has no effect and is left out.
func (h *Handler) findLoRAs(tags []loraTag) (found []gomflux.LoRA) {
	for _, tag := range tags {
		if tag.scale == 0 {
			continue
		}
		path := tag.name
		for _, name := range h.loras() {
			if strings.EqualFold(loraName(name), loraName(tag.name)) {
				path = name
				break
			}
		}
		found = append(found, gomflux.LoRA{Path: path, Scale: tag.scale})
	}
	return found
}

// loraName returns the name of a LoRA in a prompt, which cannot have a colon: the name of the file.
func loraName(name string) string {
	if _, file, ok := strings.Cut(name, ":"); ok {
		name = file[strings.LastIndexByte(file, '/')+1:]
	}
	return strings.TrimSuffix(name, ".safetensors")
}
