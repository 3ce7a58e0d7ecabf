package debug

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugTutorialHelp = `Tutorial teaches the debugger with a session of the built-in model. It prints
one step at a time: what to type, and why. After each step, gomflux debug
tutorial again checks it and prints the next one. At the end it removes the
session and the folder gomflux-tutorial, which the session has made in the
current folder.

With --run it does all steps itself in a temporary folder, prints the commands
and their output, and checks them.

With --json it prints one object: steps (step, title, text, commands, and with
--run output), total (number of steps), finished, and problem.

EXIT STATUS
  0    success; with --run: all steps had the expected result
  1    a step had another result, or an error while the command ran
  2    invalid input, or the folder gomflux-tutorial exists
  130  interrupted`

func newDebugTutorialCommand() *cobra.Command {
	var o cli.OutputFlags
	run := false
	cmd := &cobra.Command{
		Use:   "tutorial",
		Short: "Learn the debugger step by step",
		Long:  debugTutorialHelp,
		Example: `  gomflux debug tutorial
  gomflux debug tutorial --run`,
		Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if run {
				return runTutorial(cmd.Context(), o.Out(cmd))
			}
			return nextLesson(o.Out(cmd))
		},
	}
	cmd.Flags().BoolVar(&run, "run", false, "do all steps")
	o.AddJSON(cmd.Flags(), "a JSON object")
	return cmd
}

// A tutorialPage is what the tutorial prints: one step, or with --run all of them.
type tutorialPage struct {
	Steps    []tutorialStep `json:"steps"`
	Total    int            `json:"total"`
	Finished bool           `json:"finished"`
	Problem  string         `json:"problem,omitempty"`
}

// A tutorialStep is a step as it is printed.
type tutorialStep struct {
	Step     int      `json:"step"`
	Title    string   `json:"title"`
	Text     string   `json:"text"`
	Commands []string `json:"commands"`
	Output   []string `json:"output,omitempty"` // of each command
}

func (t tutorialPage) Text(p *ui.Page) {
	if t.Problem != "" {
		line(p, "%s", t.Problem)
		p.Printf("\n")
	}
	for _, s := range t.Steps {
		line(p, "Step %d of %d: %s", s.Step, t.Total, s.Title)
		p.Printf("\n%s\n\n", s.Text)
		for i, command := range s.Commands {
			if len(s.Output) == 0 {
				line(p, "    %s", command)
				continue
			}
			line(p, "$ %s", command)
			p.Printf("%s\n", s.Output[i])
		}
		if len(s.Output) == 0 {
			p.Printf("\nThen: gomflux debug tutorial\n")
		}
	}
	if t.Finished {
		p.Printf("%s\n", tutorialEnd)
	}
}

const tutorialEnd = `All steps are done, and the files of the tutorial are removed. gomflux debug --help
lists all commands; docs/debugging.md describes how to find the cause of a wrong
image.`

// nextLesson checks the last step, and prints the next one.
func nextLesson(out *ui.Output) error {
	folder, err := protocol.OpenFolder()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	all, err := folder.Sessions()
	if err != nil {
		return err
	}
	var session *protocol.Status
	others := false
	for _, s := range all {
		if s.Session == tutorialName {
			session = &s
		} else {
			others = others || !s.Ended() && s.Side == runs.Gomflux
		}
	}
	page := tutorialPage{Steps: []tutorialStep{}, Total: len(lessons)}
	if session == nil {
		if _, err := os.Lstat(tutorialFolder); !errors.Is(err, fs.ErrNotExist) {
			return cli.UsageErrorf("%s exists (remove it, or begin the tutorial in another folder)", tutorialFolder)
		}
		page.Steps = append(page.Steps, lessons[0].step(1, others))
		return out.Result(page)
	}
	done, last, err := tutorialProgress(session.Trace)
	if err != nil && !session.Ended() {
		return err
	}
	switch {
	case done == len(lessons):
		page.Finished = true
	case session.Ended():
		page.Problem = "The session has ended before step " + lessons[done].name(done+1) + ". The tutorial begins again."
		page.Steps = append(page.Steps, lessons[0].step(1, others))
	default:
		if last != nil {
			page.Problem = "Step " + lessons[done].name(done+1) + " is not done yet. The last command was " + described(*last) + "."
		}
		page.Steps = append(page.Steps, lessons[done].step(done+1, others))
	}
	if session.Ended() {
		if err := removeTutorial(folder, *session); err != nil {
			return err
		}
	}
	return out.Result(page)
}

func described(l protocol.TraceLine) string {
	if l.Error != "" {
		return l.Event + ", which failed: " + l.Error
	}
	return l.Event
}

// removeTutorial removes the files of the tutorial's session, which has ended.
func removeTutorial(folder *protocol.Folder, s protocol.Status) error {
	err := folder.Forget([]protocol.Status{s})
	if dir := filepath.Dir(filepath.Dir(s.Trace)); filepath.IsAbs(dir) && filepath.Base(dir) == tutorialFolder {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
