package main

import (
	"context"
	"errors"

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
			text, err := runLines(cmd.Context(), &o, lines.orZero())
			if err != nil {
				return err
			}
			return o.out(cmd).Result(sessionLog{protocol.Lines{Lines: text}})
		},
	}
	o.add(cmd)
	cmd.Flags().VarP(&lines, "lines", "n", "print only the last lines (default: all)")
	return cmd
}

// runLines returns the last n lines that the run of a session has printed, or all of them if n is 0:
// from the session, or from its file if the session has ended, which may happen at any time.
func runLines(ctx context.Context, d *sessionFlags, n int) ([]string, error) {
	var lines protocol.Lines
	client, err := d.connect(ctx)
	if err == nil {
		defer client.Close()
		err = client.Do(ctx, protocol.Log, protocol.LogArguments{Lines: n}, &lines)
	}
	var ended *protocol.EndedError
	if errors.As(err, &ended) {
		return debugger.ReadLines(ended.Status.Output, n)
	}
	return lines.Lines, debugError(err)
}
