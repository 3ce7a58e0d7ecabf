package picture

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// comfyProgram has the inputs of ComfyUI's sampler nodes, and of the nodes that they are connected to.
var comfyProgram = &program{
	source: SourceComfyUI, name: "ComfyUI",
	fields: map[string]string{
		"seed": "seed", "noise_seed": "seed", "steps": "steps", "cfg": "cfg", "guidance": "distilled", "sampler_name": "sampler",
		"scheduler": "schedule", "denoise": "denoising", "width": "width", "height": "height", "unet_name": "model", "ckpt_name": "model",
		"positive": "prompt", "negative": "negative_prompt",
	},
}

// Limits against graphs that take long to follow: no graph of a person has as much.
const maxNodes, maxLinks = 2000, 40

// A comfyGraph are the nodes of an image of ComfyUI that were run, by their number.
type comfyGraph map[string]*comfyNode

type comfyNode struct {
	Class  string                     `json:"class_type"`
	Inputs map[string]json.RawMessage `json:"inputs"`
	id     string
}

// nan matches numbers of Python's JSON that JSON does not have.
var nan = regexp.MustCompile(`-?\b(NaN|Infinity)\b`)

// parseComfy reads the nodes of ComfyUI. ok is false if the text is something else.
func parseComfy(text string) (s Settings, found []string, left []Leftover, ok bool) {
	members, err := parseObject([]byte(text))
	if err != nil {
		if members, err = parseObject(nan.ReplaceAll([]byte(text), []byte("null"))); err != nil {
			return s, nil, nil, false
		}
	}
	g := comfyGraph{}
	for id, raw := range members {
		n := &comfyNode{id: id}
		if json.Unmarshal(raw, n) == nil && n.Class != "" {
			g[id] = n
		}
	}
	if len(g) == 0 || len(g) > maxNodes {
		return s, nil, nil, false
	}
	r := newReading(comfyProgram)
	if first := g.firstSampler(r); first != nil {
		g.readSampler(r, first)
	}
	g.readOthers(r)
	r.cutTags()
	s, found = r.settings()
	return s, found, r.left, true
}

// firstSampler returns the node that samples first: the only one, or the only one that starts from an
// empty latent.
func (g comfyGraph) firstSampler(r *reading) *comfyNode {
	var all, first []*comfyNode
	for _, id := range slices.Sorted(maps.Keys(g)) {
		n := g[id]
		_, latent := n.Inputs["latent_image"]
		if latent && (n.Inputs["steps"] != nil || n.Inputs["sigmas"] != nil) {
			all = append(all, n)
			if latent := g.latent(n); latent != nil && strings.HasPrefix(latent.Class, "Empty") {
				first = append(first, n)
			}
		}
	}
	if len(all) != 1 && len(first) != 1 {
		r.leave("nodes", strconv.Itoa(len(all))+" known samplers, not one of them certain")
		return nil
	}
	chosen := append(first, all...)[0]
	for _, n := range all {
		if n != chosen {
			r.leave(n.Class+" "+n.id, "samples after the first one")
		}
	}
	return chosen
}

// node returns the node that an input is connected to, and passes over reroutes. It is nil for values.
func (g comfyGraph) node(n *comfyNode, input string) *comfyNode {
	for range maxLinks {
		var link []any
		if json.Unmarshal(n.Inputs[input], &link) != nil || len(link) != 2 {
			return nil
		}
		id, _ := link[0].(string)
		if n = g[id]; n == nil || !strings.Contains(n.Class, "Reroute") {
			return n
		}
		for input = range n.Inputs { // its only one
		}
	}
	return nil
}

// valueInputs are the inputs of nodes that have nothing but a value.
var valueInputs = []string{"value", "string", "text", "int", "float", "seed", "noise_seed", "prompt", "Text", "STRING"}

// value returns the value of an input, "" if it is not certain.
func (g comfyGraph) value(n *comfyNode, input string) string {
	for range maxLinks {
		raw := n.Inputs[input]
		if len(raw) == 0 || raw[0] == '{' || string(raw) == "null" {
			return ""
		}
		if raw[0] != '[' {
			return jsonText(raw)
		}
		if n = g.node(n, input); n == nil {
			return ""
		}
		if n.Class == "StringConcatenate" {
			return jsonText(n.Inputs["string_a"]) + jsonText(n.Inputs["delimiter"]) + jsonText(n.Inputs["string_b"])
		}
		i := slices.IndexFunc(valueInputs, func(name string) bool { return n.Inputs[name] != nil })
		if i < 0 {
			return ""
		}
		input = valueInputs[i]
	}
	return ""
}

// latent returns the node that the latents of a sampler are from.
func (g comfyGraph) latent(n *comfyNode) *comfyNode {
	n = g.node(n, "latent_image")
	for range maxLinks {
		if n == nil || strings.HasPrefix(n.Class, "Empty") {
			break
		}
		next := cmp.Or(g.node(n, "samples"), g.node(n, "latent"))
		if next == nil {
			break
		}
		n = next
	}
	return n
}

// readSampler reads the inputs of a sampler, and of the nodes that it is connected to.
func (g comfyGraph) readSampler(r *reading, sampler *comfyNode) {
	parts := []*comfyNode{sampler}
	for _, input := range []string{"noise", "guider", "sampler", "sigmas"} {
		if n := g.node(sampler, input); n != nil {
			parts = append(parts, n)
		}
	}
	read := func(n *comfyNode, input string) {
		if v := g.value(n, input); v != "" {
			r.read(input, v)
		} else if n.Inputs[input] != nil {
			r.leave(n.Class+" "+n.id+" "+input, "comes from another node")
		}
	}
	for _, n := range parts {
		for _, input := range []string{"seed", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "denoise"} {
			read(n, input)
		}
		if at := g.value(n, "start_at_step"); at != "" && at != "0" {
			r.leave(n.Class+" "+n.id+" start_at_step", at)
		}
		if at, err := strconv.Atoi(g.value(n, "end_at_step")); err == nil && at < 10000 {
			r.leave(n.Class+" "+n.id+" end_at_step", strconv.Itoa(at))
		}
		for _, input := range []string{"positive", "negative", "conditioning"} {
			if n.Inputs[input] != nil {
				g.readText(r, n, input)
			}
		}
		if r.keys["model"] == "" {
			g.readModel(r, n)
		}
	}
	if n := g.latent(sampler); n != nil && strings.HasPrefix(n.Class, "Empty") {
		read(n, "width")
		read(n, "height")
		r.take("denoising") // nothing is kept of an empty image
		if size := g.value(n, "batch_size"); size != "1" {
			r.leave(n.Class+" "+n.id+" batch_size", size)
		}
	}
}

// textInputs are the inputs of text encoders with the prompt.
var textInputs = []string{"text", "prompt", "user_prompt", "t5xxl", "clip_l"}

// readText reads the prompt that an input is connected to, and the guidance on the way.
func (g comfyGraph) readText(r *reading, from *comfyNode, input string) {
	side := input
	if side == "conditioning" {
		side = "positive"
	}
	n := g.node(from, input)
	for range maxLinks {
		if n == nil || n.Class == "ConditioningZeroOut" {
			return
		}
		if v := g.value(n, "guidance"); v != "" && side == "positive" {
			r.read("guidance", v)
		}
		for _, name := range textInputs {
			if n.Inputs[name] == nil {
				continue
			}
			if v := g.value(n, name); v != "" || string(n.Inputs[name]) == `""` {
				r.read(side, v)
			} else {
				r.leave(n.Class+" "+n.id+" "+name, "comes from another node")
			}
			return
		}
		next := cmp.Or(g.node(n, "conditioning"), g.node(n, side))
		if next == nil {
			r.leave(n.Class+" "+n.id, "conditions in a way that is not known")
			return
		}
		if n.Class != "FluxGuidance" {
			r.leave(n.Class+" "+n.id, "changes the conditioning")
		}
		n = next
	}
}

// readModel reads the model and its LoRAs.
func (g comfyGraph) readModel(r *reading, from *comfyNode) {
	n := g.node(from, "model")
	for range maxLinks {
		if n == nil {
			break
		}
		if file := cmp.Or(g.value(n, "unet_name"), g.value(n, "ckpt_name")); file != "" {
			r.read("unet_name", file)
			break
		}
		var stack []LoRA
		if name := g.value(n, "lora_name"); name != "" {
			scale, _ := strconv.ParseFloat(cmp.Or(g.value(n, "strength_model"), "1"), 64)
			stack = append(stack, LoRA{Path: name, Scale: scale})
		}
		for i := 1; n.Inputs["lora_"+strconv.Itoa(i)] != nil; i++ { // of a node that loads several
			var one struct {
				On       bool
				LoRA     string
				Strength float64
			}
			if json.Unmarshal(n.Inputs["lora_"+strconv.Itoa(i)], &one) == nil && one.On {
				stack = append(stack, LoRA{Path: one.LoRA, Scale: one.Strength})
			}
		}
		stack = slices.DeleteFunc(stack, func(l LoRA) bool { return l.Scale == 0 || l.Path == "" })
		for i := range stack {
			stack[i].Path = stack[i].Tag()
		}
		r.loras = append(stack, r.loras...)
		for _, name := range []string{"shift", "max_shift", "base_shift"} {
			if v := g.value(n, name); v != "" {
				r.left = append(r.left, Leftover{n.Class + " " + n.id + " " + name, v})
			}
		}
		n = g.node(n, "model")
	}
}

// readOthers lists the input images of nodes.
func (g comfyGraph) readOthers(r *reading) {
	for _, id := range slices.Sorted(maps.Keys(g)) {
		if n := g[id]; strings.HasPrefix(n.Class, "LoadImage") {
			r.leave(n.Class+" "+id, g.value(n, "image"))
		}
	}
}
