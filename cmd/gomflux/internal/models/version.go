package models

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

func NewVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Version prints the version of gomflux, the Go version and the platform.\n" + cli.ExitStatus,
		Args:  cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cli.Version())
			return err
		},
	}
}

// builtWithCgo reports whether the tokenizer is in the program.
func builtWithCgo() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return true // unknown, so there is nothing to warn about
	}
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" {
			return s.Value == "1"
		}
	}
	return true
}
