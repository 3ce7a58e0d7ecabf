package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/runs"
)

// readyFile is the number of the file to which the process of a session reports that the session
// can be used.
const readyFile = 3

// newDebugServeCommand is the command that debug start runs in the background. newRoot returns the
// command of the program.
func newDebugServeCommand(newRoot func() *cobra.Command) *cobra.Command {
	var name, output, logDir string
	cmd := &cobra.Command{
		Use:    "serve -- COMMAND",
		Short:  "Run a command in a debugging session (debug start does this in the background)",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tree, err := runs.Open(logDir)
			if err != nil {
				return coded(exitUsage, err)
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			h := &debugHost{
				name: name, command: args, output: output, ready: os.NewFile(readyFile, "ready"), tree: tree, cancel: cancel,
			}
			root := newRoot()
			root.SetArgs(joinValues(args))
			root.SetIn(cmd.InOrStdin())
			root.SetOut(cmd.OutOrStdout())
			root.SetErr(cmd.ErrOrStderr())
			err = root.ExecuteContext(context.WithValue(ctx, debugHostKey{}, h))
			h.end(err)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "")
	f.StringVar(&output, "output", "", "")
	f.StringVar(&logDir, "log-dir", "", "")
	return cmd
}
