package rounding

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gomflux/gomflux/parity/report"
)

// mostKinds is how many kinds of modules are printed without all.
const mostKinds = 12

// Print writes the report as text: the errors of modules, one line for those whose names differ by
// numbers alone, the errors of the pipeline's values, and the verdict. Without all it has only the
// modules with the largest rounding errors.
func (r *Report) Print(w io.Writer, all bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "run      %s, in %s\n", r.Run, r.RefDtype)
	fmt.Fprintf(&b, "precise  %s, in float32\n", r.Precise)
	fmt.Fprintf(&b, "against  %s, on %s in %s", r.Model, r.Device, r.Dtype)
	if r.Quantization != "" {
		fmt.Fprintf(&b, ", quantized (%s)", r.Quantization)
	}
	b.WriteString("\n\n")
	if len(r.Modules) > 0 {
		kinds := r.kinds()
		more := 0
		if !all {
			slices.SortStableFunc(kinds, func(a, b *Errors) int { return cmp.Compare(b.Rounding, a.Rounding) })
			more = max(0, len(kinds)-mostKinds)
			kinds = kinds[:len(kinds)-more]
		}
		table(&b, "module by itself", kinds, r.Quantization != "")
		if more > 0 {
			fmt.Fprintf(&b, "and %d kinds of modules with smaller rounding errors (--all prints them)\n", more)
		}
		b.WriteString("\n")
	}
	if len(r.Values) > 0 {
		table(&b, "value from the start", r.Values, false)
		b.WriteString("\n")
	}
	r.Unhooked.Print(&b)
	r.Verdict.Print(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// kinds returns the module with the largest rounding error of each kind, named as the kind.
func (r *Report) kinds() (out []*Errors) {
	for _, k := range report.Kinds(r.Modules, func(m *Errors) string { return m.Module }) {
		worst := *slices.MaxFunc(k.Modules, func(a, b *Errors) int { return cmp.Compare(a.Rounding, b.Rounding) })
		worst.Module = k.Name
		out = append(out, &worst)
	}
	return out
}

// table writes a line for each rounding; split adds the part of quantized weights.
func table(b *strings.Builder, title string, rows []*Errors, split bool) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	header := title + "\treference\tours\tmultiple"
	if split {
		header += "\tquantized\trounding"
	}
	fmt.Fprintln(t, header)
	for _, x := range rows {
		line := fmt.Sprintf("%s\t%s\t%s\t%.3g", x.Module, report.ErrorText(x.Reference), report.ErrorText(x.Ours), x.Multiple)
		if split {
			line += fmt.Sprintf("\t%.3g\t%.3g", x.Quantized, x.Rounding)
		}
		fmt.Fprintln(t, line)
	}
	t.Flush()
}
