package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Version prints the version of gomflux and what it was built with.\n" + exitStatus,
		Args:  noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version says what this program is, from what the Go tool put into it.
func version() string {
	return fmt.Sprintf("gomflux %s %s %s/%s", gomflux.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// builtWithCgo says whether the tokenizer is in the program.
func builtWithCgo() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return true // not known, so nothing to warn about
	}
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" {
			return s.Value == "1"
		}
	}
	return true
}
