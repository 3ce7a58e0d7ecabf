package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

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
		Args:    noArgs(""),
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
			return o.out(cmd).Result(sessionState{s})
		},
	}
	o.add(cmd)
	return cmd
}
