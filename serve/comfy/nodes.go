package comfy

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
)

// nodeTable has a line for each class of nodes: its inputs, those with ? are optional, with a type, the
// name of a list or the values, and a default; and its outputs: classes without outputs save images.
//
//go:embed nodes.txt
var nodeTable string

// classes are the lines of the table.
var classes = parseTable(nodeTable)

type nodeClass struct {
	inputs  []input
	outputs []string
}

type input struct {
	name, kind, otherwise string
	optional              bool
}

// saves reports whether nodes of the class are outputs of a graph.
func (c *nodeClass) saves() bool { return len(c.outputs) == 0 }

func parseTable(table string) map[string]*nodeClass {
	all := map[string]*nodeClass{}
	for line := range strings.Lines(table) {
		name, rest, _ := strings.Cut(line, ": ")
		inputs, outputs, _ := strings.Cut(rest, "->")
		c := &nodeClass{outputs: append([]string{}, strings.Fields(outputs)...)}
		for text := range strings.SplitSeq(inputs, ",") {
			words := strings.Fields(text)
			in := input{name: strings.TrimSuffix(words[0], "?"), optional: strings.HasSuffix(words[0], "?")}
			in.kind, in.otherwise, _ = strings.Cut(words[1], "=")
			c.inputs = append(c.inputs, in)
		}
		all[name] = c
	}
	return all
}

// lists are the values of inputs that depend on the server. The table has ComfyUI's names of text encoders
// and autoencoders, which stand for those of the model whichever a graph names.
func (h *Handler) lists() map[string][]string {
	models, loras := []string{}, append([]string{}, h.LoRAs()...)
	for _, m := range h.engine.Models() {
		if m.Missing == "" {
			models = append(models, m.Name)
		}
	}
	upscalers := []string{}
	for _, u := range api.Upscalers() {
		upscalers = append(upscalers, u.Name)
	}
	return map[string][]string{"checkpoints": models, "diffusion_models": models, "loras": loras, "images": {}, "upscale_models": upscalers}
}

func (h *Handler) modelFolder(_ http.ResponseWriter, r *http.Request) (any, error) {
	if list, ok := h.lists()[r.PathValue("folder")]; ok {
		return list, nil
	}
	return nil, errs.NotFound(fmt.Errorf("no such folder of models (GET /models lists them)"))
}

// values returns the values that an input can have, nil for one with a type.
func (in *input) values(lists map[string][]string) []string {
	if in.kind == strings.ToUpper(in.kind) {
		return nil
	}
	if values, ok := lists[in.kind]; ok {
		return values
	}
	return strings.Split(in.kind, "|")
}

// objectInfo describes the nodes that graphs can have, as ComfyUI does.
func (h *Handler) objectInfo(_ http.ResponseWriter, r *http.Request) (any, error) {
	lists, all := h.lists(), map[string]any{}
	for name, c := range classes {
		if only := r.PathValue("class"); only != "" && only != name {
			continue
		}
		inputs, order := map[string]map[string]any{"required": {}, "optional": {}}, map[string][]string{"required": {}, "optional": {}}
		for _, in := range c.inputs {
			part, options, kind := "required", map[string]any{}, any(in.kind)
			if in.optional {
				part = "optional"
			}
			if values := in.values(lists); values != nil {
				kind = values
			}
			if in.otherwise != "" {
				var value any = in.otherwise
				json.Unmarshal([]byte(in.otherwise), &value) // a number, unless it fails
				options["default"] = value
			}
			inputs[part][in.name], order[part] = []any{kind, options}, append(order[part], in.name)
		}
		all[name] = map[string]any{
			"input": inputs, "input_order": order, "output": c.outputs, "output_name": c.outputs, "name": name, "display_name": name,
			"output_is_list": make([]bool, len(c.outputs)), "description": "", "category": "gomflux", "output_node": c.saves(),
		}
	}
	return all, nil
}

// check adds what is wrong with the inputs of a node to a refusal.
func (h *Handler) check(e *refusal, flow *picture.Workflow, n *picture.WorkflowNode, lists map[string][]string) {
	for _, in := range classes[n.Class].inputs {
		text, values := n.Text(in.name), in.values(lists)
		from, output, linked := n.Link(in.name)
		switch to := flow.Nodes[from]; {
		case linked:
			if to == nil || output < 0 || output >= len(classes[to.Class].outputs) {
				e.add(n, in.name, "bad_linked_input", "Bad linked input, must be a length-2 list of [node_id, slot_index]")
			}
		case len(n.Inputs[in.name]) == 0 || text == "null":
			if !in.optional && in.otherwise == "" {
				e.add(n, in.name, "required_input_missing", "Required input is missing")
			}
		case (in.kind == "checkpoints" || in.kind == "diffusion_models") && !api.FindModel(h.engine.Models(), text, nil),
			in.kind == "loras" && !slices.Contains(values, picture.LoRA{Path: text}.Named(values).Path):
			e.add(n, in.name, "value_not_in_list", fmt.Sprintf("Value not in list: %.200q not in %q", text, values))
		}
	}
}
