package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugBreaksHelp = `Breaks lists the breakpoints and watches of the session, with the number of
tensors that have matched each.

With --json it prints one object: breakpoints, a list of number, glob, step,
call, hit, negative, if, once, differs, file, line (those that are set), watch
and hits.
` + sessionStatus

func newDebugBreaksCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:     "breaks",
		Short:   "List breakpoints and watches",
		Long:    debugBreaksHelp,
		Example: `  gomflux debug breaks --json | jq '.breakpoints[] | select(.hits == 0)'`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return call[breakpointList](cmd, &o, protocol.Breaks, nil)
		},
	}
	o.add(cmd)
	return cmd
}
