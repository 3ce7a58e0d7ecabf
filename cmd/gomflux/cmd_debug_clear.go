package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugClearHelp = `Clear removes all breakpoints and watches.

With --json it prints one object: removed, a list of numbers.
` + sessionStatus

func newDebugClearCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:     "clear",
		Short:   "Remove all breakpoints and watches",
		Long:    debugClearHelp,
		Example: `  gomflux debug clear`,
		Args:    noArgs(" (gomflux debug remove removes one breakpoint)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return call[removedPoints](cmd, &o, protocol.Clear, nil)
		},
	}
	o.add(cmd)
	return cmd
}
