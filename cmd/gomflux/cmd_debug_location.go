package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugLocationHelp = `Location describes where the run is stopped: the tensor and its module's class;
step, call, prompt or negative prompt, sigma and timestep; the modules around
it; the line of Go (or of Python, for the reference) that computed it, with the
lines around it if the source file is at hand; and the tensors that passed
before.

With --json it prints one object: name, reason, breakpoint, hit, module, class,
step, call, negative, sigma, timestep, shape, dtype, differs, problem, location
(file, line, function), code_context (start_line, end_line, lines), around and
before.
` + sessionStatus

func newDebugLocationCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:     "location",
		Short:   "Describe where the run is stopped",
		Long:    debugLocationHelp,
		Example: `  gomflux debug location`,
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return call[stopPlace](cmd, &o, protocol.Location, nil)
		},
	}
	o.add(cmd)
	return cmd
}
