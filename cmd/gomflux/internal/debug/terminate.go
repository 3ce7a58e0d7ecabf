package debug

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/parity/runs"
)

const debugTerminateHelp = `Terminate ends the run of the session, stopped or running, and its process. What
the run has saved stays, and so does the trace. A run that does not end by
itself, because MLX cannot abort an evaluation, ends with its process.

With --all it ends all sessions of gomflux that were started in this folder or
in one above it, with --user those of all folders, and no other process. It asks
first. Without a terminal to ask on, --yes is required. --dry-run only lists
them.

With --json it prints the last status of the session, or with --all one object:
sessions, a list of them.
` + sessionStatus

// debugTerminateOptions are the flags of gomflux debug terminate.
type debugTerminateOptions struct {
	sessionFlags
	scope
	all bool
	ask cli.ConfirmFlags
}

func newDebugTerminateCommand() *cobra.Command {
	o := &debugTerminateOptions{}
	cmd := &cobra.Command{
		Use:   "terminate",
		Short: "End the session",
		Long:  debugTerminateHelp,
		Example: `  gomflux debug terminate
  gomflux debug terminate --all --dry-run`,
		Args: cli.NoArgs(" (--session names a session)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			several := o.all || o.user
			switch {
			case several && o.session != "":
				return cli.UsageErrorf("give either --all or --session")
			case several:
				return o.terminateAll(cmd.Context(), cmd.InOrStdin(), o.Out(cmd))
			case o.ask.Dry || o.ask.Yes:
				return cli.UsageErrorf("--dry-run and --yes have no effect without --all or --user")
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
	o.sessionFlags.add(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "end all sessions of this folder")
	o.scope.add(cmd, "end the sessions of all folders")
	o.ask.Add(cmd)
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
	if _, ended := errors.AsType[*protocol.EndedError](err); err != nil && !ended {
		return s, debugError(err)
	}
	for end := time.Now().Add(terminateWait); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		last, err := folder.Choose(name, runs.Gomflux, "")
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
	DryRun   bool              `json:"-"`
}

func (l terminatedList) Text(p *ui.Page) {
	for _, s := range l.Sessions {
		if l.DryRun {
			line(p, "session %s would be terminated: %s", s.Session, quote.Shell(s.Command...))
			continue
		}
		terminated{s}.Text(p)
	}
	if len(l.Sessions) == 0 {
		line(p, "no sessions")
	}
}

func (o *debugTerminateOptions) terminateAll(ctx context.Context, stdin io.Reader, out *ui.Output) error {
	folder, all, err := o.sessions()
	if folder == nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s protocol.Status) bool { return s.Ended() || s.Side != runs.Gomflux })
	list := terminatedList{Sessions: []protocol.Status{}, DryRun: o.ask.Dry}
	errs := []error{err}
	if o.ask.Dry {
		list.Sessions = all
	} else if len(all) > 0 {
		var names []string
		for _, s := range all {
			names = append(names, s.Session)
		}
		what := ui.Plural(len(all), "session") + ": " + strings.Join(names, ", ")
		if ok, err := o.ask.Confirm(ctx, stdin, out, "end", what); err != nil || !ok {
			return err
		}
		for _, s := range all {
			last, err := terminate(ctx, folder, s.Session)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			list.Sessions = append(list.Sessions, last)
		}
	}
	if err := out.Result(list); err != nil {
		return err
	}
	return cli.ComplainAll(out, errors.Join(errs...))
}
