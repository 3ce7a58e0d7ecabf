package models

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
)

const rmHelp = `Rm removes a published model from the Hugging Face cache: all revisions and
unfinished downloads. It prints how much space that frees. NAME is a short name,
an alias, or owner/name. Other programs that share the cache lose the model too.

With @REVISION (a branch, a tag or a commit in the cache) it removes only that
revision, with the branches and tags at the same commit; files that other
revisions need stay. If there is no other revision, everything is removed.

Rm asks before it removes anything. Without a terminal to ask on, --yes is
required. Folders outside of the cache are never removed.
` + cli.ExitStatus

func NewRmCommand() *cobra.Command {
	var ask cli.ConfirmFlags
	cmd := &cobra.Command{
		Use:   "rm NAME[@REVISION]",
		Short: "Remove a model from the Hugging Face cache",
		Long:  rmHelp,
		Example: `  gomflux rm z-image-turbo
  gomflux rm me/mine@v1`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return removeModel(cmd.Context(), cmd.InOrStdin(), (&cli.OutputFlags{}).Out(cmd), args[0], &ask)
		},
	}
	ask.AddYes(cmd, "y")
	return cmd
}

func removeModel(ctx context.Context, stdin io.Reader, out *ui.Output, name string, ask *cli.ConfirmFlags) error {
	repo, revision, _, err := publishedName(name)
	if err != nil {
		return err
	}
	r, err := hub.Removable(repo, revision)
	if err != nil {
		return cli.Coded(cli.ExitModel, err)
	}
	what := repo
	if r.Commit != "" {
		what += "@" + revision
		others := slices.DeleteFunc(slices.Clone(r.Refs), func(ref string) bool { return ref == revision })
		if len(others) > 0 {
			what += fmt.Sprintf(" (the same commit as %s)", strings.Join(others, ", "))
		}
	}
	question := fmt.Sprintf("%s, %s in %s", quote.Printable(what), units.Bytes(r.Bytes), quote.Printable(catalog.TildePath(r.Folder)))
	if ok, err := ask.Confirm(ctx, stdin, out, "remove", question); err != nil || !ok {
		return err
	}
	if err := r.Remove(); err != nil {
		return err
	}
	return out.Line(fmt.Sprintf("removed %s, which frees %s", quote.Printable(what), units.Bytes(r.Bytes)))
}
