package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugAcceptHelp = `Accept is continue, in a replay (parity run): the run goes on with the
reference's tensor in the place of the one at which it is stopped. So break
--differs and accept walk through all wrong modules of a model.

It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on.

With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, began, run, trace, output, last (tensors
that passed), watched, never_hit and timed_out.
` + debugStatus

func newDebugAcceptCommand() *cobra.Command {
	o := newResumeFlags()
	cmd := &cobra.Command{
		Use:     "accept",
		Short:   "Go on with the reference's tensor",
		Long:    debugAcceptHelp,
		Example: `  gomflux debug accept`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.resume(cmd, protocol.Accept, "")
		},
	}
	o.add(cmd)
	return cmd
}
