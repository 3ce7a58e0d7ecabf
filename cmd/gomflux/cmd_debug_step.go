package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugStepHelp = `Step lets the run go on until the first tensor of the next evaluation of the
denoising model.

It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on.

With --json it prints the status of the session: session, side, state, progress,
stop, error, exit_code, command, pid, began, run, trace, output, last (tensors
that passed), watched, never_hit and timed_out.
` + debugStatus

func newDebugStepCommand() *cobra.Command {
	o := newResumeFlags()
	cmd := &cobra.Command{
		Use:     "step",
		Short:   "Go on until the next evaluation of the denoising model",
		Long:    debugStepHelp,
		Example: `  gomflux debug step --max-wait 300`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.resume(cmd, protocol.Step, "")
		},
	}
	o.add(cmd)
	return cmd
}
