package debug

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
)

const debugLocationHelp = `Location describes where the run is stopped: the tensor and its module's class;
step, call, prompt or negative prompt, sigma and timestep; the modules around
it; the line of Go (or of Python, for the reference) that computed it, with the
lines around it; and the tensors that passed before. The source of the networks
is in the program, that of other code is read from its folder, or from Go's
module cache.

With --json it prints one object: name, reason, breakpoint, hit, module, class,
step, call, negative, sigma, timestep, shape, dtype, differs, problem, location
(file, line, function), code_context (start_line, end_line, lines), around and
before.
` + sessionStatus

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
		Args: cli.NoArgs(" (gomflux debug eval prints one)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return call(cmd, &o, protocol.Vars, protocol.VarsArguments{Weights: weights}, &stopVariables{})
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&weights, "weights", false, "print statistics of the parameters too")
	return cmd
}
