package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugOutHelp = `Out lets the run go on until the module around the current one is done.
` + resumeHelp

func newDebugOutCommand() *cobra.Command {
	return newResumeCommand(protocol.Out, "Go on until the module around the stop is done", debugOutHelp, `  gomflux debug out`)
}
