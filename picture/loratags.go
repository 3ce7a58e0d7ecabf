package picture

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// loraTags matches LoRAs in a prompt, and backslashes before them that make them text.
var loraTags = regexp.MustCompile(`\\?<(?:lora|lyco):([^<>:]*)((?::[^<>:]*)*)>`)

// CutLoRAs removes LoRAs from a prompt, as users of other programs write them: <lora:name>,
// <lora:name:0.8>, or with two scales, of the text encoder and of the network, <lora:name:1:0.8> or
// <lora:name:unet=0.8>. The scale of the network counts. LoRAs with scale 0, which have no effect, are
// not returned. A tag with a backslash before it is text, and stays without the backslash.
func CutLoRAs(prompt string) (text string, loras []LoRA, err error) {
	end, cut := 0, false
	for _, at := range loraTags.FindAllStringSubmatchIndex(prompt, -1) {
		whole := prompt[at[0]:at[1]]
		text += prompt[end:at[0]]
		if end = at[1]; whole[0] == '\\' {
			text += whole[1:]
			continue
		}
		cut = true
		l := LoRA{Path: strings.TrimSpace(prompt[at[2]:at[3]])}
		if l.Path == "" {
			return "", nil, fmt.Errorf("%s: the name of the LoRA is missing", whole)
		}
		if l.Scale, err = loraScale(prompt[at[4]:at[5]]); err != nil {
			return "", nil, fmt.Errorf("%s: expected a scale from -100 to 100", whole)
		}
		if l.Scale != 0 {
			loras = append(loras, l)
		}
		if end == len(prompt) || strings.IndexByte(" \t\n,.", prompt[end]) >= 0 {
			text = strings.TrimRight(text, " \t") // one space between words, and no space before a comma
		}
	}
	if len(loras) > maxLoRAs {
		return "", nil, fmt.Errorf("expected at most %d LoRAs, found %d", maxLoRAs, len(loras))
	}
	if text += prompt[end:]; cut {
		text = strings.TrimSpace(text)
	}
	return text, loras, nil
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

// Tag returns the name of a LoRA in a prompt, which cannot have a colon: the name of the file, without
// its folders and extension, "_" without one.
func (l *LoRA) Tag() string {
	name := l.Path[strings.LastIndexAny(l.Path, `/\:`)+1:]
	name = strings.TrimSuffix(name, ".safetensors")
	return cmp.Or(strings.TrimSpace(strings.Map(func(r rune) rune {
		if strings.ContainsRune("<>:,\n\"", r) {
			return '_'
		}
		return r
	}, printable(name))), "_")
}

// Named returns the LoRA with the path among known that has the same tag, ignoring case, or that Draw
// Things converted to a file with this tag; without one, the LoRA itself.
func (l LoRA) Named(known []string) LoRA {
	for _, path := range known {
		tag := (&LoRA{Path: path}).Tag()
		if strings.EqualFold(tag, l.Tag()) || drawThingsFile(tag) == strings.ToLower(l.Tag()) {
			l.Path = path
			break
		}
	}
	return l
}

// drawThingsFile returns the name that Draw Things gives to a LoRA when it imports it.
func drawThingsFile(tag string) string {
	return strings.ToLower(notInNames.ReplaceAllLiteralString(tag, "_")) + "_lora_f16.ckpt"
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9.]`)
