package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// AddDryRun adds the flag that only lists what a command would remove or end.
func AddDryRun(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "only list what would be done")
}

// AddYes adds the flag of commands that ask before they remove something.
func AddYes(cmd *cobra.Command, yes *bool, short string) {
	cmd.Flags().BoolVarP(yes, "yes", short, false, "do not ask")
}

// Confirm asks before something is removed or ended, as the verb says.
func Confirm(ctx context.Context, stdin io.Reader, out *ui.Output, verb, what string) (bool, error) {
	ok, err := out.Confirm(ctx, stdin, verb+" "+what)
	if errors.Is(err, ui.ErrNoTerminal) {
		return false, UsageErrorf("this %ss %s: give --yes", verb, what)
	}
	return ok, err
}
