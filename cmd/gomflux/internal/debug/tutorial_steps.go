package debug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/quote"
)

const (
	tutorialName   = "tutorial" // of the session
	tutorialFolder = "gomflux-tutorial"
)

// A lesson is a step of the tutorial.
type lesson struct {
	title, text string
	commands    [][]string // words after gomflux debug
	output      []string   // patterns, a command each
	with        string     // what the arguments of the last command contain
	at          string     // the module after which the run stops in the second denoising step, "" for other commands
}

// done reports whether a line of the session's trace shows that the step is done.
func (l lesson) done(line protocol.TraceLine) bool {
	if l.at == "" {
		command := l.commands[len(l.commands)-1][0]
		return line.Event == command && line.Error == "" && strings.Contains(string(line.Arguments), l.with)
	}
	var s protocol.TracedStop
	json.Unmarshal(line.Result, &s) // of another type: it stays empty
	return line.Event == protocol.EventStop && s.Module == l.at && s.Step == 1
}

var lessons = []lesson{{
	title: "start a session",
	text: `A session is a run in the background that commands control. This one generates an
image with the built-in model. It is stopped before the model is loaded. Traces
and saved tensors are in the folder --log-dir.`,
	commands: [][]string{{"start", "--name", tutorialName, "--log-dir", tutorialFolder, "--", "generate", "--model", "shapes", "--prompt",
		"a red circle", "--steps", "2", "--height", "128", "--width", "128", "--seed", "7", "--output", tutorialFolder + "/image.png"}},
	output: []string{`^session tutorial: stopped before the model is loaded`},
}, {
	title: "set a breakpoint",
	text: `A breakpoint stops the run after the call of a module, whose name can be a
pattern. Once the model is loaded, a name that it does not have is refused, with
similar ones. The condition is an expression: here the run stops in the second
denoising step only.`,
	commands: [][]string{{"break", "transformer.layers.0", "--if", "step == 1"}},
	output:   []string{`^breakpoint 1: transformer\.layers\.0, if step == 1\n$`},
	with:     "transformer.layers.0",
}, {
	title: "go on to the breakpoint",
	text: `Continue loads the model, and waits until the run stops. Modules report when they
are done, so the output of the layer is computed.`,
	commands: [][]string{{"continue"}},
	output:   []string{`^stopped after transformer\.layers\.0@1 \(breakpoint 1, `},
	at:       "transformer.layers.0",
}, {
	title: "look where the run is",
	text: `Location prints the name of the tensor, the step, the noise level, the modules
around, the line in the source, and the tensors that passed before.`,
	commands: [][]string{{"location"}},
	output:   []string{`^transformer\.layers\.0@1 \(.*\)\nstep 1, `},
}, {
	title:    "list the tensors",
	text:     `Vars lists the output, the inputs and the parameters of the module, with statistics.`,
	commands: [][]string{{"vars"}},
	output:   []string{`(?m)^out +[a-z0-9]+ +\[`},
}, {
	title: "evaluate an expression",
	text: `Expressions are Starlark, which has the syntax of Python. The names are out,
inp["0"], w["attention.to_q.weight"], step, sigma and more (gomflux debug eval
--help).`,
	commands: [][]string{{"eval", "(out.mean(), out.std())"}},
	output:   []string{`^\(-?[0-9.e-]+, [0-9.e-]+\)\n$`},
}, {
	title:    "keep a tensor",
	text:     `Keep gives a tensor a name for later stops of this session.`,
	commands: [][]string{{"eval", `keep("first", out)`}},
	output:   []string{`^tensor [a-z0-9]+ `},
	with:     "keep(",
}, {
	title:    "save a tensor",
	text:     `Save writes the output to a file, from which set and other runs can read it.`,
	commands: [][]string{{"save", "layer0"}},
	output:   []string{`^layer0 saved in .*layer0\.safetensors\n$`},
	with:     "layer0",
}, {
	title: "go on to the next layer",
	text: `Continue --until stops once, without a breakpoint. Next would stop after the next
module, which is one inside the layer.`,
	commands: [][]string{{"continue", "--until", "transformer.layers.1"}},
	output:   []string{`^stopped after transformer\.layers\.1@1 \(until\)`},
	at:       "transformer.layers.1",
}, {
	title:    "compare it with the kept tensor",
	text:     `Compare reports how much two tensors differ, as parity run does.`,
	commands: [][]string{{"eval", `compare(out, first)`}},
	output:   []string{`^difference\(l2=0\.[0-9]+, `},
	with:     "compare(",
}, {
	title: "replace the output",
	text: `Set replaces the output by another tensor of the same shape and dtype, as if this
layer did nothing. The run goes on with it.`,
	commands: [][]string{{"set", "layer0"}},
	output:   []string{`^transformer\.layers\.1@1 is replaced by .*layer0\.safetensors`},
}, {
	title:    "leave the module",
	text:     `Out goes on until the module around is done: here the whole transformer.`,
	commands: [][]string{{"out"}},
	output:   []string{`^stopped after transformer@1 \(out\)`},
	at:       "transformer",
}, {
	title: "read the trace, and end the session",
	text: `Everything that happened is in the session's trace. Terminate ends the session; a
session also ends with its run.`,
	commands: [][]string{{"trace", "--log-dir", tutorialFolder}, {"terminate"}},
	output:   []string{`(?s) start .* break .* eval .* save .* set .* out `, `^session tutorial is terminated\n$`},
}}

// tutorialProgress returns the number of steps that are done by a session's trace, and the last
// command after them.
func tutorialProgress(trace string) (done int, last *protocol.TraceLine, err error) {
	_, err = protocol.TraceFile{Path: trace}.Read(func(l protocol.TraceLine) error {
		if done < len(lessons) && lessons[done].done(l) {
			done, last = done+1, nil
		} else if l.Event != protocol.EventStop && l.Event != protocol.EventEnd && !slices.Contains(resuming, l.Event) {
			// and not a command that lets the run go on, before which the stop is in the trace
			last = &l
		}
		return nil
	})
	return done, last, err
}

func (l lesson) name(number int) string { return fmt.Sprintf("%d (%s)", number, l.title) }

// step returns a lesson as it is printed. The commands name the session if there are others.
func (l lesson) step(number int, others bool) tutorialStep {
	s := tutorialStep{Step: number, Title: l.title, Text: l.text}
	for _, words := range l.commands {
		if others && words[0] != "start" && words[0] != "trace" {
			words = append(slices.Clone(words), "--session", tutorialName)
		}
		s.Commands = append(s.Commands, "gomflux debug "+quote.Shell(words...))
	}
	return s
}

// runTutorial does all steps in temporary folders.
func runTutorial(ctx context.Context, out *ui.Output) (err error) {
	dir, err := os.MkdirTemp("", "gf-") // a long name would make paths of sockets too long
	if err != nil {
		return err
	}
	t := &tutorialRun{dir: dir}
	defer func() {
		_, endErr := t.command(context.WithoutCancel(ctx), []string{"terminate", "--user", "--yes"})
		err = errors.Join(err, endErr, os.RemoveAll(dir))
	}()
	page := tutorialPage{Total: len(lessons)}
	for i, l := range lessons {
		step := l.step(i+1, false)
		problem, err := t.do(ctx, l, &step)
		if err != nil {
			return err
		}
		page.Steps = append(page.Steps, step)
		if out.Format == ui.Text {
			if err := out.Result(tutorialPage{Steps: []tutorialStep{step}, Total: len(lessons)}); err != nil {
				return err
			}
		}
		if problem == "" {
			problem = t.check(i + 1)
		}
		if problem != "" {
			page.Problem = fmt.Sprintf("step %s: %s", l.name(i+1), problem)
			break
		}
	}
	page.Finished = page.Problem == ""
	if out.Format == ui.Text {
		page.Steps = nil
	}
	if page.Finished || out.Format != ui.Text {
		err = out.Result(page)
	}
	if err == nil && page.Problem != "" {
		err = errors.New(page.Problem)
	}
	return err
}

// A tutorialRun does the steps of the tutorial.
type tutorialRun struct{ dir string }

// do runs the commands of a step, and adds their output to it.
func (t *tutorialRun) do(ctx context.Context, l lesson, step *tutorialStep) (problem string, err error) {
	for i, words := range l.commands {
		output, err := t.command(ctx, words)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		step.Output = append(step.Output, output)
		switch {
		case err != nil:
			problem = fmt.Sprintf("%s: %v", step.Commands[i], err)
		case !regexp.MustCompile(l.output[i]).MatchString(output):
			problem = fmt.Sprintf("%s printed %q, expected %s", step.Commands[i], output, l.output[i])
		}
	}
	return problem, nil
}

// command runs a command of gomflux debug, and returns what it prints.
func (t *tutorialRun) command(ctx context.Context, words []string) (string, error) {
	cmd := cli.Self(ctx, append([]string{"debug"}, words...)...)
	cmd.Dir, cmd.Env = t.dir, append(os.Environ(), "XDG_RUNTIME_DIR="+t.dir)
	if mlx := os.Getenv("GOMFLUX_MLX"); mlx != "" {
		mlx, err := filepath.Abs(mlx)
		if err != nil {
			return "", err
		}
		cmd.Env = append(cmd.Env, "GOMFLUX_MLX="+mlx)
	}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// check checks the trace after a step.
func (t *tutorialRun) check(steps int) (problem string) {
	files, err := filepath.Glob(filepath.Join(t.dir, tutorialFolder, protocol.TraceFolder, "*"+protocol.TraceSuffix))
	if err != nil || len(files) != 1 {
		return fmt.Sprintf("%d traces, expected 1", len(files))
	}
	if done, _, err := tutorialProgress(files[0]); err != nil || done != steps {
		return fmt.Sprintf("the trace has %d steps of the tutorial, expected %d", done, steps)
	}
	return ""
}
