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

// ConfirmFlags are the flags of commands that ask before they remove or end something.
type ConfirmFlags struct {
	Dry bool // only list what would be done
	Yes bool // do not ask
}

// AddYes adds the flag that leaves out the question, with a short form if there is one.
func (c *ConfirmFlags) AddYes(cmd *cobra.Command, short string) {
	cmd.Flags().BoolVarP(&c.Yes, "yes", short, false, "do not ask")
}

// Add adds both flags.
func (c *ConfirmFlags) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.Dry, "dry-run", false, "only list what would be done")
	c.AddYes(cmd, "")
}

// Confirm asks, unless --yes is given, before something is removed or ended, as the verb says. Anything but y or yes is no.
func (c *ConfirmFlags) Confirm(ctx context.Context, stdin io.Reader, out *ui.Output, verb, what string) (bool, error) {
	if c.Yes {
		return true, nil
	}
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
