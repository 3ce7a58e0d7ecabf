package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugSaveHelp = `Save saves the output at which the run is stopped, as --debug-save does, under
its own name or another one. gomflux tensors and the reference's scripts find it
under that name, and so do load("NAME") in eval and debug set NAME.

With --json it prints one object: name and file.
` + sessionStatus

func newDebugSaveCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:   "save [NAME]",
		Short: "Save the output of the stop",
		Long:  debugSaveHelp,
		Example: `  gomflux debug save
  gomflux debug save before_fix`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var a protocol.SaveArguments
			switch {
			case len(args) > 1:
				return usageErrorf("unexpected argument %q", args[1])
			case len(args) > 0 && args[0] == "":
				return usageErrorf("the name is empty")
			case len(args) > 0:
				a.Name = args[0]
			}
			return call[savedTensor](cmd, &o, protocol.Save, a)
		},
	}
	o.add(cmd)
	return cmd
}
