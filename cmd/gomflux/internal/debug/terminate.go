package debug

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugTerminateHelp = `Terminate ends the run of the session, stopped or running, and its process. What
the run has saved stays, and so does the trace. A run that does not end by
itself, because MLX cannot abort an evaluation, ends with its process.

With --all it ends all sessions of gomflux, and no other process.

With --json it prints the last status of the session, or with --all one object:
sessions, a list of them.
` + sessionStatus

// debugTerminateOptions are the flags of gomflux debug terminate.
type debugTerminateOptions struct {
	sessionFlags
	all bool
}

func newDebugTerminateCommand() *cobra.Command {
	o := &debugTerminateOptions{}
	cmd := &cobra.Command{
		Use:   "terminate",
		Short: "End the session",
		Long:  debugTerminateHelp,
		Example: `  gomflux debug terminate
  gomflux debug terminate --all`,
		Args: cli.NoArgs(" (--session names a session)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.all && o.session != "" {
				return cli.UsageErrorf("give either --all or --session")
			}
			if o.all {
				return o.terminateAll(cmd.Context(), o.Out(cmd))
			}
			folder, s, err := o.choose()
			if err == nil && s.Ended() {
				err = cli.Coded(cli.ExitUsage, &protocol.EndedError{Status: s})
			}
			if err == nil {
				s, err = terminate(cmd.Context(), folder, s.Session)
			}
			if err != nil {
				return err
			}
			return o.Out(cmd).Result(terminated{s})
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "end all sessions of gomflux")
	return cmd
}

// terminateWait is how long terminate waits for the end of a session's process.
const terminateWait = 10 * time.Second

// terminate ends a session, and returns its last status.
func terminate(ctx context.Context, folder *protocol.Folder, name string) (s protocol.Status, err error) {
	c, err := protocol.Dial(ctx, folder, name)
	if err != nil {
		return s, sessionError(err)
	}
	defer c.Close()
	err = c.Do(ctx, protocol.Terminate, nil, &s)
	var ended *protocol.EndedError
	if err != nil && !errors.As(err, &ended) {
		return s, debugError(err)
	}
	for end := time.Now().Add(terminateWait); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		last, err := folder.Choose(name, runs.Gomflux)
		if err != nil { // it is cleaned up already
			return s, nil
		}
		if s = last; s.Ended() {
			return s, nil
		}
	}
	return s, errors.New("session " + name + " has not ended yet (gomflux debug status describes it)")
}

// A terminatedList is what terminate --all prints.
type terminatedList struct {
	Sessions []protocol.Status `json:"sessions"`
}

// Text implements ui.Result.
func (l terminatedList) Text(p *ui.Page) {
	for _, s := range l.Sessions {
		terminated{s}.Text(p)
	}
	if len(l.Sessions) == 0 {
		line(p, "no sessions")
	}
}

func (o *debugTerminateOptions) terminateAll(ctx context.Context, out *ui.Output) error {
	folder, err := protocol.OpenFolder()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	all, err := folder.Sessions()
	list := terminatedList{[]protocol.Status{}}
	errs := []error{err}
	for _, s := range all {
		if s.Ended() || s.Side != runs.Gomflux {
			continue
		}
		last, err := terminate(ctx, folder, s.Session)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list.Sessions = append(list.Sessions, last)
	}
	if err := out.Result(list); err != nil {
		return err
	}
	return cli.ComplainAll(out, errors.Join(errs...))
}
