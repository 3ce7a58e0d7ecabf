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
	params   map[string]nn.Parameter
	tables   []*layout.Table
	prefixes []*regexp.Regexp
	// modules has the names of modules in all layouts. The keys are the names without
	// separators, see flat.
	modules map[string][]string
}

func newComponent(c Component) *component {
	out := &component{Component: c, params: map[string]nn.Parameter{}, modules: map[string][]string{}}
	params := nn.Parameters(c.Model)
	for _, p := range params {
		out.params[p.Name] = p
	}
	out.tables = slices.Clone(c.Tables)
	for _, rule := range c.Rules { // tables of their own, because a table has one name for each parameter
		out.tables = append(out.tables, &layout.Table{Rules: []layout.Rule{rule}})
	}
	for _, p := range params {
		out.addModule(p.Name)
		for _, t := range out.tables {
			other, _, _ := t.Other(p.Name)
			out.addModule(other)
		}
	}
	kind := "transformer"
	if !out.transformer() {
		kind = c.Name
	}
	out.prefixes = slices.Concat(prefixes[kind], prefixes[""])
	return out
}

// addModule adds the module of a tensor to modules.
func (c *component) addModule(name string) {
	module := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias")
	key := flat(module)
	if !slices.Contains(c.modules[key], module) {
		c.modules[key] = append(c.modules[key], module)
	}
}

// flat returns the letters and digits of a name, with an underscore between numbers. Programs
// separate words differently, and some of them twice or not at all.
func flat(name string) string {
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	var out []byte
	separated := false
	for i := range len(name) {
		c := name[i]
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') {
			separated = true
			continue
		}
		if separated && len(out) > 0 && isDigit(c) && isDigit(out[len(out)-1]) {
			out = append(out, '_')
		}
		out, separated = append(out, c), false
	}
	return string(out)
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

// lookUp finds a module by its name without a prefix, with any separators. It returns the
// name with dots in one of the layouts, "" if there is no such module or if there are several.
func (c *component) lookUp(module string) (found string) {
	if c.pieces(module, ".weight") != nil {
		return module
	}
	var first []piece
	for _, name := range c.modules[flat(module)] {
		switch pieces := c.pieces(name, ".weight"); {
		case pieces == nil:
		case found == "":
			found, first = name, pieces
		case !slices.EqualFunc(pieces, first, func(a, b piece) bool { return a.Name == b.Name && a.from == b.from }):
			return ""
		}
	}
	return found
}

// layerNumber matches the number of a text encoder's layer. All layers have the same
// modules.
var layerNumber = regexp.MustCompile(`(^|[._])(layers|block)([._])\d+([._])`)

// isUnusedLayer reports whether a module belongs to one of a text encoder's last
// layers, which are not declared because the pipeline does not use their output.
func (c *component) isUnusedLayer(raw string) bool { return c.UnusedLayers && c.hasInFirstLayer(raw) }

// hasInFirstLayer reports whether the component has a module, or one in layer 0 that is the same
// apart from the layer's number.
func (c *component) hasInFirstLayer(raw string) bool {
	return c.findModule(layerNumber.ReplaceAllString(raw, "${1}${2}${3}0${4}")) != ""
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
	names := []string{raw} // without prefixes, of which a name can have several
	for i := 0; i < len(names) && i < 8; i++ {
		for _, prefix := range c.prefixes {
			if found := prefix.FindString(names[i]); found != "" {
				names = append(names, names[i][len(found):])
			}
		}
	}
	if !c.transformer() {
		for _, name := range slices.Clone(names) {
			names = append(names, "language_model."+name)
		}
	}
	for _, name := range names {
		if module := c.lookUp(name); module != "" {
			return module
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

func (c *component) transformer() bool { return !strings.HasPrefix(c.Name, "text_") }

// unusable returns an error about tensors that match no layer, nil if all of them can be left out:
// those that change nothing in any pipeline, and with Partial all. It adds warnings about them.
func (m *matching) unusable(f *file, spec Spec, components []*component, hints []Hint) error {
	keys := m.unmatched
	for _, format := range unsupported {
		if own := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !format.names.MatchString(key) }); len(own) > 0 {
			e := newUnmatchedError(f, own, components, nil)
			e.Format = format.what
			return e
		}
	}
	leaveOut := func(what string, is func(string) bool) {
		var out, left []string
		for _, key := range keys {
			if is(key) {
				out = append(out, key)
			} else {
				left = append(left, key)
			}
		}
		if keys = left; len(out) > 0 {
			m.warn(f, "left out %d of its %d tensors, %s: %s", len(out), len(f.Header.Names), what, list(out))
		}
	}
	if len(m.modules) > 0 {
		for _, part := range foreign {
			leaveOut(part.what, part.names.MatchString)
		}
		leaveOut("of a text encoder that the pipeline does not have", func(key string) bool { return m.isOtherEncoder(key, components) })
		if spec.Partial {
			leaveOut("which match no layer", func(string) bool { return true })
		}
	}
	if len(keys) > 0 {
		return newUnmatchedError(f, keys, components, hints)
	}
	return nil
}

// isOtherEncoder reports whether a tensor belongs to a text encoder that is not one of the components.
func (m *matching) isOtherEncoder(key string, components []*component) bool {
	prefix := textEncoder.FindString(key)
	if prefix == "" {
		return false
	}
	for raw := range m.modules {
		if strings.HasPrefix(raw, prefix) {
			return false
		}
	}
	raw, _, ok := parseKey(key)
	return ok && !slices.ContainsFunc(components, func(c *component) bool { return c.hasInFirstLayer(raw) })
}

func newUnmatchedError(f *file, keys []string, components []*component, hints []Hint) *UnmatchedError {
	slices.Sort(keys)
	e := &UnmatchedError{File: f.Name, Keys: keys, Tensors: len(f.Header.Names)}
	for _, c := range components {
		e.Classes = append(e.Classes, c.Class)
	}
	e.NotLoRA = len(keys) == e.Tensors && !slices.ContainsFunc(keys, func(key string) bool { _, _, ok := parseKey(key); return ok })
	if !e.NotLoRA {
		e.For = guessModel(f.Header.Names, hints, e.Classes)
	}
	return e
}
