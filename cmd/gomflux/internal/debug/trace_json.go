package debug

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/parity/runs"
)

// A traceReport is what debug trace prints.
type traceReport struct {
	SessionID   string       `json:"session_id"`
	File        string       `json:"file"`
	ScriptPath  string       `json:"script_path"`
	StartTime   string       `json:"start_time"`
	EndTime     string       `json:"end_time"` // of the last line
	Breakpoints []tracePoint `json:"breakpoints"`
	Steps       []traceStep  `json:"steps"`
	TotalSteps  int          `json:"total_steps"`

	lines []protocol.TraceLine // for the table
}

// A tracePoint is a breakpoint, with the condition under the name that other debuggers' traces have for it.
type tracePoint struct {
	Number int `json:"number"`
	protocol.BreakArguments
	Condition any `json:"condition"` // a text or null
}

type traceStep struct {
	Step     int     `json:"step"`
	StepType string  `json:"step_type"`
	Time     string  `json:"time"`
	Duration float64 `json:"duration"`

	// of a stop
	Name      string                       `json:"name,omitempty"`
	Reason    string                       `json:"reason,omitempty"`
	Location  *runs.Location               `json:"location,omitempty"`
	Context   *traceCode                   `json:"code_context,omitempty"`
	CallStack []protocol.AroundItem        `json:"call_stack,omitempty"`
	Variables map[string]protocol.Variable `json:"variables,omitempty"`

	// of an evaluation
	Expression string   `json:"expression,omitempty"`
	Output     []string `json:"output,omitempty"`

	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    any             `json:"result,omitempty"` // a text, of an evaluation
	Error     string          `json:"error,omitempty"`
}

// traceCode has the lines around a stop.
type traceCode struct {
	Before  []traceCodeLine `json:"before"`
	Current []traceCodeLine `json:"current"`
	After   []traceCodeLine `json:"after"`
}

type traceCodeLine struct {
	Line int    `json:"line"`
	Text string `json:"text"`
}

// add adds a line of the trace. Lines that are not shown count only for the times.
func (r *traceReport) add(l protocol.TraceLine, shown bool) {
	if r.StartTime == "" {
		r.StartTime = l.Time
	}
	r.EndTime = l.Time
	var command []string
	if l.Event == protocol.EventStart && json.Unmarshal(l.Arguments, &command) == nil {
		r.ScriptPath = quote.Shell(command...)
	}
	if !shown {
		return
	}
	r.lines = append(r.lines, l)
	var b protocol.Breakpoint
	if l.Event == protocol.Break && l.Error == "" && json.Unmarshal(l.Result, &b) == nil {
		r.Breakpoints = append(r.Breakpoints, newTracePoint(b))
	}
	if step := newTraceStep(l); step != nil {
		step.Step = len(r.Steps) + 1
		r.Steps = append(r.Steps, *step)
		r.TotalSteps = len(r.Steps)
	}
}

func newTracePoint(b protocol.Breakpoint) tracePoint {
	p := tracePoint{Number: b.Number, BreakArguments: b.BreakArguments}
	if p.If = ""; b.If != "" {
		p.Condition = b.If
	}
	return p
}

// resuming are the commands that let a run go on.
var resuming = []string{protocol.Continue, protocol.Next, protocol.Out, protocol.Step, protocol.Accept}

// newTraceStep returns the step for a line. Breakpoints are no steps, and neither are the commands
// after which the run has stopped: there is a line for the stop.
func newTraceStep(l protocol.TraceLine) *traceStep {
	step := &traceStep{StepType: l.Event, Time: l.Time, Duration: l.Duration, Arguments: l.Arguments, Error: l.Error}
	if len(l.Result) > 0 {
		step.Result = l.Result
	}
	switch {
	case l.Event == protocol.EventStart, l.Event == protocol.Break && l.Error == "":
		return nil
	case l.Event == protocol.EventStop:
		var s protocol.TracedStop
		if json.Unmarshal(l.Result, &s) == nil {
			step.Result = nil
			step.stop(s)
		}
	case l.Event == protocol.Eval:
		var a protocol.EvalArguments
		var e protocol.Evaluated
		json.Unmarshal(l.Arguments, &a) // of another type: it stays empty
		json.Unmarshal(l.Result, &e)
		step.StepType, step.Expression, step.Output, step.Arguments, step.Result = "evaluation", a.Source, e.Output, nil, nil
		if l.Error == "" {
			step.Result = e.Text
		}
	case slices.Contains(resuming, l.Event) && l.Error == "":
		var s protocol.Status
		if json.Unmarshal(l.Result, &s) == nil && s.State == protocol.Stopped {
			return nil
		}
	}
	return step
}

// stop describes a stop.
func (t *traceStep) stop(s protocol.TracedStop) {
	t.Name, t.Reason, t.Location, t.CallStack = s.Name, s.Reason, s.Location, s.Around
	t.StepType, _, _ = strings.Cut(s.Reason, " ")
	if !slices.Contains(resuming, t.StepType) {
		t.StepType = protocol.Continue
	}
	if s.Variables != nil {
		t.Variables = map[string]protocol.Variable{}
		for _, v := range s.Variables.Variables {
			t.Variables[v.Name] = v
		}
	}
	if s.Context == nil || s.Location == nil {
		return
	}
	code := &traceCode{Before: []traceCodeLine{}, Current: []traceCodeLine{}, After: []traceCodeLine{}}
	for _, l := range codeLines(s.Context) {
		to := &code.Current
		switch {
		case l.Line < s.Location.Line:
			to = &code.Before
		case l.Line > s.Location.Line:
			to = &code.After
		}
		*to = append(*to, l)
	}
	t.Context = code
}
