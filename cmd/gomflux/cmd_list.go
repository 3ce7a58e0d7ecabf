package main

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"
)

const listHelp = `List prints the models on this machine: built-in models, models in the Hugging
Face cache, and folders here that have the name of a published model. gomflux
models lists the models that can be downloaded too; its help explains the states
and the fields of --json.
` + exitStatus

func newListCommand() *cobra.Command {
	var o outputFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the models on this machine",
		Long:    listHelp,
		Example: "  gomflux list",
		Args:    noArgs(" (gomflux show takes a name)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := listModels()
			list = slices.DeleteFunc(list, func(m listedModel) bool { return !m.Here })
			return cmp.Or(o.out(cmd).Result(modelList(list)), err)
		},
	}
	o.addJSON(cmd.Flags(), "a JSON array")
	return cmd
}
