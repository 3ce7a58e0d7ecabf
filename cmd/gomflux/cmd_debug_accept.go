package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugAcceptHelp = `Accept is continue, in a replay (parity run): the run goes on with the
reference's tensor in the place of the one at which it is stopped. So break
--differs and accept walk through all wrong modules of a model.
` + resumeHelp

func newDebugAcceptCommand() *cobra.Command {
	return newResumeCommand(protocol.Accept, "Go on with the reference's tensor", debugAcceptHelp, `  gomflux debug accept`)
}
