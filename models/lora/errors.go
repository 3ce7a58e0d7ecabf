package lora

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/mlx"
)

// An Error reports a LoRA whose file cannot be read, or that does not fit the model.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// throw ends the running job with an Error.
func throw(format string, args ...any) { mlx.Throw(&Error{fmt.Errorf(format, args...)}) }

// An UnmatchedError reports tensors of a LoRA that match no layer of a model.
type UnmatchedError struct {
	File    string
	Keys    []string // the names of the unmatched tensors
	Tensors int      // the number of tensors in the file
	Classes []string // the classes of the components that were searched
	For     string   // the model that the LoRA seems to be for, "" if unknown
	NotLoRA bool     // whether no tensor has a name that LoRAs use
	Format  string   // the format of the tensors if it is not supported, "" otherwise
}

// maxGroups is the largest number of groups of names in a message.
const maxGroups = 10

func (e *UnmatchedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "LoRA %s: ", e.File)
	model := fmt.Sprintf("this model (%s)", strings.Join(e.Classes, ", "))
	switch n := len(e.Keys); {
	case e.Format != "":
		fmt.Fprintf(&b, "not supported: it has tensors of %s (%d of %d)", e.Format, n, e.Tensors)
	case e.NotLoRA:
		fmt.Fprintf(&b, "not a LoRA: expected tensors such as X.lora_A.weight or X.lokr_w1, found %d with other names "+
			"(a whole model is not one)", e.Tensors)
	case n == e.Tensors:
		fmt.Fprintf(&b, "does not fit %s: none of its %d tensors matches a layer", model, n)
	case n == 1:
		fmt.Fprintf(&b, "does not fit %s: 1 of its %d tensors matches no layer", model, e.Tensors)
	default:
		fmt.Fprintf(&b, "does not fit %s: %d of its %d tensors match no layer", model, n, e.Tensors)
	}
	if e.For != "" {
		fmt.Fprintf(&b, "; it seems to be for %s", e.For)
	}
	if e.For == "" && e.Format == "" && !e.NotLoRA && len(e.Keys) < e.Tensors {
		b.WriteString(" (--lora-partial uses the others)")
	}
	b.WriteByte(':')
	for _, g := range groups(e.Keys, maxGroups) {
		b.WriteString("\n\t" + g)
	}
	return b.String()
}

// groups describes names, at most a number of groups of them: those that differ in numbers only are described by
// their common name with {} in place of numbers.
func groups(names []string, most int) (lines []string) {
	var forms []string
	members := map[string][]string{} // by their form
	for _, name := range names {
		form := number.ReplaceAllString(name, "$1{}")
		if members[form] = append(members[form], name); len(members[form]) == 1 {
			forms = append(forms, form)
		}
	}
	for i, form := range forms {
		if i == most {
			return append(lines, fmt.Sprintf("and %d more", len(forms)-i))
		}
		line := quote.Name(members[form][0])
		if n := len(members[form]); n > 1 {
			line = fmt.Sprintf("%s (%d of this form)", quote.Name(form), n)
		}
		lines = append(lines, line)
	}
	return lines
}

// list describes names on one line.
func list(names []string) string {
	return strings.Join(groups(slices.Sorted(slices.Values(names)), 3), ", ")
}

var number = regexp.MustCompile(`(^|[._])\d+`)
