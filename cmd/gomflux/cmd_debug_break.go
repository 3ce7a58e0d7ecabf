package main

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
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
	step, call optional[int]
	negative   bool
	condition  string
}

func newPointFlags() pointFlags {
	return pointFlags{step: wholeFrom(-1, "number"), call: wholeFrom(0, "number")}
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
		return usageErrorf("--if: the expression is empty")
	}
	return nil
}

// arguments returns those of the request.
func (o *pointFlags) arguments(glob string) protocol.BreakArguments {
	return protocol.BreakArguments{Glob: glob, Step: o.step.value, Call: o.call.value, Negative: o.negative, If: o.condition}
}

// debugBreakOptions are the flags of gomflux debug break.
type debugBreakOptions struct {
	pointFlags
	hit           optional[int]
	differs, once bool
}

func newDebugBreakCommand() *cobra.Command {
	o := &debugBreakOptions{pointFlags: newPointFlags(), hit: count("number")}
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
		return usageErrorf("unexpected argument %q (quote a pattern, or the shell may replace it)", args[1])
	case len(args) == 0 && !o.differs:
		return usageErrorf("give the pattern of a tensor's name, such as 'transformer.layers.0'")
	}
	return nil
}

// pythonLine is a line of a Python file, for sessions of the reference.
var pythonLine = regexp.MustCompile(`^(.+\.py):([0-9]{1,9})$`)

// arguments returns those of the request.
func (o *debugBreakOptions) arguments(args []string) protocol.BreakArguments {
	b := o.pointFlags.arguments("")
	b.Hit, b.Differs, b.Once = o.hit.orZero(), o.differs, o.once
	if len(args) > 0 {
		b.Glob = args[0]
		if m := pythonLine.FindStringSubmatch(args[0]); m != nil {
			b.Glob, b.File = "", m[1]
			b.Line, _ = strconv.Atoi(m[2])
		}
	}
	return b
}
