package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
)

// OutputFlags are the flags for what a command prints.
type OutputFlags struct{ JSON, Quiet, Verbose bool }

// AddJSON adds --json; what it prints is named, such as "a JSON object".
func (o *OutputFlags) AddJSON(f *pflag.FlagSet, what string) {
	f.BoolVar(&o.JSON, "json", false, "print "+what)
}

// AddQuiet adds --quiet, with a short form if there is one; except names what a
// quiet command still prints.
func (o *OutputFlags) AddQuiet(f *pflag.FlagSet, short, except string) {
	f.BoolVarP(&o.Quiet, "quiet", short, false, "print nothing but "+except)
}

// Out returns what the command writes to. With --json results are JSON, and
// messages text.
func (o *OutputFlags) Out(cmd *cobra.Command) *ui.Output {
	out := &ui.Output{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Quiet: o.Quiet, Verbose: o.Verbose}
	if o.JSON {
		out.Format = ui.JSON
	}
	mlx.OnKernelFailure = func(k mlx.KernelStatus) {
		out.Warn("the kernel %s is not used, which makes images slower: %v", k.Name, k.Err)
	}
	return out
}

// Lines returns the RunE of a command that writes JSON lines with --json: for messages and its error too.
func (o *OutputFlags) Lines(run func(cmd *cobra.Command, out *ui.Output, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		out := o.Out(cmd)
		if o.JSON {
			out.Format = ui.JSONLines
		}
		err := run(cmd, out, args)
		Failed(out, err)
		return err
	}
}

// FileFlags are the flags for the image file that a command writes.
type FileFlags struct {
	Output    string
	Overwrite bool
}

func (o *FileFlags) AddFile(f *pflag.FlagSet, name, usage string) {
	f.StringVarP(&o.Output, "output", "o", name, usage)
	f.BoolVar(&o.Overwrite, "overwrite", false, "replace existing files")
}
