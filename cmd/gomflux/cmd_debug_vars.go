package main

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/parity/debugger/protocol"
)

const debugVarsHelp = `Vars lists the tensors of the call after which the run is stopped: the output,
further outputs, inputs and inner values, each with dtype, shape, smallest and
largest value, mean, standard deviation, and the numbers of NaN and infinite
values. Their names are those of eval. Then it lists the parameters of the
module and of the modules inside it. --weights computes their statistics too,
which takes time for a module with billions.

With --json it prints one object: name; variables (name, point, shape, dtype,
stats, preview with the first values, value); and parameters (path, shape,
dtype, quantized, stats).
` + sessionStatus

func newDebugVarsCommand() *cobra.Command {
	var o sessionFlags
	weights := false
	cmd := &cobra.Command{
		Use:   "vars",
		Short: "List the tensors and parameters of the stop",
		Long:  debugVarsHelp,
		Example: `  gomflux debug vars
  gomflux debug vars --json | jq '.variables[] | {name, preview}'`,
		Args: noArgs(" (gomflux debug eval prints one)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return call[stopVariables](cmd, &o, protocol.Vars, protocol.VarsArguments{Weights: weights})
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&weights, "weights", false, "print statistics of the parameters too")
	return cmd
}
