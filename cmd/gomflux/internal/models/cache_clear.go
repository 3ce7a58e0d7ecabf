package models

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/promptcache"
)

const cacheClearHelp = `Clear removes all prompt embeddings that gomflux generate and gomflux edit have
kept on disk. It does not ask, because they can be computed again. Other files
in the folder stay, and so do models.

With --json it prints one object: files and bytes that were removed.
` + cli.ExitStatus

func newCacheClearCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:     "clear",
		Short:   "Remove all cached prompt embeddings",
		Long:    cacheClearHelp,
		Example: `  gomflux cache clear`,
		Args:    cli.NoArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, size, err := openPromptCache()
			if err != nil {
				return err
			}
			removed, err := promptcache.New(dir, size, nil).Clear()
			if err != nil {
				return err
			}
			out := o.Out(cmd)
			out.Note("%s removed, %s", ui.Plural(removed.Files, "file"), units.Bytes(removed.Bytes))
			return out.Result(clearedCache(removed))
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	return cmd
}

// A clearedCache is what cache clear prints.
type clearedCache struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Text implements ui.Result. For people there is a note instead.
func (clearedCache) Text(*ui.Page) {}
