package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugOutHelp = `Out lets the run go on until the module around the current one is done.

It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on.

With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, began, run, trace, output, last (tensors
that passed), watched, never_hit and timed_out.
` + debugStatus

func newDebugOutCommand() *cobra.Command {
	o := newResumeFlags()
	cmd := &cobra.Command{
		Use:     "out",
		Short:   "Go on until the module around the stop is done",
		Long:    debugOutHelp,
		Example: `  gomflux debug out`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.resume(cmd, protocol.Out, "")
		},
	}
	o.add(cmd)
	return cmd
}
