package debug

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger"
	"github.com/gomflux/gomflux/debugger/protocol"
)

const debugSessionsHelp = `Sessions lists the debugging sessions of gomflux and of the reference that live,
and those that have ended since the last time. It notices sessions whose process
was killed, and removes their sockets and locks.

With --json it prints one object: sessions, a list of session, side, state,
progress, stop, error, exit_code, command, pid, began, run, trace and output.
` + sessionStatus

func newDebugSessionsCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions",
		Long:    debugSessionsHelp,
		Example: `  gomflux debug sessions --json | jq -r '.sessions[] | select(.state == "stopped") | .session'`,
		Args:    cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := protocol.OpenFolder()
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			all, err := folder.Sessions()
			if printErr := o.Out(cmd).Result(sessionList{all}); printErr != nil {
				return printErr // they are listed again the next time
			}
			if err == nil {
				err = folder.Forget(all)
			}
			return cli.ComplainAll(o.Out(cmd), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	return cmd
}

const debugStatusHelp = `Status describes the session: whether it is starting, loading the model,
running, stopped, finished, failed or killed; where it is stopped; the error and
the last lines of the output, if it has failed; breakpoints that no tensor has
matched, at the end; the command, and the files with its output and its trace.

With --json it prints one object: session, side, state, progress, stop, error,
exit_code, command, pid, began, run, trace, output, last (tensors that passed),
watched and never_hit.
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
				err := call[sessionState](cmd, &o, protocol.GetStatus, nil)
				var ended *protocol.EndedError
				if !errors.As(err, &ended) { // in the meantime
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
			text, err := runLines(cmd.Context(), &o, lines.OrZero())
			if err != nil {
				return err
			}
			return o.Out(cmd).Result(sessionLog{protocol.Lines{Lines: text}})
		},
	}
	o.add(cmd)
	cmd.Flags().VarP(&lines, "lines", "n", "print only the last lines (default: all)")
	return cmd
}

// runLines returns the last n lines that the run of a session has printed, or all of them if n is 0:
// from the session, or from its file if the session has ended, which may happen at any time.
func runLines(ctx context.Context, d *sessionFlags, n int) ([]string, error) {
	var lines protocol.Lines
	client, err := d.connect(ctx)
	if err == nil {
		defer client.Close()
		err = client.Do(ctx, protocol.Log, protocol.LogArguments{Lines: n}, &lines)
	}
	var ended *protocol.EndedError
	if errors.As(err, &ended) {
		return debugger.ReadLines(ended.Status.Output, n)
	}
	return lines.Lines, debugError(err)
}

const debugCleanHelp = `Clean removes what sessions that have ended left in the folder of sockets, which
is in $XDG_RUNTIME_DIR or in the temporary folder: how they ended, and of killed
ones the socket and the lock. It does not touch sessions that live, and no
traces.

With --json it prints one object: removed, a list of the sessions.
` + sessionStatus

func newDebugCleanCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:     "clean",
		Short:   "Remove what ended sessions have left",
		Long:    debugCleanHelp,
		Example: `  gomflux debug clean`,
		Args:    cli.NoArgs(" (gomflux debug terminate ends a session)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			folder, err := protocol.OpenFolder()
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			removed, err := folder.Clean()
			if printErr := o.Out(cmd).Result(cleanedSessions{removed}); printErr != nil {
				return printErr
			}
			return cli.ComplainAll(o.Out(cmd), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	return cmd
}
