package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
)

func newRmCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm NAME[@REVISION]",
		Short: "Remove a model from the Hugging Face cache",
		Long: `Rm removes a published model from the Hugging Face cache, all of its revisions
and what is left of unfinished downloads, and says how much that was. NAME is a
short name, one of its aliases, or owner/name. Other programs that share the
cache will miss the model too.

With @REVISION, a branch, a tag or a commit that is in the cache, it removes
that revision only: what other revisions need stays. The branches and tags that
are at the same commit go with it. Where there is no other one, all goes.

It asks before it removes anything. Where there is no terminal to ask on, --yes
is the answer. Folders outside of the cache are never removed.
` + exitStatus,
		Example: `  gomflux rm z-image-turbo
  gomflux rm me/mine@v1`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, revision, _, err := publishedName(args[0])
			if err != nil {
				return err
			}
			r, err := hub.Removable(repo, revision)
			if err != nil {
				return coded(exitModel, err)
			}
			what := repo
			if r.Commit != "" {
				what += "@" + revision
				if others := slices.DeleteFunc(slices.Clone(r.Refs), func(ref string) bool { return ref == revision }); len(others) > 0 {
					what += fmt.Sprintf(" (which is %s too)", strings.Join(others, ", "))
				}
			}
			if !yes {
				ok, err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), fmt.Sprintf("%s, %s in %s", quote.Printable(what), units.Bytes(r.Bytes), quote.Printable(catalog.TildePath(r.Folder))))
				if err != nil || !ok {
					return err
				}
			}
			if err := r.Remove(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s, which frees %s\n", quote.Printable(what), units.Bytes(r.Bytes))
			return err
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
