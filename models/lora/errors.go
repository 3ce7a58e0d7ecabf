package lora

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
)

// An Error is about a LoRA: its file cannot be read, or it does not fit the model.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// throw ends the running job with an Error.
func throw(format string, args ...any) { mlx.Throw(&Error{fmt.Errorf(format, args...)}) }

// An UnmatchedError says that tensors of a LoRA fit nothing in a model.
type UnmatchedError struct {
	File    string
	Keys    []string // the names of the tensors
	Tensors int      // how many the file has
	// Classes are the components that were looked through.
	Classes []string
	// For is what the LoRA seems to be for, "" if that cannot be told.
	For string
	// Foreign says that no tensor is called as those of LoRAs are.
	Foreign bool
}

const maxGroups = 10

func (e *UnmatchedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "LoRA %s: ", e.File)
	in := fmt.Sprintf("in this model (%s)", strings.Join(e.Classes, ", "))
	switch n := len(e.Keys); {
	case e.Foreign:
		fmt.Fprintf(&b, "none of its %d tensors is called as those of LoRAs are (X.lora_A.weight, X.lokr_w1 and so on), so it is another kind of file; a model is given with --model", e.Tensors)
	case n == e.Tensors:
		fmt.Fprintf(&b, "none of its %d tensors fits anything %s", n, in)
	case n == 1:
		fmt.Fprintf(&b, "1 of its %d tensors fits nothing %s", e.Tensors, in)
	default:
		fmt.Fprintf(&b, "%d of its %d tensors fit nothing %s", n, e.Tensors, in)
	}
	if e.For != "" {
		fmt.Fprintf(&b, "; it seems to be for %s", e.For)
	}
	b.WriteByte(':')
	groups, counts := grouped(e.Keys)
	for i, g := range groups {
		if i == maxGroups {
			fmt.Fprintf(&b, "\n\tand %d more", len(groups)-i)
			break
		}
		fmt.Fprintf(&b, "\n\t%s", quote.Name(g))
		if counts[g] > 1 {
			fmt.Fprintf(&b, " (%d of this form)", counts[g])
		}
	}
	return b.String()
}

var number = regexp.MustCompile(`(^|[._])\d+`)

// grouped puts names that differ in numbers only together, under the first one's
// with {} for the numbers.
func grouped(names []string) (groups []string, counts map[string]int) {
	alone := map[string]string{}
	counts = map[string]int{}
	for _, name := range names {
		g := number.ReplaceAllString(name, "$1{}")
		if counts[g]++; counts[g] == 1 {
			groups = append(groups, g)
			alone[g] = name
		}
	}
	for i, g := range groups {
		if counts[g] == 1 { // as it is
			groups[i] = alone[g]
			counts[alone[g]] = 1
		}
	}
	return groups, counts
}

// others are hints at models that this version does not run.
var others = []Hint{
	{"Stable Diffusion 3", regexp.MustCompile(`joint_blocks`)},
	{"Stable Diffusion or SDXL", regexp.MustCompile(`(down|up|input|output|middle|mid)_block`)},
	{"Wan", regexp.MustCompile(`(^|[._])blocks[._]\d+[._](cross|self)_attn`)},
}

// guess is the model that a LoRA with such names is for, "" if none is known.
func guess(names []string, hints []Hint) string {
	for _, hint := range slices.Concat(hints, others) {
		if slices.ContainsFunc(names, hint.Names.MatchString) {
			return hint.For
		}
	}
	return ""
}
