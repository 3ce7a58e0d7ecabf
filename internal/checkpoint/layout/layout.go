// Package layout gives tensors that other programs have named the names that they
// have in diffusers and transformers, and back, by tables of names: those of the
// models' makers, ComfyUI and mflux. The tables are those of the component classes
// (package models/component). It reads names and shapes only.
package layout

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A Table is what a layout calls the modules of one class of diffusers or
// transformers. It is read both ways. What has no rule is called the same.
type Table struct {
	// Name is the layout's: original or mflux.
	Name string
	// Class is that of the module whose tensors these are, as model_index.json
	// names it.
	Class string
	// Prefixes are what a file that holds other modules too may put before all
	// names. It can do without.
	Prefixes []string
	// Signature are names of tensors that all files of the layout have, and no
	// others of this class.
	Signature []string
	// Metadata, if set, is a key that the metadata of its files have.
	Metadata string
	// ChannelsLast says that convolutions have their channels in the last axis.
	ChannelsLast bool
	Rules        []Rule
	// Repeats are tensors that the layout has more than once.
	Repeats []Repeat
	// Lacks are patterns (path.Match) of diffusers' names of tensors that the layout
	// does not have.
	Lacks []string
}

// A Repeat is a tensor that a layout has again in every block, in the names of
// which {} stands for the block's number.
type Repeat struct {
	Tensor string // the layout's name, without a number
	Again  string // in a block
	Per    string // a tensor that every block has
}

// A Rule is what a layout calls one module, or one tensor. In the names {} stands
// for a number.
type Rule struct {
	Other string
	// Names are diffusers'. The rows of several follow one another in the one of
	// the layout.
	Names []string
	// Forms lead from the layout's tensors to diffusers'.
	Forms []checkpoint.FormOp
}

// View returns the tensors of a checkpoint under diffusers' names, by the first
// of some tables that it has the layout of, and that table. It is the checkpoint itself, and no table, if it has
// the names already. Shapes are those that the class has under diffusers' names;
// they tell how rows that are stored as one are divided. Tensors of a name that
// the layout does not know stay under that name.
func View(ck *checkpoint.Checkpoint, tables []*Table, shapes map[string][]int) (*checkpoint.Checkpoint, *Table, error) {
	for _, t := range tables {
		if prefix, ok := t.Matches(ck); ok {
			view, err := t.view(ck, prefix, shapes)
			if err == nil && maps.EqualFunc(view.Tensors, ck.Tensors, func(a, b checkpoint.Tensor) bool { return a.Name == b.Name && len(a.Forms) == 0 }) {
				return ck, nil, nil
			}
			return view, t, err
		}
	}
	return ck, nil, nil
}

// marks are names that ComfyUI and others put beside 8-bit weights, and that
// reading them does not need: what they are called at the end, in any module or
// in none.
var marks = []string{"scaled_fp8", "input_scale", "scale_input", "comfy_quant"}

func isMark(name string) bool {
	return slices.Contains(marks, name[strings.LastIndexByte(name, '.')+1:])
}

// Matches reports whether a checkpoint has the layout, and with what prefix before
// all names.
func (t *Table) Matches(ck *checkpoint.Checkpoint) (prefix string, ok bool) {
	if t.Metadata != "" && !slices.ContainsFunc(ck.Files, func(f *checkpoint.File) bool { return f.Header.Metadata[t.Metadata] != "" }) {
		return "", false
	}
	for _, prefix := range append([]string{""}, t.Prefixes...) {
		if !slices.ContainsFunc(t.Signature, func(name string) bool { _, ok := ck.Tensors[prefix+name]; return !ok }) {
			return prefix, true
		}
	}
	return "", false
}

func (t *Table) view(ck *checkpoint.Checkpoint, prefix string, shapes map[string][]int) (*checkpoint.Checkpoint, error) {
	view := &checkpoint.Checkpoint{Dir: ck.Dir, Files: ck.Files, Tensors: make(map[string]checkpoint.Tensor, len(ck.Tensors))}
	for _, stored := range slices.Sorted(maps.Keys(ck.Tensors)) {
		other, ok := strings.CutPrefix(stored, prefix)
		if !ok || isMark(stored) {
			continue // another module's, or none's
		}
		tensor := ck.Tensors[stored]
		names, rule := t.Names(other)
		forms := rule.Forms
		if t.ChannelsLast && len(tensor.Shape) > 3 && len(forms) == 0 {
			forms = []checkpoint.FormOp{checkpoint.FormChannelsFirst}
		}
		at, divided := 0, len(names) > 1
		if tensor.Bytes() <= int64(tensor.Dtype.Bits()/8) { // one number is for all of the module
			divided, forms = false, nil
		}
		for _, name := range names {
			part, err := tensor, error(nil)
			if divided {
				shape := shapes[rowsOf(name)]
				if len(shape) == 0 {
					return nil, fmt.Errorf("%s: tensor %s: holds %s, whose size is not known", tensor.File, stored, name)
				}
				part, err = part.In(checkpoint.Form{Op: checkpoint.FormRows, From: at, To: at + shape[0]})
				at += shape[0]
			}
			for _, op := range forms {
				if err == nil {
					part, err = part.In(checkpoint.Form{Op: op})
				}
			}
			if err != nil {
				return nil, fmt.Errorf("%w, as the %s layout of %s has it", err, t.Name, t.Class)
			}
			if before, dup := view.Tensors[name]; dup {
				return nil, fmt.Errorf("%s: tensors %s and %s are both %s", tensor.File, before.Name, stored, name)
			}
			view.Tensors[name] = part
		}
		if divided && at != tensor.Shape[0] {
			return nil, fmt.Errorf("%s: tensor %s: expected %d rows, for %s, found shape %v", tensor.File, stored, at, strings.Join(names, ", "), tensor.Shape)
		}
	}
	return view, nil
}

// maxName bounds the names that rules are compared with, which takes a while for a
// hostile one.
const maxName = 1000

// rowsOf is the name of the tensor that has as many rows as one of a name: those
// that a quantized weight comes with have as many as it.
func rowsOf(name string) string {
	for _, suffix := range []string{".scales", ".biases"} {
		if module, ok := strings.CutSuffix(name, suffix); ok {
			return module + ".weight"
		}
	}
	return name
}

// Names are diffusers' names for one of the layout's, without a prefix, and the
// rule that says so, which is the zero one for a name that stays. The name may be
// a tensor's or a module's.
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

// Other is the layout's name for one of diffusers', a tensor's or a module's,
// with the rule that says so and the number of the name among the rule's.
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

// fill puts numbers in the places of {}.
func fill(pattern string, numbers []string) string {
	for _, n := range numbers {
		pattern = strings.Replace(pattern, "{}", n, 1)
	}
	return pattern
}

// Repeated lists what the layout has more than once, of all of its names: under
// what other names it has a tensor of one name.
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

// Without reports whether the layout does not have a tensor of diffusers.
func (t *Table) Without(name string) bool {
	return slices.ContainsFunc(t.Lacks, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}
