package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugNextHelp = `Next lets the run go on until the next tensor passes. Modules inside a module
pass before it, so next walks into every module that the run calls.

It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on.

With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, began, run, trace, output, last (tensors
that passed), watched, never_hit and timed_out.
` + debugStatus

func newDebugNextCommand() *cobra.Command {
	o := newResumeFlags()
	cmd := &cobra.Command{
		Use:     "next",
		Short:   "Go on until the next tensor",
		Long:    debugNextHelp,
		Example: `  gomflux debug next`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.resume(cmd, protocol.Next, "")
		},
	}
	o.add(cmd)
	return cmd
}
