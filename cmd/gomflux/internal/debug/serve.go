package debug

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/record"
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
				return cli.Coded(cli.ExitUsage, err)
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			h := &record.Host{
				Name: name, Command: args, Output: output, Ready: os.NewFile(readyFile, "ready"), Tree: tree, Cancel: cancel,
			}
			root := newRoot()
			root.SetArgs(cli.JoinValues(args))
			root.SetIn(cmd.InOrStdin())
			root.SetOut(cmd.OutOrStdout())
			root.SetErr(cmd.ErrOrStderr())
			err = root.ExecuteContext(context.WithValue(ctx, record.HostKey{}, h))
			h.End(err)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "")
	f.StringVar(&output, "output", "", "")
	f.StringVar(&logDir, "log-dir", "", "")
	return cmd
}
