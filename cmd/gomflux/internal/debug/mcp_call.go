package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/quote"
)

// commandLine makes the arguments of the command from those of a call.
func (a *assistantTool) commandLine(arguments json.RawMessage) ([]string, error) {
	given := map[string]json.RawMessage{}
	if len(arguments) > 0 {
		if err := json.Unmarshal(arguments, &given); err != nil {
			return nil, fmt.Errorf("the arguments are no JSON object: %w", err)
		}
	}
	maps.DeleteFunc(given, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	schema := a.schema()
	for _, name := range cli.SortedKeys(given) {
		if schema.Properties[name] == nil {
			return nil, fmt.Errorf("unknown argument %s (%s)", quote.Printable(name), strings.Join(schema.PropertyOrder, ", "))
		}
	}
	line := strings.Fields(a.command)
	for _, f := range a.flags {
		for _, word := range wordsOf(given[f.property], schema.Properties[f.property].Type) {
			line = append(line, "--"+f.flag.Name+"="+word)
		}
	}
	line = append(line, "--")
	for _, p := range a.args {
		words := wordsOf(given[p.name], schema.Properties[p.name].Type)
		if p.required && len(words) == 0 {
			return nil, fmt.Errorf("the argument %s is missing: %s", p.name, p.usage)
		}
		line = append(line, words...)
	}
	return line, nil
}

// wordsOf returns an argument as words of a command line, none if it was not given. The command refuses
// those of another type.
func wordsOf(data json.RawMessage, kind string) (words []string) {
	var word string
	switch {
	case len(data) == 0, kind == "array" && json.Unmarshal(data, &words) == nil:
		return words
	case json.Unmarshal(data, &word) != nil: // a number, or true or false
		word = string(data)
	}
	return []string{word}
}

// call runs the command in a process of its own: nothing that it prints can reach the protocol, its
// memory is free afterwards, and a program that was built again is used at once.
func (a *assistantTool) call(ctx context.Context, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	line, err := a.commandLine(arguments)
	if err != nil {
		return failedCall(err.Error(), cli.ExitUsage), nil
	}
	var stdout, stderr bytes.Buffer
	process := cli.Self(ctx, line...)
	process.Stdout, process.Stderr = &stdout, &stderr
	err = process.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return failedCall(fmt.Sprintf("%s: %v", a.command, err), cli.ExitFailure), nil
	}
	return callResult(stdout.String(), stderr.String(), process.ProcessState.ExitCode(), a.last), nil
}

// mostAnswer and mostMessage are the sizes of a call's answer, and of what is in it of standard error, in bytes.
const (
	mostAnswer  = 20_000
	mostMessage = 2_000
)

// callResult makes the result of a call from what the command has printed, the verdict first. A command
// that printed a result has not failed as a tool, even if its exit code reports a difference or a failed run.
func callResult(stdout, stderr string, code int, last bool) *mcp.CallToolResult {
	message := strings.TrimSpace(strings.ReplaceAll("\n"+stderr, "\ngomflux: ", "\n"))
	message = shortened(message, mostMessage, true)
	text := strings.TrimSpace(stdout)
	if code != 0 && text == "" {
		return failedCall(message, code)
	}
	if code != 0 {
		message = withCode(message, code)
	}
	text = shortened(verdictFirst(text), mostAnswer-len(message), last)
	if message != "" {
		text = strings.TrimSpace(text + "\n\n" + message)
	}
	return &mcp.CallToolResult{Meta: mcp.Meta{"exit_code": code}, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// verdictLine is the line with which the verdict of a comparison begins.
var verdictLine = regexp.MustCompile(`(?m)^(PASS|FAIL): `)

// verdictFirst puts a verdict, which ends a report, before the report.
func verdictFirst(text string) string {
	all := verdictLine.FindAllStringIndex(text, -1)
	if len(all) == 0 || all[len(all)-1][0] == 0 {
		return text
	}
	at := all[len(all)-1][0]
	return text[at:] + "\n\n" + strings.TrimSpace(text[:at])
}

// shortened leaves out lines of a text that is too long: the first ones if the last matter, or else the last.
func shortened(text string, most int, last bool) string {
	if len(text) <= most {
		return text
	}
	const note = "... %d bytes are left out (arguments that name fewer tensors or lines make the answer shorter)"
	room := most - len(note) - 10
	if last {
		from := len(text) - room
		if i := strings.IndexByte(text[from:], '\n'); i >= 0 {
			from += i + 1
		}
		return fmt.Sprintf(note+"\n", from) + strings.ToValidUTF8(text[from:], "")
	}
	to := max(strings.LastIndexByte(text[:room], '\n'), 0)
	if to == 0 {
		to = room
	}
	return strings.ToValidUTF8(text[:to], "") + fmt.Sprintf("\n"+note, len(text)-to)
}

func failedCall(message string, code int) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Meta: mcp.Meta{"exit_code": code}, IsError: true,
		Content: []mcp.Content{&mcp.TextContent{Text: withCode(message, code)}},
	}
}

func withCode(message string, code int) string {
	return strings.TrimSpace(fmt.Sprintf("%s (exit code %d)", message, code))
}
