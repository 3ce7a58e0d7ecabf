package lora

import (
	"slices"
	"strings"
)

// A part is the role of a tensor in the change of a module.
type part string

const (
	partDown      part = "lora_A" // also lora_down: [rank, in]
	partUp        part = "lora_B" // also lora_up: [out, rank]
	partUpBias    part = "lora_B.bias"
	partAlpha     part = "alpha"
	partMagnitude part = "lora_magnitude_vector" // PEFT's DoRA: [out]
	partDoRAScale part = "dora_scale"            // LyCORIS' DoRA: [out, 1] or [1, in]
	partDiff      part = "diff"                  // added to the weight
	partDiffBias  part = "diff_b"                // added to the bias
	partKronW1    part = "lokr_w1"
	partKronW1A   part = "lokr_w1_a"
	partKronW1B   part = "lokr_w1_b"
	partKronW2    part = "lokr_w2"
	partKronW2A   part = "lokr_w2_a"
	partKronW2B   part = "lokr_w2_b"
	partHadaW1A   part = "hada_w1_a"
	partHadaW1B   part = "hada_w1_b"
	partHadaW2A   part = "hada_w2_a"
	partHadaW2B   part = "hada_w2_b"
)

// partNames maps the word after a module's name to the role of the tensor.
var partNames = map[string]part{
	"lora_A": partDown, "lora_down": partDown,
	"lora_B": partUp, "lora_up": partUp,
	"alpha":                 partAlpha,
	"lora_magnitude_vector": partMagnitude, "magnitude": partMagnitude,
	"dora_scale": partDoRAScale,
	"diff":       partDiff, "w_norm": partDiff,
	"diff_b": partDiffBias, "b_norm": partDiffBias,
	"lokr_w1": partKronW1, "lokr_w1_a": partKronW1A, "lokr_w1_b": partKronW1B,
	"lokr_w2": partKronW2, "lokr_w2_a": partKronW2A, "lokr_w2_b": partKronW2B,
	"hada_w1_a": partHadaW1A, "hada_w1_b": partHadaW1B,
	"hada_w2_a": partHadaW2A, "hada_w2_b": partHadaW2B,
}

// maxName is the largest length of tensor names. Real ones have up to a hundred bytes.
const maxName = 1000

// parseKey splits the name of a tensor into the name of a module, including any prefix
// that the program that wrote the file uses, and the role of the tensor:
//
//	transformer.x_embedder.lora_A.weight
//	base_model.model.x_embedder.lora_A.default.weight
//	lora_unet_img_in.lora_down.weight
//	x_embedder.lora.down.weight
//	x_embedder.lora.lora_A.weight
//	text_model.encoder.layers.0.self_attn.to_q_lora.down.weight
//	diffusion_model.img_in.lokr_w1
func parseKey(name string) (module string, p part, ok bool) {
	if len(name) > maxName {
		return "", "", false
	}
	words := strings.Split(name, ".")
	for i := len(words) - 1; i > 0; i-- {
		p, known := partNames[words[i]]
		rest := words[i+1:]
		switch {
		case known:
			p, known = p.withSuffix(rest)
		case slices.Equal(rest, []string{"weight"}) && (words[i] == "down" || words[i] == "up"):
			p, known = map[string]part{"down": partDown, "up": partUp}[words[i]], true
			last := words[i-1]
			switch {
			case last == "lora" || last == "lora_linear_layer":
				i--
			case strings.HasSuffix(last, "_lora"):
				words[i-1] = strings.TrimSuffix(last, "_lora")
			case !strings.Contains(last, "_lora"): // XLabs has qkv_lora1 and proj_lora2
				return "", "", false
			}
		}
		if known {
			module = strings.TrimSuffix(strings.Join(words[:i], "."), ".lora") // to_q.lora.lora_A
			return module, p, module != ""
		}
	}
	return "", "", false
}

// IsKey reports whether a tensor's name is one of a LoRA's.
func IsKey(name string) bool {
	_, _, ok := parseKey(name)
	return ok
}

// withSuffix returns the role of a tensor whose name continues with words after the
// name of p: the name of an adapter, and weight or bias. It reports whether such a
// name is valid.
func (p part) withSuffix(words []string) (part, bool) {
	switch p {
	case partAlpha, partDoRAScale, partDiff, partDiffBias:
		return p, len(words) == 0
	}
	bias := false
	if n := len(words); n > 0 && (words[n-1] == "weight" || words[n-1] == "bias") {
		bias = words[n-1] == "bias"
		words = words[:n-1]
	}
	switch {
	case len(words) > 1:
		return p, false
	case bias && p == partUp:
		return partUpBias, true
	}
	return p, !bias
}
