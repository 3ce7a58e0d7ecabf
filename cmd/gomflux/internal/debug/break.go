package debug

import (
	"cmp"
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

In a session of the reference FILE.py:LINE stops at a line of Python.

With --json it prints one object: number, glob, step, call, hit, negative, if,
once, differs, file, line (those that are set), and hits.
` + sessionStatus

// pointFlags are the flags of break and watch.
type pointFlags struct {
	sessionFlags
	step, call cli.Optional[int]
	negative   bool
	condition  string
}

func newPointFlags() pointFlags {
	return pointFlags{step: cli.WholeFrom(-1, "number"), call: cli.WholeFrom(0, "number")}
}

func (o *pointFlags) add(cmd *cobra.Command) {
	o.sessionFlags.add(cmd)
	f := cmd.Flags()
	f.Var(&o.step, "step", "only at this evaluation of the denoising model, from 0")
	f.Var(&o.call, "call", "only at this call of the module in an evaluation, from 0")
	f.BoolVar(&o.negative, "negative", false, "only in the pass for the negative prompt")
	f.StringVar(&o.condition, "if", "", "only if an `expression` is true")
}

// check refuses an empty condition, such as that of an unset variable of the shell.
func (o *pointFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("if") && strings.TrimSpace(o.condition) == "" {
		return cli.UsageErrorf("--if: the expression is empty")
	}
	return nil
}

// arguments returns those of the request.
func (o *pointFlags) arguments(glob string) protocol.BreakArguments {
	return protocol.BreakArguments{Glob: glob, Step: o.step.Value, Call: o.call.Value, Negative: o.negative, If: o.condition}
}

// debugBreakOptions are the flags of gomflux debug break.
type debugBreakOptions struct {
	pointFlags
	hit           cli.Optional[int]
	differs, once bool
}

func newDebugBreakCommand() *cobra.Command {
	o := &debugBreakOptions{pointFlags: newPointFlags(), hit: cli.Count("number")}
	cmd := &cobra.Command{
		Use:   "break GLOB",
		Short: "Stop after tensors whose names match",
		Long:  debugBreakHelp,
		Example: `  gomflux debug break transformer.layers.0 --step 3
  gomflux debug break 'transformer.layers.*.attention' --if 'timestep > 900' --once
  gomflux debug break latents --if 'out.abs().max() > 10'
  gomflux debug break --differs`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(o.check(cmd), o.validate(args)); err != nil {
				return err
			}
			return call[setBreakpoint](cmd, &o.sessionFlags, protocol.Break, o.arguments(args))
		},
	}
	o.add(cmd)
	f := cmd.Flags()
	f.Var(&o.hit, "hit", "only at the Nth match, from 1")
	f.BoolVar(&o.differs, "differs", false, "only where a replay finds a tensor wrong by itself")
	f.BoolVar(&o.once, "once", false, "remove the breakpoint after its first stop")
	return cmd
}

func (o *debugBreakOptions) validate(args []string) error {
	switch {
	case len(args) > 1:
		return cli.UsageErrorf("unexpected argument %q (quote a pattern, or the shell may replace it)", args[1])
	case len(args) == 0 && !o.differs:
		return cli.UsageErrorf("give the pattern of a tensor's name, such as 'transformer.layers.0'")
	}
	return nil
}

// pythonLine is a line of a Python file, for sessions of the reference.
var pythonLine = regexp.MustCompile(`^(.+\.py):([0-9]{1,9})$`)

// arguments returns those of the request.
func (o *debugBreakOptions) arguments(args []string) protocol.BreakArguments {
	b := o.pointFlags.arguments("")
	b.Hit, b.Differs, b.Once = o.hit.OrZero(), o.differs, o.once
	if len(args) > 0 {
		b.Glob = args[0]
		if m := pythonLine.FindStringSubmatch(args[0]); m != nil {
			b.Glob, b.File = "", m[1]
			b.Line, _ = strconv.Atoi(m[2])
		}
	}
	return b
}

const debugWatchHelp = `Watch reports the statistics of tensors whose names match a pattern, and does
not stop the run. The command that waits for the next stop (continue, next,
out, step) prints them, a line for each tensor that has passed. breaks lists
watches, and remove and clear remove them. gomflux debug break --help describes
patterns and conditions.

With --json it prints one object: number, glob, step, call, negative, if (those
that are set), watch and hits.
` + sessionStatus

func newDebugWatchCommand() *cobra.Command {
	o := newPointFlags()
	cmd := &cobra.Command{
		Use:   "watch GLOB",
		Short: "Print statistics of tensors as they pass, without a stop",
		Long:  debugWatchHelp,
		Example: `  gomflux debug watch latents
  gomflux debug watch 'transformer.layers.*' --step 0`,
		Args: cli.OneArg("the pattern of a tensor's name, such as 'latents'"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return call[setBreakpoint](cmd, &o.sessionFlags, protocol.Watch, o.arguments(args[0]))
		},
	}
	o.add(cmd)
	return cmd
}

const debugBreaksHelp = `Breaks lists the breakpoints and watches of the session, with the number of
tensors that have matched each.

With --json it prints one object: breakpoints, a list of number, glob, step,
call, hit, negative, if, once, differs, file, line (those that are set), watch
and hits.
` + sessionStatus

func newDebugBreaksCommand() *cobra.Command {
	return newAskCommand[breakpointList](protocol.Breaks, "List breakpoints and watches", debugBreaksHelp,
		`  gomflux debug breaks --json | jq '.breakpoints[] | select(.hits == 0)'`, "")
}

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

const debugClearHelp = `Clear removes all breakpoints and watches.

With --json it prints one object: removed, a list of numbers.
` + sessionStatus

func newDebugClearCommand() *cobra.Command {
	return newAskCommand[removedPoints](protocol.Clear, "Remove all breakpoints and watches", debugClearHelp,
		`  gomflux debug clear`, " (gomflux debug remove removes one breakpoint)")
}
