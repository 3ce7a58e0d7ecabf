package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugWatchHelp = `Watch reports the statistics of tensors whose names match a pattern, and does
not stop the run. The command that waits for the next stop (continue, next,
out, step) prints them, a line for each tensor that has passed. breaks lists
watches, and remove and clear remove them. gomflux debug break --help describes
patterns and conditions.

With --json it prints one object: number, glob, step, call, negative, if (those
that are set), watch and hits.
` + sessionStatus

func newDebugWatchCommand() *cobra.Command {
	o := newPointFlags()
	cmd := &cobra.Command{
		Use:   "watch GLOB",
		Short: "Print statistics of tensors as they pass, without a stop",
		Long:  debugWatchHelp,
		Example: `  gomflux debug watch latents
  gomflux debug watch 'transformer.layers.*' --step 0`,
		Args: oneArg("the pattern of a tensor's name, such as 'latents'"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return call[setBreakpoint](cmd, &o.sessionFlags, protocol.Watch, o.arguments(args[0]))
		},
	}
	o.add(cmd)
	return cmd
}
