package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// AddYes adds the flag of commands that ask before they remove something.
func AddYes(cmd *cobra.Command, yes *bool, short string) {
	cmd.Flags().BoolVarP(yes, "yes", short, false, "do not ask")
}

// Confirm asks before something is removed.
func Confirm(ctx context.Context, stdin io.Reader, out *ui.Output, what string) (bool, error) {
	ok, err := out.Confirm(ctx, stdin, "remove "+what)
	if errors.Is(err, ui.ErrNoTerminal) {
		return false, UsageErrorf("this removes %s: give --yes", what)
	}
	return ok, err
}
