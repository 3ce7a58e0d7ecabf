package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugNextHelp = `Next lets the run go on until the next tensor passes. Modules inside a module
pass before it, so next walks into every module that the run calls.
` + resumeHelp

func newDebugNextCommand() *cobra.Command {
	return newResumeCommand(protocol.Next, "Go on until the next tensor", debugNextHelp, `  gomflux debug next`)
}
