package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger"
	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugLogHelp = `Log prints what the run has printed: progress, warnings, and the names of
images. It works after the end of the run too.

With --json it prints one object: lines.
` + sessionStatus

func newDebugLogCommand() *cobra.Command {
	var o sessionFlags
	lines := count("number")
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Print what the run has printed",
		Long:    debugLogHelp,
		Example: `  gomflux debug log --lines 20`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := o.choose()
			if err != nil {
				return err
			}
			if s.Ended() {
				text, err := debugger.ReadLines(s.Output, lines.orZero())
				if err != nil {
					return err
				}
				return o.out(cmd).Result(sessionLog{protocol.Lines{Lines: text}})
			}
			return call[sessionLog](cmd, &o, protocol.Log, protocol.LogArguments{Lines: lines.orZero()})
		},
	}
	o.add(cmd)
	cmd.Flags().VarP(&lines, "lines", "n", "print only the last lines (default: all)")
	return cmd
}
