package picture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
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

// A Workflow is a graph of ComfyUI's nodes, as its files and its clients have it, and what it generates.
type Workflow struct {
	Nodes   map[string]*WorkflowNode // by ID
	Sampler *WorkflowNode            // samples first, nil if that is not certain
	// Settings are those of the sampler and of the nodes before it, and NotUsed is what they have no place for.
	Settings Settings
	Found    []string // names of the fields of Settings that are set
	NotUsed  []Leftover
	Batch    int // number of images that are generated together
	// Image is what the sampler starts from, Mask is its mask, and References are reference images.
	Image, Mask *WorkflowImage
	References  []*WorkflowImage
}

// A WorkflowNode is a node of a [Workflow].
type WorkflowNode struct {
	ID     string                     `json:"-"`
	Class  string                     `json:"class_type"`
	Inputs map[string]json.RawMessage `json:"inputs"`
}

// A WorkflowImage is an image that a [Workflow] loads.
type WorkflowImage struct {
	Node          *WorkflowNode // loads it
	Output        int           // of Node
	Width, Height int           // to which it is scaled, 0 for its own size, -1 for another rule
	Invert        bool          // the mask is inverted
}

// A comfyGraph are the nodes of an image of ComfyUI that were run, by their number.
type comfyGraph map[string]*WorkflowNode

// nan matches numbers of Python's JSON that JSON does not have.
var nan = regexp.MustCompile(`-?\b(NaN|Infinity)\b`)

// ReadWorkflow reads the nodes of ComfyUI. The error is about a text that is something else.
func ReadWorkflow(text []byte) (*Workflow, error) {
	members, err := parseObject(text)
	if err != nil {
		if members, err = parseObject(nan.ReplaceAll(text, []byte("null"))); err != nil {
			return nil, err
		}
	}
	g := comfyGraph{}
	for id, raw := range members {
		n := &WorkflowNode{}
		if json.Unmarshal(raw, n) == nil && n.Class != "" {
			n.ID, g[id] = id, n
		}
	}
	if len(g) == 0 || len(g) > maxNodes {
		return nil, fmt.Errorf("expected 1 to %d nodes with a class_type, found %d", maxNodes, len(g))
	}
	r := newReading(comfyProgram)
	w := &Workflow{Nodes: g, Sampler: g.firstSampler(r), Batch: 1}
	if w.Sampler != nil {
		g.readSampler(r, w)
	}
	g.readOthers(r)
	r.cutTags()
	f := r.found()
	w.Settings, w.Found, w.NotUsed = f.Settings, f.Fields, f.NotUsed
	return w, nil
}

// parseComfy reads the nodes of ComfyUI, nil if the text is something else.
func parseComfy(text string) *Found {
	w, err := ReadWorkflow([]byte(text))
	if err != nil {
		return nil
	}
	f := &Found{Settings: w.Settings, Source: SourceComfyUI, Fields: w.Found, JSON: json.RawMessage(text), NotUsed: w.NotUsed}
	if !json.Valid(f.JSON) {
		f.JSON = nan.ReplaceAll(f.JSON, []byte("null"))
	}
	return f
}

// firstSampler returns the node that samples first: the only one, or the only one that starts from an
// empty latent.
func (g comfyGraph) firstSampler(r *reading) *WorkflowNode {
	var all, first []*WorkflowNode
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
			r.leave(n.name(), "samples after the first one")
		}
	}
	return chosen
}

// name is how messages call the node.
func (n *WorkflowNode) name() string { return n.Class + " " + n.ID }

// Text returns the value of an input as text, "" if another node computes it.
func (n *WorkflowNode) Text(input string) string {
	if raw := n.Inputs[input]; len(raw) > 0 && raw[0] != '[' {
		return jsonText(raw)
	}
	return ""
}

// Link returns the node and its output that an input is connected to. ok is false for values.
func (n *WorkflowNode) Link(input string) (id string, output int, ok bool) {
	var link []any
	if json.Unmarshal(n.Inputs[input], &link) != nil || len(link) != 2 {
		return "", 0, false
	}
	id, isText := link[0].(string)
	number, isNumber := link[1].(float64)
	return id, int(number), isText && isNumber
}

// node returns the node that an input is connected to, and passes over reroutes. It is nil for values.
func (g comfyGraph) node(n *WorkflowNode, input string) *WorkflowNode {
	n, _ = g.source(n, input)
	return n
}

// source is node with the output of the node.
func (g comfyGraph) source(n *WorkflowNode, input string) (*WorkflowNode, int) {
	for range maxLinks {
		id, output, ok := n.Link(input)
		if n = g[id]; !ok || n == nil {
			return nil, 0
		}
		if !strings.Contains(n.Class, "Reroute") {
			return n, output
		}
		for input = range n.Inputs { // its only one
		}
	}
	return nil, 0
}

// image returns the image or the mask that an input is connected to, nil if it is not certain.
func (g comfyGraph) image(r *reading, from *WorkflowNode, input string) *WorkflowImage {
	img := &WorkflowImage{}
	n := from
	for range maxLinks {
		if n, img.Output = g.source(n, input); n == nil {
			break
		}
		switch n.Class {
		case "LoadImage", "LoadImageMask", "ETN_LoadImageCache":
			img.Node = n
			return img
		case "ImageScale":
			if img.Width == 0 { // the last one
				img.Width, _ = strconv.Atoi(g.value(n, "width"))
				img.Height, _ = strconv.Atoi(g.value(n, "height"))
			}
			if crop := g.value(n, "crop"); crop != "disabled" {
				r.leave(n.name()+" crop", crop)
			}
		case "ImageScaleToTotalPixels", "ImageScaleBy", "FluxKontextImageScale":
			img.Width = cmp.Or(img.Width, -1)
		case "InvertMask":
			img.Invert = !img.Invert
		case "ImageToMask", "MaskToImage":
		default:
			r.leave(n.name(), "changes an image")
			return nil
		}
		if input = "image"; n.Inputs[input] == nil {
			input = "mask"
		}
	}
	r.leave(from.name()+" "+input, "loads no image")
	return nil
}

// valueInputs are the inputs of nodes that have nothing but a value.
var valueInputs = []string{"value", "string", "text", "int", "float", "seed", "noise_seed", "prompt", "Text", "STRING"}

// value returns the value of an input, "" if it is not certain.
func (g comfyGraph) value(n *WorkflowNode, input string) string {
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
func (g comfyGraph) latent(n *WorkflowNode) *WorkflowNode {
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
func (g comfyGraph) readSampler(r *reading, w *Workflow) {
	parts := []*WorkflowNode{w.Sampler}
	start, before := "", ""
	for _, input := range []string{"noise", "guider", "sampler", "sigmas"} {
		n, output := g.source(w.Sampler, input)
		if n != nil && n.Class == "SplitSigmas" {
			if start = g.value(n, "step"); output == 0 {
				start, before = "", start
			}
			n = g.node(n, "sigmas")
		}
		if n != nil {
			parts = append(parts, n)
		}
	}
	read := func(n *WorkflowNode, input string) {
		if v := g.value(n, input); v != "" {
			r.read(input, v)
		} else if n.Inputs[input] != nil {
			r.leave(n.name()+" "+input, "comes from another node")
		}
	}
	for _, n := range parts {
		for _, input := range []string{"seed", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "denoise"} {
			read(n, input)
		}
		if n.Class == "BasicGuider" {
			r.read("cfg", "1") // without classifier-free guidance
		}
		start, before = cmp.Or(start, g.value(n, "start_at_step")), cmp.Or(before, g.value(n, "end_at_step"))
		if g.value(n, "add_noise") == "disable" || g.value(n, "return_with_leftover_noise") == "enable" {
			r.leave(n.name(), "is a part of a sampler")
		}
		for _, input := range []string{"positive", "negative", "conditioning"} {
			if n.Inputs[input] != nil {
				g.readText(r, w, n, input)
			}
		}
		if r.keys["model"] == "" {
			g.readModel(r, n)
		}
	}
	if n := g.latent(w.Sampler); n != nil && strings.HasPrefix(n.Class, "Empty") {
		read(n, "width")
		read(n, "height")
		r.take("denoising") // nothing is kept of an empty image
		if size := g.value(n, "batch_size"); size != "1" {
			w.count(size)
			r.leave(n.name()+" batch_size", size)
		}
	} else {
		g.readImage(r, w)
		start = r.start(start)
	}
	r.leave(w.Sampler.name()+" start_at_step", start)
	steps, _ := strconv.Atoi(r.values["steps"])
	if at, err := strconv.Atoi(before); err == nil && at < steps {
		r.leave(w.Sampler.name()+" end_at_step", before)
	}
}

// start takes the first step that runs of a sampler that starts from an image, and the part of the noise,
// for which ComfyUI adds steps, so that as many run as are asked for. It returns what is left.
func (r *reading) start(first string) string {
	steps, _ := strconv.ParseFloat(r.values["steps"], 64)
	k, _ := strconv.ParseFloat(first, 64)
	if d, _ := strconv.ParseFloat(r.values["denoising"], 64); d > 0 && d < 1 {
		r.set("steps", math.Floor(min(steps/d, MaxCount)))
	} else if k > 0 && k < steps {
		strength := k / steps
		if math.Floor(steps*strength) < k {
			strength = math.Nextafter(strength, 1)
		}
		r.set("image_strength", strength)
		return ""
	}
	return first
}

// count multiplies the batch by a number.
func (w *Workflow) count(text string) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= MaxCount/w.Batch {
		w.Batch *= n
	}
}

// readImage reads what a sampler starts from.
func (g comfyGraph) readImage(r *reading, w *Workflow) {
	n := g.node(w.Sampler, "latent_image")
	for range maxLinks {
		if n == nil {
			return
		}
		w.count(g.value(n, "amount"))
		if w.Mask == nil && n.Inputs["mask"] != nil {
			w.Mask = g.image(r, n, "mask")
		}
		r.leave(n.name()+" grow_mask_by", g.value(n, "grow_mask_by"))
		if n.Inputs["pixels"] != nil {
			if w.Image = g.image(r, n, "pixels"); n.Class == "VAEEncodeForInpaint" {
				r.take("denoising") // nothing is kept of the masked part
			}
			return
		}
		n = cmp.Or(g.node(n, "samples"), g.node(n, "latent"))
	}
}

// textInputs are the inputs of text encoders with the prompt.
var textInputs = []string{"text", "prompt", "user_prompt", "t5xxl", "clip_l"}

// conditioners are the nodes that add what is read to a conditioning.
var conditioners = []string{"FluxGuidance", "ReferenceLatent", "InpaintModelConditioning", "FluxKontextMultiReferenceLatentMethod"}

// readText reads the prompt that an input is connected to, and the guidance and the reference images on
// the way.
func (g comfyGraph) readText(r *reading, w *Workflow, from *WorkflowNode, input string) {
	side := input
	if side == "conditioning" {
		side = "positive"
	}
	n := g.node(from, input)
	for range maxLinks {
		if n == nil || n.Class == "ConditioningZeroOut" {
			return
		}
		if side == "positive" {
			if v := g.value(n, "guidance"); v != "" {
				r.read("guidance", v)
			}
			g.readReferences(r, w, n)
		}
		for _, name := range textInputs {
			if n.Inputs[name] == nil {
				continue
			}
			if v := g.value(n, name); v != "" || string(n.Inputs[name]) == `""` {
				r.read(side, v)
			} else {
				r.leave(n.name()+" "+name, "comes from another node")
			}
			return
		}
		next := cmp.Or(g.node(n, "conditioning"), g.node(n, side))
		if next == nil {
			r.leave(n.name(), "conditions in a way that is not known")
			return
		}
		if !slices.Contains(conditioners, n.Class) {
			r.leave(n.name(), "changes the conditioning")
		}
		n = next
	}
}

// readReferences adds the reference images of a node before those that are known.
func (g comfyGraph) readReferences(r *reading, w *Workflow, n *WorkflowNode) {
	var more []*WorkflowImage
	if latent := g.node(n, "latent"); n.Class == "ReferenceLatent" && latent != nil {
		n = latent
	}
	for _, input := range []string{"image", "image1", "image2", "image3", "pixels"} {
		if n.Inputs[input] == nil || n.Inputs["mask"] != nil {
			continue
		}
		img := g.image(r, n, input)
		if img != nil && !slices.ContainsFunc(w.References, func(o *WorkflowImage) bool { return o.Node == img.Node }) {
			more = append(more, img)
		}
	}
	w.References = append(more, w.References...)
}

// readModel reads the model and its LoRAs.
func (g comfyGraph) readModel(r *reading, from *WorkflowNode) {
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
				r.left = append(r.left, Leftover{n.name() + " " + name, v})
			}
		}
		n = g.node(n, "model")
	}
}

// readOthers lists the input images of nodes.
func (g comfyGraph) readOthers(r *reading) {
	for _, id := range slices.Sorted(maps.Keys(g)) {
		if n := g[id]; strings.HasPrefix(n.Class, "LoadImage") {
			r.leave(n.name(), g.value(n, "image"))
		}
	}
}
