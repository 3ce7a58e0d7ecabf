package debug

import (
	"cmp"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

// assistantInstructions tell an assistant which tool answers which question.
const assistantInstructions = `gomflux generates images; these tools find out where its numbers differ from a reference such as
diffusers, and where they go wrong. Each runs a command of gomflux (debug_break is gomflux debug break)
and answers with its text. Names of files are relative to the folder in which this server was started.
Tensors have names such as transformer.layers.3.attention@0#1 (step 0, call 1); globs match them.

Which module is wrong? parity_run with the folder of a reference's run: the answer begins with the
verdict. If the run lacks inner tensors, parity_bisect; without a recorded run, parity_live.
Stop there: debug_start with the command ["parity", "run", FOLDER], debug_break with differs,
debug_continue; debug_accept goes on with the reference's tensor, so that the next fault shows.
At a stop: debug_location (module, step, Go source line), debug_vars (inputs, output, parameters),
debug_eval (Starlark: out, want, inp["0"], w["weight"], load("NAME"), compare(a, b)).
Does a change repair it? debug_set puts a tensor in the output's place; debug_continue.
Two recorded runs: parity_diff, tensors_ranges. Two tensors or files: tensors_diff. Two images:
parity_image. Weights: inspect. Rounding in low precision: parity_run with precise, parity_precision.
The first NaN: tensors_ranges of a run with generate --debug-stats '*', or debug_break with the glob
'*' and the condition "not out.isfinite().all()".

A session lives on after its tool calls and after this server: debug_terminate ends it. A wait that
is over (exit code 124) is no failure: call debug_continue again.`

// An assistantTool is a command that debug mcp offers as a tool.
type assistantTool struct {
	command     string // such as "debug break"
	when        string // to use it
	args        []positional
	without     []string // flags that are no arguments
	effect      effect
	last        bool   // the end of a long answer matters, not its beginning
	description string // of the command
	flags       []toolFlag
}

// An effect is what a tool changes.
type effect int

const (
	looks    effect = iota // nothing
	adds                   // it goes on or adds something
	replaces               // it may replace, remove or end something
)

// A positional is an argument of a command without a flag.
type positional struct {
	name, usage string
	required    bool
	kind        string // of the JSON schema: "string" unless set; "array" takes all that follow
}

// A toolFlag is a flag of a command as an argument of a tool.
type toolFlag struct {
	property string // its name in JSON
	flag     *pflag.Flag
}

var (
	namesArg   = positional{name: "names", usage: "names of saved tensors", required: true, kind: "array"}
	commandArg = positional{name: "command", required: true, kind: "array",
		usage: `generate, edit, inpaint, parity run or parity live with its arguments, such as ["generate", "--prompt", "a lighthouse"]`}
)

// assistantTools are the commands that are tools, in the order in which they are listed.
func assistantTools() []assistantTool {
	return []assistantTool{
		{command: "debug start", args: []positional{commandArg}, effect: replaces,
			when: "Use it first: it begins a session, stopped before the model is loaded."},
		{command: "debug break", effect: adds,
			args: []positional{{name: "glob",
				usage: "pattern of tensors' names, such as transformer.layers.*.attention@0; needed unless differs is true"}},
			when: `Use it before debug_continue. The condition "if" is Starlark, such as "timestep > 900" or "not out.isfinite().all()".`},
		{command: "debug breaks", when: "Use it to see how often each one was hit, and the numbers for debug_remove."},
		{command: "debug remove", effect: replaces, when: "Use it when a breakpoint has served its purpose.",
			args: []positional{{name: "number", usage: "number of the breakpoint or watch", required: true, kind: "integer"}}},
		{command: "debug clear", effect: replaces, when: "Use it before the run is to go on to its end."},
		{command: "debug continue", effect: adds,
			when: "Use it to begin the run and after each stop. It waits until the next stop; exit code 124 means call it again."},
		{command: "debug next", effect: adds, when: "Use it to go through the tensors of a module one by one."},
		{command: "debug out", effect: adds, when: "Use it to see the output of the module that contains this one."},
		{command: "debug step", effect: adds, when: "Use it to get to the first tensor of the next denoising step."},
		{command: "debug accept", effect: adds, when: "Use it in a replay after a stop that differs, to find the next fault."},
		{command: "debug location", when: "Use it at a stop: which module, which step, and which line of Go."},
		{command: "debug vars",
			when: "Use it at a stop: shapes, ranges and NaN of inputs, output and inner values; which weights the module has."},
		{command: "debug eval", effect: adds,
			args: []positional{{name: "source", required: true, usage: "the expression, or a program of several lines"}},
			when: `Use it at a stop for anything that debug_vars does not show. Starlark with out, outs["1"], inp["0"], ` +
				`inner["q"], w["weight"], ` +
				`want (the reference's, in a replay), step, call, negative, sigma, timestep, load("NAME"), keep("x", t), compare(a, b); ` +
				"tensors have shape, dtype, arithmetic, indexing, slice, min, max, mean, std, abs, sum, " +
				"isfinite, reshape, transpose, first(n)."},
		{command: "debug save", effect: adds,
			args: []positional{{name: "name", usage: "name of the saved tensor (default: the output's)"}},
			when: "Use it at a stop, for tensors_diff, debug_set or load in debug_eval."},
		{command: "debug set", effect: replaces,
			when: "Use it at a stop to test whether the rest of the run is right with another tensor.",
			args: []positional{{name: "source", usage: "FILE[:KEY][@dtype], or the name of a saved tensor", required: true}}},
		{command: "debug status", when: "Use it to see where a session is, without waiting; or how it ended."},
		{command: "debug log", last: true, when: "Use it when a run has failed, or to see its warnings."},
		{command: "debug sessions", effect: adds, when: "Use it if several sessions may be there."},
		{command: "debug terminate", effect: replaces,
			when: "Use it when the questions are answered: a stopped run keeps its memory."},
		{command: "debug clean", effect: replaces, when: "Use it to forget ended sessions."},
		{command: "debug trace", last: true,
			when: "Use it afterwards: every command, stop and result of a session, also of one that was killed."},

		{command: "tensors list", when: "Use it to see which tensors were saved, by generate --debug-save or debug_save.",
			args: []positional{{name: "globs", usage: "patterns of names (default: all)", kind: "array"}}},
		{command: "tensors info", args: []positional{namesArg}, when: "Use it for shape, dtype and range of saved tensors."},
		{command: "tensors show", when: "Use it for the values themselves.",
			args: []positional{{name: "tensor", usage: "name of a saved tensor, or FILE[:KEY][@dtype]", required: true}}},
		{command: "tensors ranges",
			when: "Use it to find the first NaN or infinite value, or where values grow, in a run with statistics.",
			args: []positional{{name: "run", usage: "the beginning of the run's time, its side or a folder (default: the latest)"}}},
		{command: "tensors diff",
			when: "Use it to compare two tensors, or all tensors of two files; the second one is the reference.",
			args: []positional{
				{name: "tensor", usage: "name of a saved tensor, or FILE[:KEY][@dtype]", required: true},
				{name: "reference", usage: "what it is compared with, in the same form", required: true}}},
		{command: "tensors runs", when: "Use it to find the folder of a run, and how it ended."},

		{command: "parity run", without: []string{"html"},
			when: "Use it first if a reference's run is at hand: it names the first module that is wrong by itself, and likely mistakes.",
			args: []positional{{name: "run", usage: "folder of the reference's run, with settings.json", required: true}}},
		{command: "parity diff", without: []string{"html"},
			when: "Use it for two recorded runs. It does not tell a wrong module from one with wrong inputs; parity_run does.",
			args: []positional{
				{name: "run", usage: "folder of a run", required: true},
				{name: "reference", usage: "folder of the reference's run", required: true}}},
		{command: "parity bisect", without: []string{"html"},
			when: "Use it if the run lacks the tensors that name a module, as parity_run says. It runs the reference again, for minutes.",
			args: []positional{{name: "run", usage: "folder of the reference's run, with settings.json", required: true}}},
		{command: "parity live", without: []string{"html"},
			when: "Use it without a recorded run: it runs the reference and compares while both run."},
		{command: "parity image", when: "Use it for two images of one size.",
			args: []positional{
				{name: "image", usage: "file of an image", required: true},
				{name: "reference", usage: "what it is compared with", required: true}}},
		{command: "parity precision",
			when: "Use it to find the modules that low precision or quantized weights must leave out.",
			args: []positional{{name: "run", usage: "folder of a run, of either side", required: true}}},
		{command: "inspect", when: "Use it for a model's weights: shapes, dtypes, missing, constant, unused or different ones.",
			args: []positional{{name: "model", usage: "name or folder of a model", required: true}}},
	}
}

// name is that of the tool, such as debug_break.
func (a *assistantTool) name() string { return strings.ReplaceAll(a.command, " ", "_") }

// describe takes the description and the flags from the command.
func (a *assistantTool) describe(root *cobra.Command) error {
	cmd, rest, err := root.Find(strings.Fields(a.command))
	if err != nil || len(rest) > 0 {
		return cmp.Or(err, cli.UsageErrorf("%s is no command", a.command))
	}
	a.description = cmd.Short + ". " + a.when
	taken := map[string]bool{"json": true, "help": true, "quiet": true, "verbose": true}
	for _, name := range a.without {
		taken[name] = true
	}
	for _, p := range a.args {
		taken[p.name] = true
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		property := strings.ReplaceAll(f.Name, "-", "_")
		if !f.Hidden && !taken[property] {
			a.flags = append(a.flags, toolFlag{property, f})
		}
	})
	return nil
}

// schema describes the tool's arguments.
func (a *assistantTool) schema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	add := func(name, usage, kind string) {
		p := &jsonschema.Schema{Type: cmp.Or(kind, "string"), Description: usage}
		if kind == "array" {
			p.Items = &jsonschema.Schema{Type: "string"}
		}
		s.Properties[name] = p
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	for _, p := range a.args {
		add(p.name, p.usage, p.kind)
		if p.required {
			s.Required = append(s.Required, p.name)
		}
	}
	for _, f := range a.flags {
		_, usage := pflag.UnquoteUsage(f.flag)
		add(f.property, usage, kindOf(f.flag))
	}
	return s
}

// kindOf returns the type of a flag in a JSON schema.
func kindOf(f *pflag.Flag) string {
	switch f.Value.(type) {
	case *cli.Optional[int]:
		return "integer"
	case *cli.Optional[float64]:
		return "number"
	case pflag.SliceValue:
		return "array"
	}
	switch f.Value.Type() {
	case "bool":
		return "boolean"
	case "int", "int64", "uint", "uint64":
		return "integer"
	case "float64":
		return "number"
	}
	return "string"
}

// tool is the tool as the protocol has it.
func (a *assistantTool) tool() *mcp.Tool {
	no, destructive := false, a.effect == replaces
	return &mcp.Tool{
		Name: a.name(), Description: a.description, InputSchema: a.schema(),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: a.effect == looks, DestructiveHint: &destructive, OpenWorldHint: &no},
	}
}
