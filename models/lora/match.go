package lora

import (
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/checkpoint/layout"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A piece is what one parameter takes of an update: rows from to to, of which the
// halves may have to be exchanged.
type piece struct {
	nn.Parameter
	from, to int
	swap     bool
}

// A component is one with the names that files may have for its parameters.
type component struct {
	Component
	params map[string]nn.Parameter
	tables []*layout.Table
	// flat has the names of modules in every layout, by what they are with
	// underscores instead of dots.
	flat map[string][]string
}

func newComponent(c Component) *component {
	out := &component{Component: c, params: map[string]nn.Parameter{}, flat: map[string][]string{}}
	params := nn.Parameters(c.Model)
	for _, p := range params {
		out.params[p.Name] = p
	}
	out.tables = append(slices.Clone(c.Tables), &layout.Table{Rules: c.Rules})
	for _, p := range params {
		out.flatten(p.Name)
		for _, t := range out.tables {
			other, _, _ := t.Other(p.Name)
			out.flatten(other)
		}
	}
	return out
}

// flatten enters the module of a tensor into flat.
func (c *component) flatten(name string) {
	module := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias")
	key := strings.ReplaceAll(module, ".", "_")
	if !slices.Contains(c.flat[key], module) {
		c.flat[key] = append(c.flat[key], module)
	}
}

// pieces are the parameters that are the weight or the bias of a module, under
// whatever name, nil for none.
func (c *component) pieces(module, suffix string) []piece {
	candidates := []string{module + suffix}
	if suffix == ".weight" { // a parameter that is no module's weight
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

// divide gives parameters their rows of what another layout has as one.
func (c *component) divide(names []string, rule layout.Rule) (out []piece) {
	at := 0
	for _, name := range names {
		p, ok := c.params[name]
		if !ok {
			return nil
		}
		one := piece{Parameter: p, from: at, to: at + rows(p)}
		for _, op := range rule.Forms {
			switch op {
			case checkpoint.FormSwap:
				one.swap = true
			case checkpoint.FormSqueeze: // axes of 1 are dropped anyway
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

// own finds a module by its name without a prefix, and returns that with dots in
// one of the layouts; "" for none.
func (c *component) own(module string) string {
	if c.pieces(module, ".weight") != nil {
		return module
	}
	for _, name := range c.flat[strings.ReplaceAll(module, ".", "_")] {
		if c.pieces(name, ".weight") != nil {
			return name
		}
	}
	return ""
}

// layerNumber is that of a text encoder's layer, whose modules are all alike.
var layerNumber = regexp.MustCompile(`(^|[._])layers([._])\d+([._])`)

// unused says whether a module would be one of a layer that a text encoder has,
// but that is not declared, because nothing that comes behind it is used.
func (c *component) unused(raw string) bool {
	first := layerNumber.ReplaceAllString(raw, "${1}layers${2}0${3}")
	return c.Beyond && c.find(first) != ""
}

// find finds a module by the name that a file has for it; "" for none.
func (c *component) find(raw string) string {
	for _, prefix := range c.prefixes(raw) {
		names := []string{raw[len(prefix):]}
		if !c.transformer() { // what checkpoints put before the names of a text encoder, or do not
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
			if module := c.own(name); module != "" {
				return module
			}
		}
	}
	return ""
}

// rank is the component's place among those that are looked through.
func (c *component) rank() int {
	if c.transformer() {
		return 0
	}
	return 1
}

func (c *component) transformer() bool { return !strings.HasPrefix(c.Name, "text_encoder") }

var (
	comfyText = regexp.MustCompile(`^text_encoders\.[A-Za-z0-9_]+\.(transformer\.)?`)
	ofModel   = []string{"", "base_model.model.", "module."}
	// what may be before the names of a transformer's modules
	ofTransformer = []string{
		"transformer.", "model.diffusion_model.", "diffusion_model.", "unet.", "model.",
		"lora_unet_", "lora_transformer_", "lycoris_",
	}
	// and of a text encoder's, besides its folder. kohya counts from 1, and has T5 as 3.
	ofText = map[string][]string{
		"text_encoder":   {"lora_te_", "lora_te1_", "lycoris_"},
		"text_encoder_2": {"lora_te2_", "lora_te3_"},
	}
)

// prefixes are those that a name begins with.
func (c *component) prefixes(raw string) (out []string) {
	for _, outer := range ofModel {
		rest, ok := strings.CutPrefix(raw, outer)
		if !ok {
			continue
		}
		known := ofTransformer
		if !c.transformer() {
			known = append([]string{c.Name + "."}, ofText[c.Name]...)
			if found := comfyText.FindString(rest); found != "" {
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
	e.Foreign = len(keys) == e.Tensors && !slices.ContainsFunc(keys, func(key string) bool { _, _, ok := parseKey(key); return ok })
	if len(keys) == e.Tensors && !e.Foreign {
		e.For = guess(keys, hints)
	}
	return e
}
