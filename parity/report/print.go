package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gomflux/gomflux/internal/quote"
)

// Print writes the report as text: a table with a line for each stage, backwards from pixels,
// with the largest relative L2 error of its tensors, and the verdict. With all it begins with a
// block for each tensor.
func (r *Report) Print(w io.Writer, all bool) error {
	var b strings.Builder
	b.WriteString("run      " + r.Run + "\n")
	b.WriteString("against  " + r.Model)
	if r.Device != "" {
		fmt.Fprintf(&b, ", on %s in %s", r.Device, r.Dtype)
		if r.RefDtype != "" && r.RefDtype != r.Dtype {
			fmt.Fprintf(&b, " (the reference in %s)", r.RefDtype)
		}
	}
	b.WriteString("\n\n")
	if all {
		for _, t := range r.Tensors {
			t.print(&b)
		}
		b.WriteString("\n")
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	header := []string{"stage", "tensors", "failing"}
	free, isolated := slices.Contains(r.Readings, Free), slices.Contains(r.Readings, Isolated)
	if free {
		header = append(header, "from the start")
	}
	if isolated {
		header = append(header, "by itself")
	}
	fmt.Fprintln(t, strings.Join(append(header, "verdict"), "\t"))
	for _, s := range r.Stages {
		line := []string{s.Name, fmt.Sprint(s.Tensors), fmt.Sprint(s.Failing)}
		if free {
			line = append(line, ErrorText(s.Free))
		}
		if isolated {
			line = append(line, ErrorText(s.Isolated))
		}
		verdict := "ok"
		if !s.OK {
			verdict = "DIFFERS"
		}
		fmt.Fprintln(t, strings.Join(append(line, verdict), "\t"))
	}
	t.Flush()
	b.WriteString("\n")
	if len(r.Absent) > 0 {
		fmt.Fprintf(&b, "not there, so that the reference's values are used: %s\n", strings.Join(r.Absent, ", "))
	}
	if n := len(r.Missing); n > 0 {
		fmt.Fprintf(&b, "not compared: %d of the reference's tensors, such as %s\n", n, r.Missing[0])
	}
	if r.Statistics > 0 {
		fmt.Fprintf(&b, "statistics alone: of %d of the %d tensors, of which one side has no values\n", r.Statistics, len(r.Tensors))
	}
	if all {
		for _, u := range r.Untapped {
			fmt.Fprintf(&b, "without a counterpart: %d, such as %s (%s)\n", len(u.Names), u.Names[0], u.Reason)
		}
	}
	r.Unhooked.Print(&b)
	for _, n := range r.Blind {
		fmt.Fprintf(&b, "blind to %s of %s: with %.6g instead of %.6g nothing differs; to see it, record %s\n",
			n.Key, n.Config, n.Tried, n.Value, n.Record)
	}
	r.Verdict.Print(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// ErrorText writes an error with two digits.
func ErrorText(e Number) string {
	if e == 0 {
		return "0"
	}
	return fmt.Sprintf("%.1e", e)
}

// Print writes the verdict as text.
func (v *Verdict) Print(b *strings.Builder) {
	word := "PASS"
	if !v.OK {
		word = "FAIL"
	}
	fmt.Fprintf(b, "%s: %s\n", word, v.Text)
	printHints(b, "  ", v.Hints, v.HintLimits)
	for _, c := range v.Children {
		word := "ok"
		if !c.OK {
			word = "DIFFERS"
		}
		fmt.Fprintf(b, "  inside: %s, L2 %s, %s\n", c.Module, ErrorText(c.L2), word)
	}
	if len(v.Behind) > 0 {
		fmt.Fprintf(b, "  not known: whether %s inside it would be right, with right inputs; mend the first and run again\n",
			quote.List(v.Behind, 1))
	}
	if len(v.Ask) > 0 {
		have := "no modules"
		if len(v.Children) > 0 {
			have = "not all modules"
		}
		fmt.Fprintf(b, "  the run has %s inside it; dump them with --taps '%s'\n", have, strings.Join(v.Ask, "' '"))
	}
	if v.Unseen {
		b.WriteString("  the run does not have all tensors; gomflux parity bisect has the reference record more\n")
	}
	const most = 8
	printed := slices.Clone(v.Hints)
	for i, k := range v.Kinds {
		if i == most {
			fmt.Fprintf(b, "  and %d more\n", len(v.Kinds)-most)
			break
		}
		fmt.Fprintf(b, "  also: %s %s\n", k.Modules, k.text(v.isolated))
		found := slices.DeleteFunc(slices.Clone(k.Hints), func(h Hint) bool { // repeated, or vaguer than what is known
			return slices.ContainsFunc(printed, repeats(h)) || h.Explains == 0 && len(printed) > 0
		})
		printed = append(printed, found...)
		printHints(b, "    ", found, k.HintLimits)
	}
	if len(v.Others) > 0 && !v.isolated {
		b.WriteString("  a module may differ because of one before it; " +
			"gomflux parity run replays each module with the reference's inputs\n")
	}
}

// names matches the names of tensors, but for their last words.
var names = regexp.MustCompile(`[\w.]+\.|@\d+`)

// repeats returns a function that reports whether a hint is the same, about modules whose names begin alike or not.
func repeats(h Hint) func(Hint) bool {
	same := func(h Hint) string {
		text := h.Text
		if _, after, ok := strings.Cut(text, " is wrong "); ok {
			_, text, _ = strings.Cut(after, ": ")
		}
		return names.ReplaceAllString(text, "")
	}
	return func(other Hint) bool { return h.Key == other.Key && same(h) == same(other) }
}

// text is the verb of the modules.
func (o Others) text(isolated bool) string {
	switch {
	case o.Count == 1 && isolated:
		return "differs by itself"
	case o.Count == 1:
		return "differs"
	case isolated:
		return fmt.Sprintf("(%d modules) differ by themselves", o.Count)
	}
	return fmt.Sprintf("(%d modules) differ", o.Count)
}

// print writes everything about a tensor.
func (t *Tensor) print(b *strings.Builder) {
	word := "ok"
	if !t.OK() {
		word = "DIFFERS"
	}
	fmt.Fprintf(b, "%s (%s, %s) %s\n", t.Name, t.Kind, t.Stage, word)
	fmt.Fprintf(b, "  shape %v %s, reference %v %s\n", t.Shape, t.Dtype, t.RefShape, t.RefDtype)
	if t.Guess != "" {
		fmt.Fprintf(b, "  %s\n", t.Guess)
	}
	for _, reading := range []struct {
		name string
		*Reading
	}{{"from the start", t.Free}, {"as a whole", t.Isolated}, {"by itself", t.Own}} {
		if d := reading.Reading; d != nil {
			fmt.Fprintf(b, "  %-14s %v, mean %.2e, relative %.2e, cosine %.9f, channel %d L2 %.2e, "+
				"%d of %d beyond %g + %g·|reference|\n", reading.name, d, d.Mean, d.Guarded, d.Cosine, d.ChannelAt, d.Channel, d.Over,
				d.Count, d.ATol, d.RTol)
		}
	}
	if d := t.best(); d != nil {
		fmt.Fprintf(b, "  range %v, reference %v\n", d.Got, d.Ref)
	}
	if s := t.Stats; s != nil {
		fmt.Fprintf(b, "  %v (at most %g)\n  range %v, reference %v\n", s, s.Tolerance, s.Got, s.Ref)
	}
	fmt.Fprintf(b, "  first %s\n  reference %s\n", values(t.Got), values(t.Ref))
	printHints(b, "  ", t.Hints, t.HintLimits)
}

// printHints writes hints, and in which part of a large tensor they were looked for.
func printHints(b *strings.Builder, indent string, found []Hint, limits string) {
	for _, h := range found {
		fmt.Fprintf(b, "%shint: %s\n", indent, h.Text)
	}
	if limits != "" {
		fmt.Fprintf(b, "%shints: %s\n", indent, limits)
	}
}

func (r Range) String() string {
	s := fmt.Sprintf("%.6g to %.6g, mean %.4g, std %.4g", r.Min, r.Max, r.Mean, r.Std)
	if r.NaN+r.Inf > 0 {
		s += fmt.Sprintf(", %d NaN, %d infinite", r.NaN, r.Inf)
	}
	return s
}

func values(v []Number) string {
	words := make([]string, len(v))
	for i, x := range v {
		words[i] = fmt.Sprintf("%.6g", x)
	}
	return strings.Join(words, " ")
}

// A Number is a float64 that is null in JSON if it is NaN or infinite, which JSON cannot write.
type Number float64

// Infinite is no number in JSON, and no limit in a tolerance.
var Infinite = Number(math.Inf(1))

// Finite reports whether the number is neither NaN nor infinite.
func (n Number) Finite() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// MarshalJSON writes NaN and infinity as null.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Finite() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// MarshalJSON adds OK.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	type plain Tensor
	return json.Marshal(struct {
		*plain
		OK bool `json:"ok"`
	}{(*plain)(t), t.OK()})
}
