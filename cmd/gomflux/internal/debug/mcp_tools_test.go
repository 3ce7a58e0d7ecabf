package debug

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/models"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/parity"
)

// newTestRoot returns a command with those that are offered as tools.
func newTestRoot() *cobra.Command {
	root := &cobra.Command{Use: "gomflux"}
	root.AddCommand(NewCommand(newTestRoot), parity.NewCommand(), parity.NewTensorsCommand(), models.NewInspectCommand())
	return root
}

// TestAssistantTools: every command of debug is a tool, with a schema and the flags of the command.
func TestAssistantTools(t *testing.T) {
	tools := map[string]*assistantTool{}
	root := newTestRoot()
	for _, a := range assistantTools() {
		if err := a.describe(root); err != nil {
			t.Fatal(err)
		}
		if tools[a.name()] != nil {
			t.Errorf("%s is there twice", a.name())
		}
		tools[a.name()] = &a
		tool := a.tool()
		if _, err := tool.InputSchema.(*jsonschema.Schema).Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true}); err != nil {
			t.Errorf("the schema of %s: %v", a.name(), err)
		}
		cmd, _, _ := root.Find(strings.Fields(a.command))
		_, positionals, _ := strings.Cut(cmd.Use, " ")
		if (positionals == "" || positionals[0] == '-') != (len(a.args) == 0) {
			t.Errorf("%s has the arguments %v, the command %q", a.name(), a.args, positionals)
		}
		if !strings.HasPrefix(tool.Description, cmd.Short+". ") || a.when == "" {
			t.Errorf("the description of %s: %s", a.name(), tool.Description)
		}
	}
	for _, cmd := range NewCommand(newTestRoot).Commands() {
		if !slices.Contains([]string{"serve", "mcp", "tutorial"}, cmd.Name()) && tools["debug_"+cmd.Name()] == nil {
			t.Errorf("debug %s is no tool", cmd.Name())
		}
	}
	for name, kinds := range map[string]string{
		"debug_start": "command:array break:array run:boolean max_wait:number name:string log_dir:string",
		"debug_break": "glob:string session:string step:integer call:integer negative:boolean if:string hit:integer " +
			"differs:boolean once:boolean watch:boolean",
	} {
		var found []string
		s := tools[name].schema()
		for _, p := range s.PropertyOrder {
			found = append(found, p+":"+s.Properties[p].Type)
			if s.Properties[p].Description == "" {
				t.Errorf("%s of %s has no description", p, name)
			}
		}
		if strings.Join(found, " ") != kinds {
			t.Errorf("the arguments of %s are %q, expected %q", name, found, kinds)
		}
	}
	for word := range strings.FieldsFuncSeq(assistantInstructions, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		if strings.Contains(word, "_") && tools[word] == nil {
			t.Errorf("the instructions name %s", word)
		}
	}
}

// TestAssistantArguments compares command lines with the arguments of calls.
func TestAssistantArguments(t *testing.T) {
	root := newTestRoot()
	for _, c := range []struct{ tool, arguments, want string }{
		{"debug_break", `{"glob":"-x*","step":3,"once":true,"if":"a b"}`, "debug break --step=3 --if=a b --once=true -- -x*"},
		{"debug_break", `{"differs":true,"glob":null,"hit":"2"}`, "debug break --hit=2 --differs=true --"},
		{"debug_start", `{"command":["generate","--json"],"break":["a","b"],"max_wait":0.5}`,
			"debug start --break=a --break=b --max-wait=0.5 -- generate --json"},
		{"tensors_diff", `{"reference":"b","tensor":"a"}`, "tensors diff -- a b"},
		{"debug_vars", ``, "debug vars --"},
		{"debug_vars", `[]`, "the arguments are no JSON object: "},
		{"debug_vars", `{"json":true}`, "unknown argument json (session, weights)"},
		{"tensors_show", `{}`, "the argument tensor is missing: name of a saved tensor"},
		{"debug_break", `{"glob":3}`, "debug break -- 3"},
		{"debug_break", `{"glob":"a","step":[1]}`, "debug break --step=[1] -- a"},
		{"debug_break", `{"glob":"a","negative":"yes"}`, "debug break --negative=yes -- a"},
		{"tensors_list", `{"globs":"a"}`, "tensors list -- a"},
	} {
		all := assistantTools()
		i := slices.IndexFunc(all, func(a assistantTool) bool { return a.name() == c.tool })
		if err := all[i].describe(root); err != nil {
			t.Fatal(err)
		}
		line, err := all[i].commandLine(json.RawMessage(c.arguments))
		got := strings.Join(line, " ")
		if err != nil {
			got = err.Error()[:min(len(c.want), len(err.Error()))]
		}
		if got != c.want {
			t.Errorf("%s %s is %q (%v), expected %q", c.tool, c.arguments, got, err, c.want)
		}
	}
}

// TestAssistantGarbage: what is no request ends the server without a panic and without output.
func TestAssistantGarbage(t *testing.T) {
	for _, in := range []string{"", "hello\n", "{\"jsonrpc\":\"2.0\"}\n", "[]\n"} {
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			done <- serveAssistant(t.Context(), newTestRoot(), strings.NewReader(in), &out, io.Discard)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("the server still runs after %q", in)
		}
		if strings.Contains(out.String(), "result") {
			t.Errorf("after %q the server answers %s", in, &out)
		}
	}
}

// FuzzAssistantArguments: no arguments make a call panic, or give the command more flags than it has.
func FuzzAssistantArguments(f *testing.F) {
	for _, s := range []string{"", "null", `{"glob":"a","step":3}`, `{"glob":"--if=x","if":"--once"}`, `{"glob":[]}`, `{"step":1e9}`} {
		f.Add([]byte(s))
	}
	tool := assistantTools()[1]
	if err := tool.describe(newTestRoot()); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, arguments []byte) {
		line, err := tool.commandLine(arguments)
		if err != nil {
			return
		}
		at := slices.Index(line, "--")
		if at < 0 || len(line)-at > 2 {
			t.Fatalf("%s makes %q", arguments, line)
		}
		for _, word := range line[2:at] {
			name, _, ok := strings.Cut(strings.TrimPrefix(word, "--"), "=")
			if !ok || !slices.ContainsFunc(tool.flags, func(f toolFlag) bool { return f.flag.Name == name }) {
				t.Errorf("%s makes the flag %q", arguments, word)
			}
		}
	})
}
