package debug

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugSessionsHelp = `Sessions lists the debugging sessions of gomflux and of the reference that were
started in this folder or in one above it, or with --user all of the user's.
Those that have ended are listed, and their logs can be read, until gomflux
debug clean removes them. Sessions notices those whose process was killed, and
removes their sockets and locks.

With --json it prints one object: sessions, a list of session, side, state,
progress, stop, error, exit_code, command, pid, folder, began, run, trace and
output.
` + sessionStatus

// A scope is whose sessions a command about several is for.
type scope struct{ user bool }

func (c *scope) add(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVar(&c.user, "user", false, usage)
}

// sessions returns the sessions of this folder, or of the user. The error may be about some of them.
func (c *scope) sessions() (*protocol.Folder, []protocol.Status, error) {
	folder, err := protocol.OpenFolder()
	if err != nil {
		return nil, nil, cli.Coded(cli.ExitUsage, err)
	}
	all, err := folder.Sessions()
	if !c.user {
		here := protocol.WorkingFolder()
		all = slices.DeleteFunc(all, func(s protocol.Status) bool { return !s.In(here) })
	}
	return folder, all, err
}

func newDebugSessionsCommand() *cobra.Command {
	var o cli.OutputFlags
	var which scope
	cmd := &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions",
		Long:    debugSessionsHelp,
		Example: `  gomflux debug sessions --json | jq -r '.sessions[] | select(.state == "stopped") | .session'`,
		Args:    cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, all, err := which.sessions()
			if folder == nil {
				return err
			}
			if printErr := o.Out(cmd).Result(sessionList{all}); printErr != nil {
				return printErr
			}
			return cli.ComplainAll(o.Out(cmd), err)
		},
	}
	which.add(cmd, "list the sessions of all folders")
	o.AddJSON(cmd.Flags(), "a JSON object")
	return cmd
}

const debugStatusHelp = `Status describes the session: whether it is starting, loading the model,
running, stopped, finished, failed, terminated or killed; where it is stopped;
the error and the last lines of the output, if it has failed; breakpoints that
no tensor has matched, at the end; the command, and the files with its output
and its trace.

With --json it prints one object: session, side, state, progress, stop, error,
exit_code, command, pid, folder, began, run, trace, output, last (tensors that
passed), watched and never_hit.
` + sessionStatus

func newDebugStatusCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Describe the session",
		Long:    debugStatusHelp,
		Example: `  gomflux debug status --json | jq -r .state`,
		Args:    cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := o.choose()
			if err != nil {
				return err
			}
			if !s.Ended() {
				err := call(cmd, &o, protocol.GetStatus, nil, &sessionState{})
				ended, ok := errors.AsType[*protocol.EndedError](err)
				if !ok { // in the meantime
					return err
				}
				s = ended.Status
			}
			return o.Out(cmd).Result(sessionState{s})
		},
	}
	o.add(cmd)
	return cmd
}

const debugLogHelp = `Log prints what the run has printed: progress, warnings, and the names of
images. It works after the end of the run too.

With --json it prints one object: lines.
` + sessionStatus

func newDebugLogCommand() *cobra.Command {
	var o sessionFlags
	lines := cli.Count("number")
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Print what the run has printed",
		Long:    debugLogHelp,
		Example: `  gomflux debug log --lines 20`,
		Args:    cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := o.choose()
			text := []string{}
			if err == nil && s.Output != "" { // or it has only begun
				text, err = debugger.ReadLines(s.Output, lines.OrZero())
			}
			if err != nil {
				return err
			}
			return o.Out(cmd).Result(sessionLog{text})
		},
	}
	o.add(cmd)
	cmd.Flags().VarP(&lines, "lines", "n", "print only the last lines (default: all)")
	return cmd
}

const debugCleanHelp = `Clean removes what sessions of this folder that have ended left: how they ended,
their traces and what their runs printed; and such files in logs/traces that no
session knows any more. With --user it does so for the sessions of all folders.
It does not touch sessions that live, and no saved tensors (gomflux tensors
clear removes those).

It asks first, and names the size. Without a terminal to ask on, --yes is
required. --dry-run only lists what would be removed.

With --json it prints one object: removed, a list of the sessions, files (a
number) and bytes.
` + sessionStatus

// debugCleanOptions are the flags of gomflux debug clean.
type debugCleanOptions struct {
	record.TreeFlags
	scope
	ask cli.ConfirmFlags
}

func newDebugCleanCommand() *cobra.Command {
	o := &debugCleanOptions{}
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what ended sessions have left",
		Long:  debugCleanHelp,
		Example: `  gomflux debug clean --dry-run
  gomflux debug clean --yes`,
		Args: cli.NoArgs(" (gomflux debug terminate ends a session)"),
		RunE: o.With(func(cmd *cobra.Command, tree *runs.Tree, _ []string) error {
			return o.clean(cmd.Context(), cmd.InOrStdin(), o.Out(cmd), tree)
		}),
	}
	o.Add(cmd)
	o.scope.add(cmd, "of the sessions of all folders")
	o.ask.Add(cmd)
	return cmd
}

func (o *debugCleanOptions) clean(ctx context.Context, stdin io.Reader, out *ui.Output, tree *runs.Tree) error {
	folder, all, problems := o.sessions()
	if folder == nil {
		return problems
	}
	every, err := folder.Sessions() // those that live, and those of other folders, keep their files
	if err != nil {
		return err
	}
	c := cleanedSessions{Removed: []protocol.Status{}, DryRun: o.ask.Dry}
	for _, s := range all {
		if s.Ended() {
			c.Removed = append(c.Removed, s)
		}
	}
	files, err := protocol.Old(tree, every)
	if err != nil {
		return err
	}
	for _, s := range c.Removed {
		for _, path := range []string{s.Trace, s.Output} {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && protocol.IsSessionFile(path) {
				files = append(files, runs.File{Path: path, Size: info.Size()})
			}
		}
	}
	for _, f := range files {
		c.Files, c.Bytes = c.Files+1, c.Bytes+f.Size
	}
	if !o.ask.Dry && c.Files+len(c.Removed) > 0 {
		if ok, err := o.ask.Confirm(ctx, stdin, out, "remove", c.what()); err != nil || !ok {
			return err
		}
		problems = errors.Join(problems, runs.RemoveFiles(files), folder.Forget(c.Removed))
	}
	if err := out.Result(c); err != nil {
		return err
	}
	return cli.ComplainAll(out, problems)
}
