package rounding

import (
	"encoding/json"
	"fmt"
	"io"
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
	errors := map[string]float64{}
	var names []string
	for _, k := range r.Keep {
		names = append(names, k.Module)
		errors[k.Module] = k.Error
	}
	if all {
		for _, name := range names {
			fmt.Fprintf(t, "%s\t1\t%s\n", name, report.ErrorText(errors[name]))
		}
		t.Flush()
		return
	}
	for _, k := range report.Kinds(names) {
		worst := 0.0
		for _, m := range k.Modules {
			worst = max(worst, errors[m])
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", k.Name, len(k.Modules), report.ErrorText(worst))
	}
	t.Flush()
}

// MarshalJSON writes infinite errors as null.
func (r *BitsReport) MarshalJSON() ([]byte, error) {
	type plain BitsReport
	return json.Marshal(struct {
		*plain
		AllLow  *float64 `json:"all_low_error"`
		AllKept *float64 `json:"all_kept_error"`
		Error   *float64 `json:"error"`
	}{(*plain)(r), report.Finite(r.AllLow), report.Finite(r.AllKept), report.Finite(r.Error)})
}

// MarshalJSON writes an infinite error as null.
func (k Kept) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Module string   `json:"module"`
		Error  *float64 `json:"error"`
	}{k.Module, report.Finite(k.Error)})
}
