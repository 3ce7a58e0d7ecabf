// Package layout translates tensor names of other layouts (those of the models'
// original repositories, ComfyUI and mflux) to those of diffusers and transformers,
// and back. The tables of names come from the component classes (package
// models/component). The package reads names and shapes only.
package layout

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Table maps the names of a layout to those of one class of diffusers or
// transformers. It is used in both directions. Names without a rule are the same
// in both.
type Table struct {
	// Name is the name of the layout: original or mflux.
	Name string
	// Class is the class in model_index.json of the module with these tensors.
	Class string
	// Prefixes are optional prefixes of all names, in files that also contain
	// other modules.
	Prefixes []string
	// Prefixed means that all names have one of the prefixes.
	Prefixed bool
	// Signature lists tensors that every file of the layout has, and no file of
	// another layout of the class.
	Signature []string
	// Metadata, if set, is a key that the files' metadata must have.
	Metadata string
	// ChannelsLast means that the last axis of convolutions is the channels.
	ChannelsLast bool
	// OneFrame means that convolutions may have an axis of one frame, which diffusers' lack.
	OneFrame bool
	// Unquantized means that the layout's readers expect weights that are not quantized.
	Unquantized bool
	Rules       []Rule
	// Repeats lists tensors that the layout stores more than once.
	Repeats []Repeat
	// Lacks are patterns (path.Match) of diffusers' names of tensors that the layout
	// does not store.
	Lacks []string
}

// A Repeat is a tensor of which a layout stores a copy in every block. In the
// names {} stands for the number of the block.
type Repeat struct {
	Tensor string // the layout's name, without a number
	Again  string // the layout's name in a block
	Per    string // the name of a tensor that every block has
}

// A Rule maps the name of a module or a tensor. In the names {} stands for a
// number.
type Rule struct {
	// Other is the name in the layout.
	Other string
	// Names are the names in diffusers. If there are several, their rows are
	// concatenated in the layout.
	Names []string
	// Transforms convert the layout's tensors to diffusers'.
	Transforms []checkpoint.TransformOp
}

// View returns the tensors of a checkpoint under diffusers' names, and the first
// of the tables that matches the checkpoint. If the checkpoint has diffusers'
// names already, View returns it unchanged, without a table. shapes has the
// class's shapes under diffusers' names; they determine how concatenated rows are
// divided. Tensors with unknown names keep them.
func View(ck *checkpoint.Checkpoint, tables []*Table, shapes map[string][]int) (*checkpoint.Checkpoint, *Table, error) {
	unchanged := func(a, b checkpoint.Tensor) bool { return a.Name == b.Name && len(a.Transforms) == 0 }
	for _, t := range tables {
		if prefix, ok := t.Matches(ck); ok {
			view, err := t.view(ck, prefix, shapes)
			if err == nil && maps.EqualFunc(view.Tensors, ck.Tensors, unchanged) {
				return ck, nil, nil
			}
			return view, t, err
		}
	}
	return ck, nil, nil
}

// ignored lists the last parts of names that ComfyUI and others store next to
// 8-bit weights and that are not needed to read these.
var ignored = []string{"scaled_fp8", "input_scale", "scale_input", "comfy_quant"}

// IsIgnored reports whether a tensor is not needed to read 8-bit weights.
func IsIgnored(name string) bool {
	return slices.Contains(ignored, name[strings.LastIndexByte(name, '.')+1:])
}

// Matches reports whether a checkpoint has the layout, and returns the prefix of
// its names.
func (t *Table) Matches(ck *checkpoint.Checkpoint) (prefix string, ok bool) {
	hasKey := func(f *checkpoint.File) bool { return f.Header.Metadata[t.Metadata] != "" }
	if t.Metadata != "" && !slices.ContainsFunc(ck.Files, hasKey) {
		return "", false
	}
	prefixes := t.Prefixes
	if !t.Prefixed {
		prefixes = append([]string{""}, prefixes...)
	}
	for _, prefix := range prefixes {
		if !slices.ContainsFunc(t.Signature, func(name string) bool { _, ok := ck.Tensors[prefix+name]; return !ok }) {
			return prefix, true
		}
	}
	return "", false
}

func (t *Table) view(ck *checkpoint.Checkpoint, prefix string, shapes map[string][]int) (*checkpoint.Checkpoint, error) {
	view := &checkpoint.Checkpoint{
		Dir: ck.Dir, Files: ck.Files, Tensors: make(map[string]checkpoint.Tensor, len(ck.Tensors)), Inferred: ck.Inferred,
	}
	for _, stored := range slices.Sorted(maps.Keys(ck.Tensors)) {
		other, ok := strings.CutPrefix(stored, prefix)
		if !ok || IsIgnored(stored) {
			continue // not a tensor of this module
		}
		tensor := ck.Tensors[stored]
		names, rule := t.Names(other)
		transforms := t.transforms(tensor, rule)
		at, divided := 0, len(names) > 1
		if tensor.Bytes() <= int64(tensor.Dtype.Bits()/8) { // a scalar applies to all parts
			divided, transforms = false, nil
		}
		for _, name := range names {
			part, err := tensor, error(nil)
			if divided {
				shape := shapes[rowsOf(name)]
				if len(shape) == 0 {
					return nil, fmt.Errorf("%s: tensor %s: contains %s, whose size is not known", tensor.File, stored, name)
				}
				part, err = part.Apply(checkpoint.Transform{Op: checkpoint.TransformRows, From: at, To: at + shape[0]})
				at += shape[0]
			}
			for _, op := range transforms {
				if err == nil {
					part, err = part.Apply(checkpoint.Transform{Op: op})
				}
			}
			if err != nil {
				return nil, fmt.Errorf("%w (%s layout of %s)", err, t.Name, t.Class)
			}
			if before, dup := view.Tensors[name]; dup {
				return nil, fmt.Errorf("%s: tensors %s and %s are both %s", tensor.File, before.Name, stored, name)
			}
			view.Tensors[name] = part
		}
		if divided && at != tensor.Shape[0] {
			return nil, fmt.Errorf("%s: tensor %s: expected %d rows, for %s, found shape %v",
				tensor.File, stored, at, strings.Join(names, ", "), tensor.Shape)
		}
	}
	return view, nil
}

// transforms returns those of a tensor with the layout's shape.
func (t *Table) transforms(tensor checkpoint.Tensor, rule Rule) []checkpoint.TransformOp {
	switch {
	case len(rule.Transforms) > 0:
		return rule.Transforms
	case t.ChannelsLast && len(tensor.Shape) > 3:
		return []checkpoint.TransformOp{checkpoint.TransformChannelsFirst}
	case t.OneFrame && len(tensor.Shape) == 5:
		return []checkpoint.TransformOp{checkpoint.TransformFrame}
	}
	return nil
}

// maxName limits the length of names that are compared with rules, since the
// comparison is slow for long names.
const maxName = 1000

// rowsOf returns the name of a tensor with the same number of rows: that of the
// weight for the scales and biases of a quantized weight.
func rowsOf(name string) string {
	for _, suffix := range []string{".scales", ".biases"} {
		if module, ok := strings.CutSuffix(name, suffix); ok {
			return module + ".weight"
		}
	}
	return name
}

// Names returns diffusers' names for the name of a tensor or a module in the
// layout, without its prefix, and the rule that it used. The rule is zero if the
// name is the same in both.
func (t *Table) Names(other string) ([]string, Rule) {
	if len(other) > maxName {
		return []string{other}, Rule{}
	}
	for module := other; ; {
		for _, rule := range t.Rules {
			if numbers, ok := match(rule.Other, module); ok {
				names := make([]string, len(rule.Names))
				for i, name := range rule.Names {
					names[i] = fill(name, numbers) + other[len(module):]
				}
				return names, rule
			}
		}
		i := strings.LastIndexByte(module, '.')
		if i < 0 {
			return []string{other}, Rule{}
		}
		module = module[:i]
	}
}

// Other returns the layout's name for the name of a tensor or a module in
// diffusers, the rule that it used, and the index of the name in Rule.Names.
func (t *Table) Other(name string) (other string, rule Rule, part int) {
	for module := name; ; {
		for _, rule := range t.Rules {
			for part, pattern := range rule.Names {
				if numbers, ok := match(pattern, module); ok {
					return fill(rule.Other, numbers) + name[len(module):], rule, part
				}
			}
		}
		i := strings.LastIndexByte(module, '.')
		if i < 0 {
			return name, Rule{}, 0
		}
		module = module[:i]
	}
}

// match compares a name with a pattern, in which {} stands for a number, and
// returns the numbers.
func match(pattern, name string) (numbers []string, ok bool) {
	for {
		before, after, open := strings.Cut(pattern, "{}")
		rest, ok := strings.CutPrefix(name, before)
		if !ok {
			return nil, false
		}
		if !open {
			return numbers, rest == ""
		}
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		if n == 0 {
			return nil, false
		}
		numbers = append(numbers, rest[:n])
		pattern, name = after, rest[n:]
	}
}

// fill replaces each {} in a pattern by a number.
func fill(pattern string, numbers []string) string {
	for _, n := range numbers {
		pattern = strings.Replace(pattern, "{}", n, 1)
	}
	return pattern
}

// Repeated returns, for each tensor that the layout stores more than once, the
// names of its copies. names are all names of the layout.
func (t *Table) Repeated(names []string) map[string][]string {
	again := map[string][]string{}
	for _, r := range t.Repeats {
		for _, name := range names {
			numbers, ok := match(r.Per, name)
			if ok && fill(r.Again, numbers) != r.Tensor {
				again[r.Tensor] = append(again[r.Tensor], fill(r.Again, numbers))
			}
		}
	}
	return again
}

// Without reports whether the layout lacks a tensor of diffusers.
func (t *Table) Without(name string) bool {
	return slices.ContainsFunc(t.Lacks, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}
