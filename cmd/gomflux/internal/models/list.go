package models

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
)

const listHelp = `List prints the models on this machine: built-in models, models in the Hugging
Face cache, and folders here that have the name of a published model. gomflux
models lists the models that can be downloaded too; its help explains the states
and the fields of --json.
` + cli.ExitStatus

func NewListCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the models on this machine",
		Long:    listHelp,
		Example: "  gomflux list",
		Args:    cli.NoArgs(" (gomflux show takes a name)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := cli.ListModels()
			list = slices.DeleteFunc(list, func(m cli.ListedModel) bool { return !m.Here })
			return cmp.Or(o.Out(cmd).Result(cli.ModelList(list)), err)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON array")
	return cmd
}
