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

// Print writes the report as text, with one line for modules whose names differ by numbers alone,
// or with all a line for each module.
func (r *BitsReport) Print(w io.Writer, all bool) error {
	var b strings.Builder
	low, kept := r.Dtype, "in "+r.KeptDtype
	if r.Quantization != "" {
		low, kept = "quantized ("+r.Quantization+")", "not quantized"
	}
	fmt.Fprintf(&b, "run      %s\n", r.Run)
	fmt.Fprintf(&b, "against  %s in float32, on %s\n", r.Model, r.Device)
	fmt.Fprintf(&b, "low      %s, computed in %s\n\n", low, r.Dtype)
	fmt.Fprintf(&b, "error of %s: %s if all %d modules are low, %s if all are kept, %s allowed (%d runs)\n\n",
		decodedImage, report.ErrorText(r.AllLow), r.Modules, report.ErrorText(r.AllKept), report.ErrorText(r.Allowed), r.Runs)
	switch {
	case !r.OK:
		fmt.Fprintf(&b, "FAIL: no choice of modules has an error of %s\n", report.ErrorText(r.Allowed))
	case len(r.Keep) == 0:
		b.WriteString("PASS: no module must be kept\n")
	default:
		r.table(&b, all)
		fmt.Fprintf(&b, "\nPASS: with these %d of %d modules %s, the error is %s\n", len(r.Keep), r.Modules, kept,
			report.ErrorText(r.Error))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table writes the modules that are kept.
func (r *BitsReport) table(b *strings.Builder, all bool) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "keep\tmodules\terror if low alone")
	line := func(name string, modules []Kept) {
		worst := slices.MaxFunc(modules, func(a, b Kept) int { return cmp.Compare(a.Error, b.Error) })
		fmt.Fprintf(t, "%s\t%d\t%s\n", name, len(modules), report.ErrorText(worst.Error))
	}
	if all {
		for _, k := range r.Keep {
			line(k.Module, []Kept{k})
		}
	} else {
		for _, k := range report.Kinds(r.Keep, func(k Kept) string { return k.Module }) {
			line(k.Name, k.Modules)
		}
	}
	t.Flush()
}
