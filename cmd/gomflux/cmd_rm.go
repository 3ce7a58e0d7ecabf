package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/hub"
	"github.com/gomflux/gomflux/models"
)

func newRmCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a model from the Hugging Face cache",
		Long: `Rm removes a published model from the Hugging Face cache, all of its revisions
and what is left of unfinished downloads, and says how much that was. NAME is a
short name, one of its aliases, or owner/name. Other programs that share the
cache will miss the model too.

It asks before it removes anything. Where there is no terminal to ask on, --yes
is the answer. Folders outside of the cache are never removed.
` + exitStatus,
		Example: "  gomflux rm z-image-turbo",
		Args:    oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, revision, _, err := publishedName(args[0])
			if err != nil {
				return err
			}
			if revision != "" {
				return usageErrorf("all revisions of a model are removed together: give it as %s", repo)
			}
			folder, size, err := hub.Stored(repo)
			if err != nil {
				return coded(exitModel, err)
			}
			if !yes {
				ok, err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), fmt.Sprintf("%s, %s in %s", repo, bytes(size), printable(models.TildePath(folder))))
				if err != nil || !ok {
					return err
				}
			}
			freed, err := hub.Remove(repo)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s, which frees %s\n", repo, bytes(freed))
			return err
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
