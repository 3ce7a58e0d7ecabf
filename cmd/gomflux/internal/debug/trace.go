package debug

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugTraceHelp = `Trace prints what happened in a session: commands with their results, stops, and
the end, with times (UTC) and durations in seconds. Each session writes its
trace to logs/traces/debug_TIME.jsonl, a line for each of these, and whole up to
the last one even if its process was killed. --run selects a session by the time
at which it began; the default is the latest.

With --json it prints one object: session_id (the time), file, script_path (the
command), start_time, end_time, breakpoints (number, glob, step, call, hit,
negative, condition, differs, once, file, line, watch), steps, and total_steps.
Each step has step, step_type, time and duration. A step that is a stop has
name, reason, location (file, line, function), code_context (before, current and
after, lists of line and text), call_stack (modules around, name and class) and
variables by name (point, shape, dtype, stats, preview, value); its type is
continue, next, out, step or accept. An evaluation has expression, result,
output and error. Other types are names of commands, watch and end, and have
arguments, result and error.

Damaged lines are left out, with a warning for each.
` + sessionStatus

// debugTraceOptions are the flags of gomflux debug trace.
type debugTraceOptions struct {
	record.TreeFlags
	grep string
}

func newDebugTraceCommand() *cobra.Command {
	o := &debugTraceOptions{}
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Print what happened in a session",
		Long:  debugTraceHelp,
		Example: `  gomflux debug trace
  gomflux debug trace --run 20261122T1042 --grep attention
  gomflux debug trace --json | jq '.steps[] | select(.step_type == "evaluation")'`,
		Args: cli.NoArgs(" (--run selects a session)"),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.print(o.Out(cmd)) },
	}
	o.Add(cmd)
	f := cmd.Flags()
	f.StringVar(&o.Run, "run", "", "the `time` at which the session began, or its beginning (default: the latest)")
	f.StringVar(&o.grep, "grep", "", "print only lines that have a `text`, in upper or lower case")
	cmd.RegisterFlagCompletionFunc("run", o.completeTraces)
	return cmd
}

// completeTraces offers the times of sessions that have a trace.
func (o *debugTraceOptions) completeTraces(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	if tree, err := runs.Open(o.LogDir); err == nil {
		all, _ := protocol.Traces(tree)
		for _, f := range all {
			found = append(found, f.Time)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func (o *debugTraceOptions) print(out *ui.Output) error {
	tree, err := runs.Open(o.LogDir)
	var file protocol.TraceFile
	if err == nil {
		file, err = protocol.FindTrace(tree, o.Run)
	}
	if errors.Is(err, protocol.ErrNoTrace) {
		return cli.Coded(cli.ExitUsage, err)
	}
	if err != nil {
		return err
	}
	report := &traceReport{SessionID: file.Time, File: file.Path, Breakpoints: []tracePoint{}, Steps: []traceStep{}}
	faults, err := file.Read(func(l protocol.TraceLine) error {
		report.add(l, o.grep == "" || hasText(l, o.grep))
		return nil
	})
	if err != nil {
		return err
	}
	for _, fault := range faults {
		out.Warn("%v", fault)
	}
	return out.Result(report)
}

// hasText reports whether a line of a trace has a text.
func hasText(l protocol.TraceLine, text string) bool {
	all := []string{l.Event, l.Error}
	for _, part := range []json.RawMessage{l.Arguments, l.Result} {
		var v any
		if json.Unmarshal(part, &v) == nil {
			all = textsOf(all, v)
		}
	}
	return strings.Contains(strings.ToLower(strings.Join(all, " ")), strings.ToLower(text))
}

// textsOf appends keys and values of JSON.
func textsOf(all []string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range cli.SortedKeys(v) {
			all = textsOf(append(all, key), v[key])
		}
	case []any:
		for _, one := range v {
			all = textsOf(all, one)
		}
	case nil:
	default:
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func (r *traceReport) Text(p *ui.Page) {
	if len(r.lines) == 0 {
		return
	}
	var t ui.Table
	t.Row("TIME", "EVENT", "SECONDS", "DETAILS")
	for _, l := range r.lines {
		at := l.Time
		if parsed, err := time.Parse(time.RFC3339Nano, l.Time); err == nil {
			at = parsed.UTC().Format("15:04:05.000")
		}
		t.Row(at, l.Event, fmt.Sprintf("%.3f", l.Duration), cli.Shortened(traceDetails(l), 160))
	}
	p.Table(t)
}

// traceDetails describes a line of a trace.
func traceDetails(l protocol.TraceLine) string {
	var parts []string
	switch l.Event {
	case protocol.EventStart:
		var command []string
		if json.Unmarshal(l.Arguments, &command) == nil {
			parts = append(parts, quote.Shell(command...))
		}
	case protocol.Eval:
		var a protocol.EvalArguments
		if json.Unmarshal(l.Arguments, &a) == nil {
			parts = append(parts, a.Source)
		}
	}
	if text := resultText(l); text != "" {
		parts = append(parts, text)
	}
	if l.Error != "" && l.Event != protocol.EventEnd {
		parts = append(parts, "error: "+l.Error)
	}
	return joinedLines(strings.Join(parts, ": "))
}

// resultText describes the result of a line as the command prints it, or returns the JSON if it is another one.
func resultText(l protocol.TraceLine) string {
	switch result := resultOf(l.Event); {
	case len(l.Result) == 0 || string(l.Result) == "null":
		return ""
	case result != nil && json.Unmarshal(l.Result, result) == nil:
		var p ui.Page
		result.Text(&p)
		return p.String()
	}
	return string(l.Result)
}

// resultOf returns a pointer to what the result of an event is decoded into, nil if it is not known.
func resultOf(event string) ui.Result {
	switch event {
	case protocol.EventStop:
		return &tracedStop{}
	case protocol.EventWatch:
		return &watchedTensor{}
	case protocol.Break:
		return &setBreakpoint{}
	case protocol.Remove, protocol.Clear:
		return &removedPoints{}
	case protocol.Continue, protocol.Next, protocol.Out, protocol.Step, protocol.Accept, protocol.EventEnd:
		return &progressed{}
	case protocol.Eval:
		return &evaluated{}
	case protocol.Save:
		return &savedTensor{}
	case protocol.Set:
		return &replacedTensor{}
	case protocol.Location, protocol.Vars:
		return &named{}
	case protocol.Terminate:
		return &terminated{}
	}
	return nil
}

// joinedLines joins lines with semicolons.
func joinedLines(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ") }
