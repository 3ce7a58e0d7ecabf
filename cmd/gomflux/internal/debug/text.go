package debug

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/parity/runs"
)

// The results of debugging commands, with their text. The reference's sessions print the same.
type (
	startedSession struct{ protocol.Status }
	progressed     struct{ protocol.Status } // by continue and similar commands
	sessionState   struct{ protocol.Status }
	terminated     struct{ protocol.Status }
	setBreakpoint  struct{ protocol.Breakpoint }
	breakpointList struct{ protocol.Breakpoints }
	removedPoints  struct{ protocol.Removed }
	stopPlace      struct{ protocol.Place }
	evaluated      struct{ protocol.Evaluated }
	savedTensor    struct{ protocol.Saved }
	replacedTensor struct{ protocol.Replaced }
	tracedStop     struct{ protocol.TracedStop }
	watchedTensor  struct{ protocol.Watched }
	named          struct{ Name string }
	sessionLog     struct {
		Lines []string `json:"lines"`
	}
	sessionList struct {
		Sessions []protocol.Status `json:"sessions"`
	}
	cleanedSessions struct {
		Removed []protocol.Status `json:"removed"`
		Files   int               `json:"files"`
		Bytes   int64             `json:"bytes"`
		DryRun  bool              `json:"-"`
	}
)

const notBegun = "stopped before the model is loaded"

// line writes a line. Control characters in names and messages are quoted.
func line(p *ui.Page, format string, args ...any) {
	p.Printf("%s\n", ui.Escape(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")))
}

func (s startedSession) Text(p *ui.Page) {
	line(p, "session %s: %s (gomflux debug continue begins)", s.Session, notBegun)
}

func (s progressed) Text(p *ui.Page) {
	watchedText(p, s.Watched)
	switch {
	case s.TimedOut:
		line(p, "still %s", stillDoing(s.Status))
	case s.Stop != nil:
		stopText(p, *s.Stop)
	case s.State == protocol.Finished:
		line(p, "the run has finished")
	case s.State == protocol.Failed:
		line(p, "the run has failed: %s", s.Error)
	case s.State == protocol.Terminated:
		line(p, "the run was terminated")
	case s.State == protocol.Killed:
		line(p, "session %s: its process was killed", s.Session)
	default:
		line(p, "%s", stateText(s.Status))
	}
	neverHitText(p, s.Status)
}

// stillDoing describes what a run does that has not stopped in time.
func stillDoing(s protocol.Status) string {
	switch {
	case s.Progress != "":
		return s.Progress
	case len(s.Last) > 0 && s.State == protocol.Running:
		return fmt.Sprintf("%s (last tensor: %s)", s.State, s.Last[len(s.Last)-1])
	}
	return stateText(s)
}

func stateText(s protocol.Status) string {
	switch s.State {
	case protocol.Starting:
		return cmp.Or(s.Progress, notBegun)
	case protocol.Loading:
		return cmp.Or(s.Progress, s.State)
	}
	return s.State
}

// stopText describes a stop in a line, or two.
func stopText(p *ui.Page, s protocol.Stop) {
	reason := s.Reason
	if s.Breakpoint > 0 {
		reason += fmt.Sprintf(", hit %d", s.Hit)
	}
	text := fmt.Sprintf("stopped after %s (%s)", s.Name, reason)
	switch {
	case s.Dtype != "":
		text += ": " + tensorType(s.Dtype, s.Shape)
	case !strings.HasPrefix(s.Reason, "checkpoint"): // a line of Python, in a session of the reference
		text = fmt.Sprintf("stopped before %s (%s): the line is not executed yet", s.Name, reason)
	}
	line(p, "%s", text)
	if s.Problem != "" {
		line(p, "the condition of %s: %s", s.Reason, s.Problem)
	}
	if s.Differs != "" {
		p.Printf("%s\n", ui.Escape(strings.TrimSuffix(s.Differs, "\n"))) // a table, with --differs
	}
}

// tensorType returns dtype and shape as float32 [1, 64, 64].
func tensorType(dtype string, shape []int) string { return dtype + " " + shapeText(shape) }

func shapeText(shape []int) string {
	var sizes []string
	for _, n := range shape {
		sizes = append(sizes, fmt.Sprint(n))
	}
	return "[" + strings.Join(sizes, ", ") + "]"
}

func (s tracedStop) Text(p *ui.Page) { stopText(p, s.Stop) }

func (n named) Text(p *ui.Page) { line(p, "%s", n.Name) }

func (w watchedTensor) Text(p *ui.Page) { line(p, "watch %d: %s", w.Number, variableText(w.Variable)) }

func watchedText(p *ui.Page, watched []protocol.Watched) {
	for _, w := range watched {
		watchedTensor{w}.Text(p)
	}
}

// pointText describes a breakpoint or a watch by what is set of it.
func pointText(b protocol.Breakpoint) string {
	parts := []string{}
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	kind := "breakpoint"
	if b.Watch {
		kind = "watch"
	}
	add(b.Glob != "", "%s", b.Glob)
	add(b.File != "", "%s:%d", b.File, b.Line)
	add(b.Differs && b.Glob == "", "tensors that differ")
	if b.Step != nil {
		add(true, "step %d", *b.Step)
	}
	if b.Call != nil {
		add(true, "call %d", *b.Call)
	}
	add(b.Hit > 0, "hit %d", b.Hit)
	add(b.Negative, "negative")
	add(b.Differs && b.Glob != "", "where it differs")
	add(b.If != "", "if %s", b.If)
	add(b.Once, "once")
	return fmt.Sprintf("%s %d: %s", kind, b.Number, strings.Join(parts, ", "))
}

func neverHitText(p *ui.Page, s protocol.Status) {
	hit := "was never hit"
	if !s.Ended() {
		hit = "names no module or value of the model"
	}
	for _, b := range s.NeverHit {
		near := ""
		if len(b.Near) > 0 {
			near = fmt.Sprintf(" (near: %s)", strings.Join(b.Near, ", "))
		}
		line(p, "%s %s%s", pointText(b), hit, near)
	}
}

func (b setBreakpoint) Text(p *ui.Page) { line(p, "%s", pointText(b.Breakpoint)) }

func (b breakpointList) Text(p *ui.Page) {
	for _, one := range b.Breakpoints.Breakpoints {
		hits := "no hits"
		if one.Hits > 0 {
			hits = ui.Plural(one.Hits, "hit")
		}
		line(p, "%s, %s", pointText(one), hits)
	}
	if len(b.Breakpoints.Breakpoints) == 0 {
		line(p, "no breakpoints")
	}
}

func (r removedPoints) Text(p *ui.Page) {
	var numbers []string
	for _, n := range r.Removed.Removed {
		numbers = append(numbers, fmt.Sprint(n))
	}
	switch len(numbers) {
	case 0:
		line(p, "no breakpoints")
	case 1:
		line(p, "removed breakpoint %s", numbers[0])
	default:
		line(p, "removed breakpoints %s", strings.Join(numbers, ", "))
	}
}

func (l stopPlace) Text(p *ui.Page) {
	class := ""
	if l.Class != "" {
		class = fmt.Sprintf(" (%s)", l.Class)
	}
	line(p, "%s%s", l.Name, class)
	line(p, "%s", whenText(l.Stop))
	var around []string
	for _, m := range l.Around {
		name := m.Name
		if m.Class != "" {
			name += fmt.Sprintf(" (%s)", m.Class)
		}
		around = append(around, name)
	}
	if len(around) > 0 {
		line(p, "inside %s", strings.Join(around, ", "))
	}
	if at := l.Location; at != nil {
		line(p, "%s:%d, %s", at.File, at.Line, at.Function)
		codeText(p, l.Context, at.Line)
	}
	if len(l.Before) > 0 {
		line(p, "before: %s", strings.Join(l.Before, ", "))
	}
}

// whenText describes when in a run a tensor is computed.
func whenText(s protocol.Stop) string {
	text := fmt.Sprintf("outside the denoising loop, call %d", s.Call)
	if s.Step >= 0 {
		text = fmt.Sprintf("step %d, call %d, prompt", s.Step, s.Call)
	}
	if s.Negative {
		text = strings.TrimSuffix(text, ", prompt") + ", negative prompt"
	}
	if s.Sigma != nil {
		text += fmt.Sprintf(", sigma %.6g", *s.Sigma)
	}
	if s.Timestep != nil {
		text += fmt.Sprintf(", timestep %.6g", *s.Timestep)
	}
	return text
}

// codeText writes lines of code, with a mark at one of them.
func codeText(p *ui.Page, c *runs.CodeContext, marked int) {
	if c == nil {
		return
	}
	width := len(fmt.Sprint(c.EndLine))
	for _, l := range codeLines(c) {
		mark := " "
		if l.Line == marked {
			mark = ">"
		}
		code := ui.Escape(strings.ReplaceAll(l.Text, "\t", "    "))
		p.Printf("%s\n", strings.TrimRight(fmt.Sprintf("   %s %*d  %s", mark, width, l.Line, code), " "))
	}
}

// codeLines returns the lines in their order.
func codeLines(c *runs.CodeContext) (lines []traceCodeLine) {
	for n := c.StartLine; n <= c.EndLine && n-c.StartLine < len(c.Lines); n++ {
		lines = append(lines, traceCodeLine{n, c.Lines[fmt.Sprint(n)]})
	}
	return lines
}

func (e evaluated) Text(p *ui.Page) {
	for _, text := range e.Output {
		line(p, "%s", text)
	}
	if e.Evaluated.Text != "" && e.Evaluated.Text != "None" {
		p.Printf("%s\n", ui.Escape(e.Evaluated.Text))
	}
}

func (s savedTensor) Text(p *ui.Page) { line(p, "%s saved in %s", s.Name, s.File) }

func (r replacedTensor) Text(p *ui.Page) { line(p, "%s is replaced by %s", r.Name, r.Source) }

func (l sessionLog) Text(p *ui.Page) {
	for _, text := range l.Lines {
		line(p, "%s", text)
	}
}

func (t terminated) Text(p *ui.Page) { line(p, "session %s is terminated", t.Session) }

func (l sessionList) Text(p *ui.Page) {
	if len(l.Sessions) == 0 {
		line(p, "no sessions")
		return
	}
	var t ui.Table
	t.Row("SESSION", "SIDE", "STATE", "PID", "BEGAN", "COMMAND")
	for _, s := range l.Sessions {
		t.Row(s.Session, s.Side, s.State, fmt.Sprint(s.PID), s.Began, cli.Shortened(quote.Shell(s.Command...), 60))
	}
	p.Table(t)
}

func (c cleanedSessions) Text(p *ui.Page) {
	is := "is"
	if c.DryRun {
		is = "would be"
	}
	for _, s := range c.Removed {
		line(p, "session %s (%s) %s removed", s.Session, s.State, is)
	}
	if c.Files > 0 {
		line(p, "%s of traces and logs, %s", ui.Plural(c.Files, "file"), units.Bytes(c.Bytes))
	}
	if len(c.Removed) == 0 && c.Files == 0 {
		line(p, "nothing to remove")
	}
}

// what names what is to be removed.
func (c cleanedSessions) what() string {
	return fmt.Sprintf("%s, with %s of traces and logs (%s)",
		ui.Plural(len(c.Removed), "ended session"), ui.Plural(c.Files, "file"), units.Bytes(c.Bytes))
}

const shownOutput = 5 // lines of a failed run's output

func (s sessionState) Text(p *ui.Page) {
	line(p, "session %s (%s): %s", s.Session, s.Side, stateText(s.Status))
	watchedText(p, s.Watched)
	if s.Stop != nil {
		stopText(p, *s.Stop)
	}
	if s.State == protocol.Running && len(s.Last) > 0 {
		line(p, "last tensor: %s", s.Last[len(s.Last)-1])
	}
	if s.Error != "" {
		line(p, "error: %s", s.Error)
		output, _ := debugger.ReadLines(s.Output, shownOutput) // it may be removed already
		for _, text := range output {
			line(p, "    %s", text)
		}
	}
	neverHitText(p, s.Status)
	for _, field := range []struct{ name, value string }{
		{"command", quote.Shell(s.Command...)}, {"output", s.Output}, {"trace", s.Trace}, {"run", s.Run},
	} {
		if field.value != "" {
			line(p, "%s: %s", field.name, quote.Printable(field.value))
		}
	}
}
