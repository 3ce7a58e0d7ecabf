package debug

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
)

const debugContinueHelp = `Continue lets the run go on until the next breakpoint or its end, and prints
where it stopped. At the beginning it lets the model be loaded. While the run is
running, continue only waits. If the session has ended, it prints how.

It waits at most --max-wait seconds; then the exit code is 124 and the run goes
on. Ctrl-C ends the waiting only, too.
` + resumeJSON

func newDebugContinueCommand() *cobra.Command {
	o := newResumeFlags()
	until := ""
	cmd := &cobra.Command{
		Use:   "continue",
		Short: "Go on until a breakpoint or the end",
		Long:  debugContinueHelp,
		Example: `  gomflux debug continue
  gomflux debug continue --until transformer.layers.5 --max-wait 600`,
		Args: cli.NoArgs(" (--until names a tensor)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := o.choose()
			if err != nil {
				return err
			}
			if s.Ended() {
				return printProgress(o.Out(cmd), s)
			}
			return o.resume(cmd, protocol.Continue, until)
		},
	}
	o.add(cmd)
	cmd.Flags().StringVar(&until, "until", "", "stop after a tensor whose name matches a `glob`, too")
	return cmd
}

const debugNextHelp = `Next lets the run go on until the next tensor passes. Modules inside a module
pass before it, so next walks into every module that the run calls.
` + resumeHelp

const debugOutHelp = `Out lets the run go on until the module around the current one is done.
` + resumeHelp

const debugStepHelp = `Step lets the run go on until the first tensor of the next evaluation of the
denoising model.
` + resumeHelp

const debugAcceptHelp = `Accept is continue, in a replay (parity run): the run goes on with the
reference's tensor in the place of the one at which it is stopped. So break
--differs and accept walk through all wrong modules of a model.
` + resumeHelp
