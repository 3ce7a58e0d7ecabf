package models

import (
	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/promptcache"
)

const cacheHelp = `Cache shows the folder where gomflux generate, edit and inpaint keep prompt
embeddings, and its size. A prompt that was encoded before, with the same model
and settings, needs no text encoder then: it is neither loaded nor run, and the
image is the same. --no-prompt-cache runs without the folder.

Only you can read the folder. The names of its files are keyed hashes, and no
file contains a prompt, but prompt embeddings describe the prompt: who can read
them can learn about it. gomflux cache clear removes them.

The folder is gomflux/prompts in the user's cache folder (~/.cache, on a Mac
~/Library/Caches). GOMFLUX_PROMPT_CACHE sets another one, or with 0 none. Above
512 MB, or GOMFLUX_PROMPT_CACHE_SIZE bytes, embeddings that were used least
recently are removed. A damaged file is ignored and replaced.

With --json it prints one object: folder, files, bytes and limit_bytes. There is
a file for each prompt and text encoder.
` + cli.ExitStatus

func NewCacheCommand() *cobra.Command {
	var o cli.OutputFlags
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Show the cache of prompt embeddings",
		Long:  cacheHelp,
		Example: `  gomflux cache
  gomflux cache clear`,
		Args: cli.NoArgs(" (gomflux cache clear empties it)"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, size, err := openPromptCache()
			if err != nil {
				return err
			}
			usage, err := promptcache.New(dir, size, nil).Usage()
			if err != nil {
				return err
			}
			return o.Out(cmd).Result(cacheUsage{dir, usage.Files, usage.Bytes, size})
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	cmd.AddCommand(newCacheClearCommand())
	return cmd
}

// openPromptCache is promptCache for commands that are about the cache.
func openPromptCache() (dir string, size int64, err error) {
	dir, size, err = cli.PromptCache()
	if err == nil && dir == "" {
		err = cli.UsageErrorf("the cache of prompt embeddings is turned off by %s or %s", cli.EnvPromptCache, cli.EnvPromptCacheSize)
	}
	return dir, size, err
}

// A cacheUsage is what cache prints.
type cacheUsage struct {
	Folder string `json:"folder"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Limit  int64  `json:"limit_bytes"`
}

func (u cacheUsage) Text(p *ui.Page) {
	field := p.Fields(8)
	field("folder", "%s", quote.Printable(catalog.TildePath(u.Folder)))
	field("files", "%d", u.Files)
	field("size", "%s of at most %s", units.Bytes(u.Bytes), units.Bytes(u.Limit))
}

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
