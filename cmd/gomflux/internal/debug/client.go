package debug

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/parity/runs"
)

// sessionStatus ends the help of commands about a session.
const sessionStatus = `
EXIT STATUS
  0    success
  1    an error while the command ran
  2    invalid input, no session, or not possible now
  130  interrupted`

// debugStatus ends the help of commands that wait for the run.
const debugStatus = `
EXIT STATUS
  0    the run has stopped or finished
  1    the run has failed
  2    invalid input, no session, or not possible now
  124  the run has not stopped within --max-wait
  130  interrupted: the session goes on`

// Errors of commands that wait for the run, after its status is printed.
var (
	errRunFailed  = errors.New("the run has failed (gomflux debug log prints its output)")
	errImpossible = errors.New("the model is loaded, and no tensor of the run can match this breakpoint " +
		"(gomflux debug break sets another, gomflux debug continue begins the run)")
	errTerminated = errors.New("the run was terminated")
	errRunKilled  = errors.New("the session's process was killed")
	errNotStopped = errors.New("the run has not stopped within --max-wait (gomflux debug continue waits again)")
)

// defaultMaxWait is the default of --max-wait, in seconds.
const defaultMaxWait = 60

// sessionFlags are the flags of every command about a session.
type sessionFlags struct {
	cli.OutputFlags
	session string
}

func (d *sessionFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&d.session, "session", "", "`name` of the session (default: the only one of this folder)")
	d.AddJSON(f, "a JSON object")
	cmd.RegisterFlagCompletionFunc("session", completeSessions)
}

// completeSessions offers the names of sessions.
func completeSessions(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	if folder, err := protocol.OpenFolder(); err == nil {
		all, _ := folder.Sessions()
		for _, s := range all {
			found = append(found, fmt.Sprintf("%s\t%s, %s", s.Session, s.Side, s.State))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// choose returns the session that a command is meant for, which may have ended.
func (d *sessionFlags) choose() (*protocol.Folder, protocol.Status, error) {
	folder, err := protocol.OpenFolder()
	if err != nil {
		return nil, protocol.Status{}, cli.Coded(cli.ExitUsage, err)
	}
	s, err := folder.Choose(d.session, runs.Gomflux, protocol.WorkingFolder())
	return folder, s, cli.Coded(cli.ExitUsage, err)
}

// connect connects to the chosen session, which must be alive.
func (d *sessionFlags) connect(ctx context.Context) (*protocol.Client, error) {
	folder, s, err := d.choose()
	if err == nil && s.Ended() {
		err = &protocol.EndedError{Status: s}
	}
	var c *protocol.Client
	if err == nil {
		c, err = protocol.Dial(ctx, folder, s.Session)
	}
	if err != nil {
		return nil, sessionError(err)
	}
	return c, nil
}

// sessionError is the error of connecting to a session.
func sessionError(err error) error {
	if _, ended := errors.AsType[*protocol.EndedError](err); ended || errors.Is(err, protocol.ErrNoSession) {
		return cli.Coded(cli.ExitUsage, err)
	}
	return err
}

// debugError gives the error of a command the exit code that the session's answer has.
func debugError(err error) error {
	if answer, ok := errors.AsType[*protocol.AnswerError](err); ok && answer.Code > 0 {
		return cli.Coded(answer.Code, err)
	}
	return err
}

// call sends a command to the session, and prints the result, a pointer to what the answer is decoded into.
func call(cmd *cobra.Command, d *sessionFlags, command string, arguments any, result ui.Result) error {
	client, err := d.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Do(cmd.Context(), command, arguments, result); err != nil {
		return debugError(err)
	}
	return d.Out(cmd).Result(result)
}

// resumeHelp ends the help of commands that let the run go on, and resumeJSON is its end about JSON.
const (
	resumeHelp = `
It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on.
` + resumeJSON
	resumeJSON = `
With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, folder, began, run, trace, output, last
(tensors that passed), watched, never_hit and timed_out.
` + debugStatus
)

// newAskCommand returns a command that prints the session's answer, and has no flags of its own. hint
// is for an argument, which it does not have.
func newAskCommand(command, short, long, example, hint string, result ui.Result) *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use: command, Short: short, Long: long, Example: example, Args: cli.NoArgs(hint),
		RunE: func(cmd *cobra.Command, _ []string) error { return call(cmd, &o, command, nil, result) },
	}
	o.add(cmd)
	return cmd
}

// newResumeCommand returns a command that lets the run go on, and has no flags of its own.
func newResumeCommand(command, short, long, example string) *cobra.Command {
	o := newResumeFlags()
	cmd := &cobra.Command{
		Use: command, Short: short, Long: long, Example: example, Args: cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.resume(cmd, command, "") },
	}
	o.add(cmd)
	return cmd
}

// resumeFlags are the flags of commands that let the run go on.
type resumeFlags struct {
	sessionFlags
	maxWait cli.Optional[float64]
}

func newResumeFlags() resumeFlags { return resumeFlags{maxWait: cli.Scale("seconds")} }

func (r *resumeFlags) add(cmd *cobra.Command) {
	r.sessionFlags.add(cmd)
	cmd.Flags().Var(&r.maxWait, "max-wait", "wait at most this long; 0 does not wait (default: 60)")
}

func (r *resumeFlags) arguments(until string) protocol.ResumeArguments {
	return protocol.ResumeArguments{Until: until, MaxWait: r.maxWait.OrElse(defaultMaxWait)}
}

// resume lets the run of the chosen session go on.
func (r *resumeFlags) resume(cmd *cobra.Command, command, until string) error {
	client, err := r.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer client.Close()
	return resumeSession(cmd.Context(), r.Out(cmd), client, command, r.arguments(until))
}

// resumeSession lets a run go on, waits, and prints where it has stopped or how it ended.
func resumeSession(ctx context.Context, out *ui.Output, c *protocol.Client, command string, args protocol.ResumeArguments) error {
	var s protocol.Status
	err := c.Do(ctx, command, args, &s)
	if ended, ok := errors.AsType[*protocol.EndedError](err); ok {
		s, err = ended.Status, nil
	}
	if err != nil {
		return debugError(err)
	}
	return printProgress(out, s)
}

// printProgress prints where a run has stopped or how it ended. The error has the exit code for it.
func printProgress(out *ui.Output, s protocol.Status) error {
	if err := out.Result(progressed{s}); err != nil {
		return err
	}
	switch {
	case s.State == protocol.Failed:
		return errRunFailed
	case s.State == protocol.Killed:
		return errRunKilled
	case s.State == protocol.Terminated:
		return errTerminated
	case s.State == protocol.Starting && len(s.NeverHit) > 0:
		return cli.Coded(cli.ExitUsage, errImpossible)
	case s.TimedOut:
		return cli.Coded(cli.ExitTimeout, errNotStopped)
	}
	return nil
}
