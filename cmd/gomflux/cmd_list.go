package main

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"
)

func newListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models that are on this machine",
		Long: `List is gomflux models without the models that are not here: the built-in ones,
and what there is in the Hugging Face cache and in folders of their names.

With --json it is one array of objects, as gomflux models has them.
` + exitStatus,
		Example: "  gomflux list",
		Args:    noArgs(" (gomflux show takes a name)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := listModels()
			list = slices.DeleteFunc(list, func(m listedModel) bool { return !m.Here })
			return cmp.Or(writeModels(cmd.OutOrStdout(), list, asJSON), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}
