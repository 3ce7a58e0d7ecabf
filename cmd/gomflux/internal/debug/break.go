package debug

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
)

const debugBreakHelp = `Break sets a breakpoint: the run stops after each tensor whose name matches the
pattern. Names are those of --debug-save and of dumps: transformer.layers.3,
transformer.layers.3.attention@0 (@STEP, #CALL), latents@2. In a pattern * is
any text, ? any character, and [ab] a choice. Without @ and # all steps and
calls match.

A module's tensor passes when the module is done, and the modules inside it
pass before it. So a stop is always after a module's call, where its inputs and
its output are known.

With several conditions all must hold:

  --step N      at evaluation N of the denoising model, from 0; -1 is outside
                the denoising loop
  --call N      at call N of the module in that evaluation, from 0
  --negative    in the pass for the negative prompt
  --hit N       only at the Nth match, from 1
  --if EXPR     if a Starlark expression is true. gomflux debug eval --help
                lists its names, such as out, step, sigma, timestep and hit
  --differs     where a replay (parity run) finds a tensor wrong by itself; the
                pattern can be left out
  --once        the breakpoint is removed after its first stop

With --watch the run does not stop: the command that waits for the next stop
(continue, next, out, step) prints the statistics of the tensors that have
passed, a line each.

In a session of the reference FILE.py:LINE stops at a line of Python.

With --json it prints one object: number, glob, step, call, hit, negative, if,
once, differs, file, line, watch (those that are set), and hits.
` + sessionStatus

// debugBreakOptions are the flags of gomflux debug break.
type debugBreakOptions struct {
	sessionFlags
	protocol.BreakArguments
	step, call, hit cli.Optional[int]
}

func newDebugBreakCommand() *cobra.Command {
	o := &debugBreakOptions{
		step: cli.WholeFrom(-1, "number"), call: cli.WholeFrom(0, "number"), hit: cli.Count("number"),
	}
	cmd := &cobra.Command{
		Use:   "break GLOB",
		Short: "Stop after tensors whose names match",
		Long:  debugBreakHelp,
		Example: `  gomflux debug break transformer.layers.0 --step 3
  gomflux debug break 'transformer.layers.*.attention' --if 'timestep > 900' --once
  gomflux debug break latents --if 'out.abs().max() > 10'
  gomflux debug break latents --watch
  gomflux debug break --differs`,
		Args: cli.Args(0, 1, "", " (quote a pattern, or the shell may replace it)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(cmd, args); err != nil {
				return err
			}
			return call(cmd, &o.sessionFlags, protocol.Break, o.arguments(args), &setBreakpoint{})
		},
	}
	o.add(cmd)
	f := cmd.Flags()
	f.Var(&o.step, "step", "only at this evaluation of the denoising model, from 0")
	f.Var(&o.call, "call", "only at this call of the module in an evaluation, from 0")
	f.BoolVar(&o.Negative, "negative", false, "only in the pass for the negative prompt")
	f.StringVar(&o.If, "if", "", "only if an `expression` is true")
	f.Var(&o.hit, "hit", "only at the Nth match, from 1")
	f.BoolVar(&o.Differs, "differs", false, "only where a replay finds a tensor wrong by itself")
	f.BoolVar(&o.Once, "once", false, "remove the breakpoint after its first stop")
	f.BoolVar(&o.Watch, "watch", false, "print statistics of the tensors as they pass, without a stop")
	return cmd
}

func (o *debugBreakOptions) validate(cmd *cobra.Command, args []string) error {
	switch {
	case cmd.Flags().Changed("if") && strings.TrimSpace(o.If) == "": // an unset variable of the shell
		return cli.UsageErrorf("--if: the expression is empty")
	case len(args) == 0 && !o.Differs:
		return cli.UsageErrorf("give the pattern of a tensor's name, such as 'transformer.layers.0'")
	}
	return nil
}

// pythonLine is a line of a Python file, for sessions of the reference.
var pythonLine = regexp.MustCompile(`^(.+\.py):([0-9]{1,9})$`)

// arguments returns those of the request.
func (o *debugBreakOptions) arguments(args []string) protocol.BreakArguments {
	b := o.BreakArguments
	b.Step, b.Call, b.Hit = o.step.Value, o.call.Value, o.hit.OrZero()
	if len(args) > 0 {
		b.Glob = args[0]
		if m := pythonLine.FindStringSubmatch(args[0]); m != nil {
			b.Glob, b.File = "", m[1]
			b.Line, _ = strconv.Atoi(m[2])
		}
	}
	return b
}

const debugBreaksHelp = `Breaks lists the breakpoints and watches of the session, with the number of
tensors that have matched each.

With --json it prints one object: breakpoints, a list of number, glob, step,
call, hit, negative, if, once, differs, file, line, watch (those that are set),
and hits.
` + sessionStatus

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
		Args:              cli.OneArg("the number of a breakpoint (gomflux debug breaks lists them)"),
		ValidArgsFunction: o.completePoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return cli.UsageErrorf("breakpoint %q: must be a number (gomflux debug breaks lists them)", args[0])
			}
			return call(cmd, &o, protocol.Remove, protocol.RemoveArguments{Number: n}, &removedPoints{})
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

const debugClearHelp = `Clear removes all breakpoints and watches.

With --json it prints one object: removed, a list of numbers.
` + sessionStatus
