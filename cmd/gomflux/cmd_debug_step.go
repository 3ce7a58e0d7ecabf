package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugStepHelp = `Step lets the run go on until the first tensor of the next evaluation of the
denoising model.
` + resumeHelp

func newDebugStepCommand() *cobra.Command {
	return newResumeCommand(protocol.Step, "Go on until the next evaluation of the denoising model", debugStepHelp,
		`  gomflux debug step --max-wait 300`)
}
