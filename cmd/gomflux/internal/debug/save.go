package debug

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/debugger/protocol"
	"github.com/gomflux/gomflux/parity/runs"
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
		Args: cli.Args(0, 1, "", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			var a protocol.SaveArguments
			if len(args) > 0 {
				if a.Name = args[0]; a.Name == "" {
					return cli.UsageErrorf("the name is empty")
				}
			}
			return call(cmd, &o, protocol.Save, a, &savedTensor{})
		},
	}
	o.add(cmd)
	return cmd
}

const debugSetHelp = `Set puts a tensor in the place of the output at which the run is stopped. The
run goes on with it. It is the one of a file (.safetensors, .npy or .npz; KEY is
its name in the file, if there are several), or a saved one by its name. Shape
and dtype must be those of the output; @dtype converts it.

Inputs cannot be set: stop after the module that computes the input, and set its
output.

With --json it prints one object: name and source.
` + sessionStatus

func newDebugSetCommand() *cobra.Command {
	var o sessionFlags
	cmd := &cobra.Command{
		Use:   "set FILE[:KEY][@dtype]|NAME",
		Short: "Replace the output of the stop",
		Long:  debugSetHelp,
		Example: `  gomflux debug set reference.npz:latents@bfloat16
  gomflux debug set before_fix`,
		Args:              cli.OneArg("a file of tensors, or the name of a saved one"),
		ValidArgsFunction: cli.CompleteFiles(cli.LatentsFiles...),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return cli.UsageErrorf("the name of the tensor is empty")
			}
			return call(cmd, &o, protocol.Set, protocol.SetArguments{Source: absoluteSource(args[0])}, &replacedTensor{})
		},
	}
	o.add(cmd)
	return cmd
}

// absoluteSource makes the name of a file absolute: the session's process may run in
// another folder. What is no source is left as it is, for the session's error.
func absoluteSource(source string) string {
	r, err := runs.ParseReplacement("output=" + source)
	if err != nil || r.From.File == "" {
		return source
	}
	path, err := filepath.Abs(r.From.File)
	rest, ok := strings.CutPrefix(source, r.From.File)
	if err != nil || !ok {
		return source
	}
	return path + rest
}
