package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugRemoveHelp = `Remove removes the breakpoint or watch with a number, which breaks lists.

With --json it prints one object: removed, a list of numbers.
` + sessionStatus

func newDebugRemoveCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:               "remove N",
		Short:             "Remove a breakpoint or a watch",
		Long:              debugRemoveHelp,
		Example:           `  gomflux debug remove 2`,
		Args:              oneArg("the number of a breakpoint (gomflux debug breaks lists them)"),
		ValidArgsFunction: o.completePoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return usageErrorf("breakpoint %q: must be a number (gomflux debug breaks lists them)", args[0])
			}
			return call[removedPoints](cmd, &o, protocol.Remove, protocol.RemoveArguments{Number: n})
		},
	}
	o.add(cmd)
	return cmd
}

// completePoints offers the numbers of breakpoints and watches.
func (d *sessionFlags) completePoints(cmd *cobra.Command, args []string, _ string) (found []string, _ cobra.ShellCompDirective) {
	const most = time.Second // that a user waits for it
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all protocol.Breakpoints
	if c, err := d.connect(ctx); err == nil {
		defer c.Close()
		c.Do(ctx, protocol.Breaks, nil, &all) // without an answer there is nothing to offer
	}
	for _, b := range all.Breakpoints {
		found = append(found, fmt.Sprintf("%d\t%s", b.Number, pointText(b)))
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
