package cli

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/models/promptcache"
)

// Environment variables of the cache of prompt embeddings: its folder, or 0 for no
// cache, and the limit of its size in bytes.
const (
	EnvPromptCache     = "GOMFLUX_PROMPT_CACHE"
	EnvPromptCacheSize = "GOMFLUX_PROMPT_CACHE_SIZE"
)

// PromptCache returns the folder of the cache of prompt embeddings, "" if it is turned
// off, and the limit of its size.
func PromptCache() (dir string, size int64, err error) {
	size = promptcache.DefaultSize
	if text := os.Getenv(EnvPromptCacheSize); text != "" {
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 {
			return "", 0, UsageErrorf("%s=%s: expected a number of bytes", EnvPromptCacheSize, text)
		}
	}
	switch dir = os.Getenv(EnvPromptCache); {
	case dir == "0" || size == 0:
		return "", size, nil
	case dir != "":
		return dir, size, nil
	}
	if dir, err = gomflux.PromptCacheFolder(); err != nil {
		return "", size, fmt.Errorf("no folder for prompt embeddings: %w (set %s to a folder, or to 0 for no cache)", err, EnvPromptCache)
	}
	return dir, size, nil
}

// PromptCacheFlags are the flags for the cache of prompt embeddings.
type PromptCacheFlags struct {
	noPromptCache bool

	folder string // "" for no cache
	size   int64  // limit in bytes
}

func (o *PromptCacheFlags) Add(f *pflag.FlagSet) {
	f.BoolVar(&o.noPromptCache, "no-prompt-cache", false,
		"encode all prompts, and keep no prompt embeddings on disk (gomflux help cache)")
}

// FindFolder finds the folder. If the user has no folder for caches, there is a warning.
func (o *PromptCacheFlags) FindFolder(out *ui.Output) (err error) {
	if o.noPromptCache {
		return nil
	}
	o.folder, o.size, err = PromptCache()
	if err != nil && ExitCode(err) != ExitUsage {
		out.Warn("prompt embeddings are not cached: %v", err)
		return nil
	}
	return err
}

// Open sets the options for opening a model.
func (o *PromptCacheFlags) Open(to *gomflux.OpenOptions) {
	to.PromptCache, to.PromptCacheSize = o.folder, o.size
}
