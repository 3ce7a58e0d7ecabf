package lora

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A piece is the part of an update that changes one parameter.
type piece struct {
	nn.Parameter
	from, to int  // the rows of the update
	swap     bool // whether the two halves of these rows are exchanged
}

// A component is a Component with the names that files may use for its parameters.
type component struct {
	Component
	params map[string]nn.Parameter
	tables []*layout.Table
	// modules has the names of modules in all layouts. The keys are the names with
	// underscores instead of dots.
	modules map[string][]string
}

func newComponent(c Component) *component {
	out := &component{Component: c, params: map[string]nn.Parameter{}, modules: map[string][]string{}}
	params := nn.Parameters(c.Model)
	for _, p := range params {
		out.params[p.Name] = p
	}
	out.tables = append(slices.Clone(c.Tables), &layout.Table{Rules: c.Rules})
	for _, p := range params {
		out.addModule(p.Name)
		for _, t := range out.tables {
			other, _, _ := t.Other(p.Name)
			out.addModule(other)
		}
	}
	return out
}

// addModule adds the module of a tensor to modules.
func (c *component) addModule(name string) {
	module := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias")
	key := strings.ReplaceAll(module, ".", "_")
	if !slices.Contains(c.modules[key], module) {
		c.modules[key] = append(c.modules[key], module)
	}
}

// pieces returns the parameters that are the weight (or bias, depending on suffix) of a
// module in any layout, nil if there is no such module.
func (c *component) pieces(module, suffix string) []piece {
	candidates := []string{module + suffix}
	if suffix == ".weight" { // a parameter of its own, which is not the weight of a module
		candidates = append(candidates, module)
	}
	for _, name := range candidates {
		if p, ok := c.params[name]; ok {
			return []piece{{Parameter: p, to: rows(p)}}
		}
	}
	for _, t := range c.tables {
		for _, name := range candidates {
			if names, rule := t.Names(name); len(rule.Names) > 0 {
				if found := c.divide(names, rule); found != nil {
					return found
				}
			}
		}
	}
	return nil
}

// divide divides the rows of a tensor that another layout has fused among parameters.
func (c *component) divide(names []string, rule layout.Rule) (out []piece) {
	at := 0
	for _, name := range names {
		p, ok := c.params[name]
		if !ok {
			return nil
		}
		one := piece{Parameter: p, from: at, to: at + rows(p)}
		for _, op := range rule.Transforms {
			switch op {
			case checkpoint.TransformSwap:
				one.swap = true
			case checkpoint.TransformSqueeze: // axes of 1 are removed anyway
			default:
				return nil
			}
		}
		at = one.to
		out = append(out, one)
	}
	return out
}

func rows(p nn.Parameter) int { return p.Stored()[0] }

// lookUp finds a module by its name without a prefix, with dots or underscores. It
// returns the name with dots in one of the layouts, "" if there is no such module.
func (c *component) lookUp(module string) string {
	if c.pieces(module, ".weight") != nil {
		return module
	}
	for _, name := range c.modules[strings.ReplaceAll(module, ".", "_")] {
		if c.pieces(name, ".weight") != nil {
			return name
		}
	}
	return ""
}

// layerNumber matches the number of a text encoder's layer. All layers have the same
// modules.
var layerNumber = regexp.MustCompile(`(^|[._])layers([._])\d+([._])`)

// isUnusedLayer reports whether a module belongs to one of a text encoder's last
// layers, which are not declared because the pipeline does not use their output.
func (c *component) isUnusedLayer(raw string) bool {
	first := layerNumber.ReplaceAllString(raw, "${1}layers${2}0${3}")
	return c.UnusedLayers && c.findModule(first) != ""
}

// findModule finds the component and the name of a module, with dots and without a
// prefix, by the name that a file uses for it.
func findModule(components []*component, raw string) (*component, string) {
	for _, c := range components {
		if name := c.findModule(raw); name != "" {
			return c, name
		}
	}
	return nil, ""
}

// findModule is like the function of that name, for one component. It returns "" if
// the component has no such module.
func (c *component) findModule(raw string) string {
	for _, prefix := range c.prefixes(raw) {
		names := []string{raw[len(prefix):]}
		if !c.transformer() { // prefixes that checkpoints of text encoders may have
			for _, before := range []string{"text_model.", "text_model_", "model.", "model_"} {
				if cut, ok := strings.CutPrefix(names[0], before); ok {
					names = append(names, cut)
				}
			}
			for _, name := range names {
				names = append(names, "language_model."+name)
			}
		}
		for _, name := range names {
			if module := c.lookUp(name); module != "" {
				return module
			}
		}
	}
	return ""
}

// searchOrder returns the component's position in the search for a module.
func (c *component) searchOrder() int {
	if c.transformer() {
		return 0
	}
	return 1
}

func (c *component) transformer() bool { return !strings.HasPrefix(c.Name, "text_encoder") }

var (
	comfyTextPrefix = regexp.MustCompile(`^text_encoders\.[A-Za-z0-9_]+\.(transformer\.)?`)
	outerPrefixes   = []string{"", "base_model.model.", "module."}
	// prefixes of a transformer's modules
	transformerPrefixes = []string{
		"transformer.", "model.diffusion_model.", "diffusion_model.", "unet.", "model.",
		"lora_unet_", "lora_transformer_", "lycoris_",
	}
	// prefixes of a text encoder's modules, in addition to its folder. kohya counts text
	// encoders from 1, and T5 is 3.
	textPrefixes = map[string][]string{
		"text_encoder":   {"lora_te_", "lora_te1_", "lycoris_"},
		"text_encoder_2": {"lora_te2_", "lora_te3_"},
	}
)

// prefixes returns the known prefixes of a name.
func (c *component) prefixes(raw string) (out []string) {
	for _, outer := range outerPrefixes {
		rest, ok := strings.CutPrefix(raw, outer)
		if !ok {
			continue
		}
		known := transformerPrefixes
		if !c.transformer() {
			known = append([]string{c.Name + "."}, textPrefixes[c.Name]...)
			if found := comfyTextPrefix.FindString(rest); found != "" {
				known = append(known, found, strings.TrimSuffix(found, "transformer."))
			}
		}
		out = append(out, outer)
		for _, prefix := range known {
			if strings.HasPrefix(rest, prefix) {
				out = append(out, outer+prefix)
			}
		}
	}
	return out
}

func newUnmatchedError(f *file, keys []string, components []*component, hints []Hint) *UnmatchedError {
	slices.Sort(keys)
	e := &UnmatchedError{File: f.Name, Keys: keys, Tensors: len(f.Header.Names)}
	for _, c := range components {
		e.Classes = append(e.Classes, c.Class)
	}
	e.NotLoRA = len(keys) == e.Tensors && !slices.ContainsFunc(keys, func(key string) bool { _, _, ok := parseKey(key); return ok })
	if len(keys) == e.Tensors && !e.NotLoRA {
		e.For = guessModel(keys, hints)
	}
	return e
}
