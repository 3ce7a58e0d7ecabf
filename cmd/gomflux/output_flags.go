package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// outputFlags are the flags for what a command prints.
type outputFlags struct{ json, quiet, verbose bool }

// addJSON adds --json; what it prints is named, such as "a JSON object".
func (o *outputFlags) addJSON(f *pflag.FlagSet, what string) {
	f.BoolVar(&o.json, "json", false, "print "+what)
}

// addQuiet adds --quiet, with a short form if there is one; except names what a
// quiet command still prints.
func (o *outputFlags) addQuiet(f *pflag.FlagSet, short, except string) {
	f.BoolVarP(&o.quiet, "quiet", short, false, "print nothing but "+except)
}

// out returns what the command writes to. With --json results are JSON, and
// messages text.
func (o *outputFlags) out(cmd *cobra.Command) *ui.Output {
	out := &ui.Output{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), Quiet: o.quiet, Verbose: o.verbose}
	if o.json {
		out.Format = ui.JSON
	}
	warnOfKernels(out)
	return out
}

// outLines is out with --json for messages too, as JSON lines.
func (o *outputFlags) outLines(cmd *cobra.Command) *ui.Output {
	out := o.out(cmd)
	if o.json {
		out.Format = ui.JSONLines
	}
	return out
}

// fileFlags are the flags for the image file that a command writes.
type fileFlags struct {
	output    string
	overwrite bool
}

func (o *fileFlags) addFile(f *pflag.FlagSet, name, usage string) {
	f.StringVarP(&o.output, "output", "o", name, usage)
	f.BoolVar(&o.overwrite, "overwrite", false, "replace existing files")
}
