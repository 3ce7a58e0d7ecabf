// Package debug has the commands of gomflux debug. They talk to a session, in which another command runs.
package debug

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
)

const debugHelp = `Debug stops a run at a tensor, shows and changes what is there, and goes on. A
run in the background is a session; every command below is sent to it.

A session
  start         begin a session: generate, edit, inpaint or parity run
  status        describe the session
  log           print what the run has printed
  sessions      list sessions
  terminate     end the session
  clean         remove what ended sessions have left
Where to stop
  break         stop after tensors whose names match
  breaks        list breakpoints and watches
  remove        remove a breakpoint or a watch
  clear         remove all of them
Going on
  continue      until a breakpoint or the end
  next          until the next tensor
  out           until the module around the stop is done
  step          until the next evaluation of the denoising model
  accept        in a replay: with the reference's tensor
At a stop
  location      describe where the run is stopped
  vars          list the tensors and parameters of the stop
  eval          evaluate an expression
  save          save the output
  set           replace the output
Afterwards
  trace         print what happened in a session
To begin with
  tutorial      learn these commands step by step
With a coding assistant
  mcp           offer these commands to it, as tools

Modules report when they are done, those inside before those around them, and
nothing reports when a module begins. So a stop is always after a module's call,
with its inputs and its output at hand.

Commands are for the only session of gomflux, or for the one that --session
names, which can be one of the reference's (gomflux-reference debug). Nothing
listens on the network: commands reach a session through a socket in a folder
that only its user can open.
` + sessionStatus

func NewCommand(root func() *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Stop a run at a tensor, look, evaluate, change, go on",
		Long:  debugHelp,
		Example: `  gomflux debug start --break transformer.layers.0@3 -- generate -p "a lighthouse"
  gomflux debug continue
  gomflux debug vars
  gomflux debug eval '(out.mean(), out.std())'
  gomflux debug continue`,
	}
	cmd.AddCommand(newDebugStartCommand(), newDebugServeCommand(root), newDebugStatusCommand(), newDebugLogCommand(),
		newDebugSessionsCommand(), newDebugTerminateCommand(), newDebugCleanCommand(), newDebugBreakCommand(),
		newAskCommand(protocol.Breaks, "List breakpoints and watches", debugBreaksHelp,
			`  gomflux debug breaks --json | jq '.breakpoints[] | select(.hits == 0)'`, "", &breakpointList{}),
		newDebugRemoveCommand(),
		newAskCommand(protocol.Clear, "Remove all breakpoints and watches", debugClearHelp, `  gomflux debug clear`,
			" (gomflux debug remove removes one breakpoint)", &removedPoints{}),
		newDebugContinueCommand(),
		newResumeCommand(protocol.Next, "Go on until the next tensor", debugNextHelp, `  gomflux debug next`),
		newResumeCommand(protocol.Out, "Go on until the module around the stop is done", debugOutHelp, `  gomflux debug out`),
		newResumeCommand(protocol.Step, "Go on until the next evaluation of the denoising model", debugStepHelp,
			`  gomflux debug step --max-wait 300`),
		newResumeCommand(protocol.Accept, "Go on with the reference's tensor", debugAcceptHelp, `  gomflux debug accept`),
		newAskCommand(protocol.Location, "Describe where the run is stopped", debugLocationHelp, `  gomflux debug location`, "",
			&stopPlace{}),
		newDebugVarsCommand(), newDebugEvalCommand(), newDebugSaveCommand(), newDebugSetCommand(), newDebugTraceCommand(),
		newDebugTutorialCommand(), newDebugMCPCommand())
	var names []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.UsageErrorf("unknown command %q (%s)", args[0], strings.Join(names, ", "))
		}
		return nil
	}
	cmd.RunE = func(*cobra.Command, []string) error {
		return cli.UsageErrorf("give a command: %s (gomflux debug --help)", strings.Join(names, ", "))
	}
	return cmd
}
