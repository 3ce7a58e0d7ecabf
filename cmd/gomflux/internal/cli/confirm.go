package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

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

// Confirm asks before something is removed or ended, as the verb says. Anything but y or yes is no.
func Confirm(ctx context.Context, stdin io.Reader, out *ui.Output, verb, what string) (bool, error) {
	if !ui.IsTerminal(stdin) {
		return false, UsageErrorf("this %ss %s: give --yes", verb, what)
	}
	fmt.Fprintf(out.Stderr, "%s %s? [y/N] ", verb, what)
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted
		line, _ := bufio.NewReader(stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case line := <-answer:
		line = strings.ToLower(strings.TrimSpace(line))
		return line == "y" || line == "yes", nil
	}
}
