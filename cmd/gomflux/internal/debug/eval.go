package debug

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/internal/textfile"
)

const debugEvalHelp = `Eval evaluates an expression, or the lines of a program from standard input
(with -), at the stop, and prints the value of its last expression. The language
is Starlark, which has the syntax of Python, without files, network and clock.
What is defined stays for the session.

NAMES
  out                    the output of the call
  outs["1"]              a further output
  inp["0"]               an input
  inner["q"]             an inner value
  w["to_q.weight"]       a parameter of the module
  want                   in a replay (parity run): the reference's tensor
  step, call, negative, sigma, timestep, hit
  load("NAME")           what either side has saved
  keep("x", t)           keeps a tensor under a name for later stops
  compare(a, b)          compares two tensors as parity run does

TENSORS
  shape, dtype, arithmetic, comparison, indexing, slice(axis, a, b), min(),
  max(), mean(), std(), abs(), sum(), reshape(...), transpose(...), first(n)

An expression ends with an error after 10 million steps, 5 seconds, or at a
tensor of 1 GB.
The run is not changed by it.

With --json it prints one object: text (the value as Python prints it), value
(the value as JSON), and output (lines that were printed).
` + sessionStatus

// MaxProgram limits the size of a program from standard input, in bytes.
const MaxProgram = 1 << 19

func newDebugEvalCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:   "eval EXPR|-",
		Short: "Evaluate an expression at the stop",
		Long:  debugEvalHelp,
		Example: `  gomflux debug eval out.shape
  gomflux debug eval '(out.mean(), out.std())'
  gomflux debug eval 'compare(out, load("latents@0"))'
  gomflux debug eval - < inspect.star`,
		Args: cli.OneArg("an expression, or - for standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := programOf(args[0], cmd.InOrStdin())
			if err != nil {
				return cli.Coded(cli.ExitUsage, err)
			}
			return call(cmd, &o, protocol.Eval, protocol.EvalArguments{Source: source}, &evaluated{})
		},
	}
	o.add(cmd)
	return cmd
}

// programOf returns an expression, or what is read for "-".
func programOf(arg string, stdin io.Reader) (string, error) {
	if arg == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, MaxProgram+1))
		if err == nil {
			text, err = textfile.Decode(text)
		}
		if err != nil {
			return "", fmt.Errorf("standard input: %w", err)
		}
		arg = string(text)
	}
	if len(arg) > MaxProgram {
		return "", fmt.Errorf("the program is too long: expected at most %d bytes", MaxProgram)
	}
	if strings.TrimSpace(arg) == "" {
		return "", fmt.Errorf("the expression is empty")
	}
	return arg, nil
}
