package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// addYes adds the flag of commands that ask before they remove something.
func addYes(cmd *cobra.Command, yes *bool, short string) {
	cmd.Flags().BoolVarP(yes, "yes", short, false, "do not ask")
}

// confirm asks before something is removed.
func confirm(ctx context.Context, stdin io.Reader, out *ui.Output, what string) (bool, error) {
	ok, err := out.Confirm(ctx, stdin, "remove "+what)
	if errors.Is(err, ui.ErrNoTerminal) {
		return false, usageErrorf("this removes %s: give --yes", what)
	}
	return ok, err
}
