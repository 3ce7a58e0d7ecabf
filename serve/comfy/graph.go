package comfy

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"maps"
	"slices"
	"strings"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/api"
	"github.com/gomflux/gomflux/serve/engine"
)

// A refusal is the error of a graph that cannot be run, as ComfyUI describes it.
type refusal struct {
	Problem problem                `json:"error"`
	Nodes   map[string]*nodeErrors `json:"node_errors"`
}

type problem struct {
	Type    string            `json:"type"`
	Message string            `json:"message"`
	Details string            `json:"details"`
	Extra   map[string]string `json:"extra_info"`
}

type nodeErrors struct {
	Errors     []problem `json:"errors"`
	Dependents []string  `json:"dependent_outputs"`
	Class      string    `json:"class_type"`
}

func refuse(kind, message, details string) *refusal {
	return &refusal{problem{kind, message, details, map[string]string{}}, map[string]*nodeErrors{}}
}

func invalid() *refusal {
	return refuse("prompt_outputs_failed_validation", "Prompt outputs failed validation", "")
}

func (e *refusal) Error() string { return e.Problem.Message + ": " + e.Problem.Details }

// add adds an error about an input of a node, "" for the node itself. The first one is named in all.
func (e *refusal) add(n *picture.WorkflowNode, in, kind, message string) {
	if len(e.Nodes) == 0 {
		e.Problem.Details = strings.TrimSpace(n.Class+" "+n.ID+" "+in) + ": " + message
	}
	if e.Nodes[n.ID] == nil {
		e.Nodes[n.ID] = &nodeErrors{Dependents: []string{}, Class: n.Class}
	}
	e.Nodes[n.ID].Errors = append(e.Nodes[n.ID].Errors, problem{kind, message, in, map[string]string{"input_name": in}})
}

// unsupported refuses a node.
func unsupported(n *picture.WorkflowNode, format string, args ...any) error {
	e := invalid()
	e.add(n, "", "custom_validation_failed", fmt.Sprintf(format, args...))
	return e
}

// read reads a graph, and checks its nodes.
func (h *Handler) read(text []byte) (*picture.Workflow, error) {
	flow, err := picture.ReadWorkflow(text)
	if err != nil {
		return nil, errs.Requestf("prompt: %w", err)
	}
	ids, saved := slices.Sorted(maps.Keys(flow.Nodes)), false
	for _, id := range ids {
		n := flow.Nodes[id]
		if classes[n.Class] == nil {
			e := refuse("missing_node_type", fmt.Sprintf("Cannot execute because node %s does not exist.", n.Class), "Node ID '#"+id+"'")
			e.Problem.Extra = map[string]string{"node_id": id, "class_type": n.Class}
			return nil, e
		}
		saved = saved || classes[n.Class].saves()
	}
	if !saved {
		return nil, refuse("prompt_no_outputs", "Prompt has no outputs", "")
	}
	e, lists := invalid(), h.lists()
	for _, id := range ids {
		h.check(e, flow, flow.Nodes[id], lists)
	}
	if len(e.Nodes) > 0 {
		return nil, e
	}
	return flow, nil
}

// without are inputs whose values the models do not take, for which there are warnings.
var without = []string{"sampler_name", "scheduler", "shift", "max_shift", "base_shift", "grow_mask_by"}

// followed returns what was not used of a graph, and refuses one that does more than its settings say.
func followed(flow *picture.Workflow) (warnings []string, err error) {
	if flow.Sampler == nil {
		return nil, errs.Requestf("prompt: expected one node that samples, or one that starts from an empty latent")
	}
	for _, l := range flow.NotUsed {
		words := strings.Fields(l.Field)
		switch last := words[len(words)-1]; {
		case slices.Contains(without, last):
			warnings = append(warnings, fmt.Sprintf("%s %s was not used", l.Field, l.Value))
		case last != "batch_size" && !strings.HasPrefix(l.Field, "LoadImage"):
			n := flow.Sampler
			if len(words) > 1 && flow.Nodes[words[1]] != nil {
				n = flow.Nodes[words[1]]
			}
			return nil, unsupported(n, "%s: not supported: %s", l.Field, l.Value)
		}
	}
	return warnings, nil
}

// enlarger returns the node that loads the network by which all images that are saved are enlarged, nil without one. They
// must be those of the sampler.
func enlarger(flow *picture.Workflow) (loader *picture.WorkflowNode, err error) {
	seen := false
	for _, id := range slices.Sorted(maps.Keys(flow.Nodes)) {
		n := flow.Nodes[id]
		from, _, saves := n.Link("images")
		if !saves {
			continue
		}
		d, samples, network := flow.Nodes[from], "", (*picture.WorkflowNode)(nil)
		if d.Class == "ImageUpscaleWithModel" {
			from, _, _ = d.Link("upscale_model")
			network = flow.Nodes[from]
			from, _, _ = d.Link("image")
			d = flow.Nodes[from]
		}
		if d != nil && strings.HasPrefix(d.Class, "VAEDecode") {
			samples, _, _ = d.Link("samples")
		}
		switch {
		case samples != flow.Sampler.ID:
			return nil, unsupported(n, "images: expected those of a VAEDecode of the sampler, or of one ImageUpscaleWithModel after it")
		case network != nil && network.Class != "UpscaleModelLoader", seen && network != loader:
			return nil, unsupported(n, "images: expected all that are saved to be enlarged by one UpscaleModelLoader, or none")
		}
		loader, seen = network, true
	}
	return loader, nil
}

// request translates a graph.
func (h *Handler) request(ctx context.Context, owner string, flow *picture.Workflow) (q engine.Request, err error) {
	s, m := &flow.Settings, engine.ModelInfo{}
	q = engine.Request{Client: engine.Client(ctx), Options: gomflux.OptionsFrom(s)}
	if q.Warnings, err = followed(flow); err != nil {
		return q, err
	}
	loader, err := enlarger(flow)
	if err != nil {
		return q, err
	}
	if loader != nil {
		if q.Options.Enlarge, err = api.Enlarge(loader.Text("model_name"), 0, 0); err != nil {
			return q, unsupported(loader, "%v", err)
		}
	}
	if !api.FindModel(h.engine.Models(), s.Model, &m) || flow.Batch > maxBatch {
		return q, unsupported(flow.Sampler, "expected a loader of a model, and a batch_size of at most %d", maxBatch)
	}
	q.Model, q.Seeds, q.LoRAs = m.Name, api.Seeds(&s.Seed, flow.Batch), api.NamedLoRAs(s.LoRAs, h.lists()["loras"])
	o := &q.Options
	o.Seed = nil
	if !slices.Contains(flow.Found, "guidance") {
		o.Guidance = nil // a model with a distilled scale uses its own
	}
	if m.GuidanceUnit == picture.DistilledCFGScale && !m.TrueCFG && o.TrueCFGScale > 1 {
		q.Warnings = append(q.Warnings, fmt.Sprintf("cfg %g was not used: %s takes guidance", o.TrueCFGScale, m.Name))
		o.TrueCFGScale = 0
	}
	if err := h.images(&q, owner, flow, &m); err != nil {
		return q, err
	}
	if w, h := api.Round(o.Width, &m), api.Round(o.Height, &m); w != o.Width || h != o.Height {
		q.Warnings = append(q.Warnings, fmt.Sprintf("the size %dx%d was rounded to %dx%d", o.Width, o.Height, w, h))
		o.Width, o.Height = w, h
	}
	return q, nil
}

// images adds the images of a graph.
func (h *Handler) images(q *engine.Request, owner string, flow *picture.Workflow, m *engine.ModelInfo) error {
	left, o := api.InputPixels(h.MaxPixels), &q.Options
	load := func(img *picture.WorkflowImage) (*picture.Picture, *picture.SourceImage, error) {
		name := cmp.Or(img.Node.Text("image"), img.Node.Text("id"))
		data := h.files.Get(inputFile(owner, name).key())
		if data == nil {
			return nil, nil, unsupported(img.Node, "Invalid image file: %s (it must be sent first)", name)
		}
		p, err := api.DecodeImage(data, &left)
		if err != nil {
			return nil, nil, unsupported(img.Node, "%s: %v", name, err)
		}
		if flow.Mask != nil && flow.Mask.Node == img.Node && p.Transparent != nil { // its transparency is the mask
			p.Image, p.Transparent = opaque(p.Transparent), nil
		}
		return p, &picture.SourceImage{Path: name, SHA256: p.SHA256}, nil
	}
	for _, img := range flow.References {
		p, source, err := load(img)
		if err != nil {
			return err
		}
		o.References, q.Sources.References = append(o.References, p.Pixels()), append(q.Sources.References, *source)
	}
	if flow.Image == nil {
		return nil
	}
	p, source, err := load(flow.Image)
	if err != nil {
		return err
	}
	kept := o.ImageStrength > 0 || flow.Mask != nil
	if o.Width, o.Height = max(0, flow.Image.Width), flow.Image.Height; kept && flow.Image.Width < 0 {
		return unsupported(flow.Image.Node, "expected ImageScale for an image to start from")
	}
	if kept {
		o.Image, q.Sources.Image = p.Pixels(), source
	} else if len(o.References) == 0 { // only noise, in its size
		api.SizeOfNoise(o, p.Image.Bounds().Size(), m, h.MaxPixels)
	}
	if flow.Mask == nil {
		return nil
	}
	mask, source, err := load(flow.Mask)
	if err != nil {
		return err
	}
	q.Sources.Mask, o.Inpaint.Invert = source, flow.Mask.Invert
	if o.Mask = mask.Image; flow.Mask.Output == 1 || flow.Mask.Node.Text("channel") == "alpha" {
		if mask.Alpha == nil {
			return unsupported(flow.Mask.Node, "the image has no transparent pixels, which would be the mask")
		}
		o.Mask = mask.Alpha
	}
	return api.CheckMask(o, api.InputPixels(h.MaxPixels))
}

// opaque returns an image without its transparency, with the colours below it.
func opaque(img *image.NRGBA) *image.RGBA {
	out := &image.RGBA{Pix: bytes.Clone(img.Pix), Stride: img.Stride, Rect: img.Rect}
	for i := 3; i < len(out.Pix); i += 4 {
		out.Pix[i] = 255
	}
	return out
}
