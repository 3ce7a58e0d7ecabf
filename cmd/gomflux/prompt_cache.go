package main

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
	envPromptCache     = "GOMFLUX_PROMPT_CACHE"
	envPromptCacheSize = "GOMFLUX_PROMPT_CACHE_SIZE"
)

// promptCache returns the folder of the cache of prompt embeddings, "" if it is turned
// off, and the limit of its size.
func promptCache() (dir string, size int64, err error) {
	size = promptcache.DefaultSize
	if text := os.Getenv(envPromptCacheSize); text != "" {
		if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 {
			return "", 0, usageErrorf("%s=%s: expected a number of bytes", envPromptCacheSize, text)
		}
	}
	switch dir = os.Getenv(envPromptCache); {
	case dir == "0" || size == 0:
		return "", size, nil
	case dir != "":
		return dir, size, nil
	}
	if dir, err = gomflux.PromptCacheFolder(); err != nil {
		return "", size, fmt.Errorf("no folder for prompt embeddings: %w (set %s to a folder, or to 0 for no cache)", err, envPromptCache)
	}
	return dir, size, nil
}

// promptCacheFlags are the flags for the cache of prompt embeddings.
type promptCacheFlags struct {
	noPromptCache bool

	folder string // "" for no cache
	size   int64  // limit in bytes
}

func (o *promptCacheFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&o.noPromptCache, "no-prompt-cache", false,
		"encode all prompts, and keep no prompt embeddings on disk (gomflux help cache)")
}

// findFolder finds the folder. If the user has no folder for caches, there is a warning.
func (o *promptCacheFlags) findFolder(out *ui.Output) (err error) {
	if o.noPromptCache {
		return nil
	}
	o.folder, o.size, err = promptCache()
	if err != nil && exitCode(err) != exitUsage {
		out.Warn("prompt embeddings are not cached: %v", err)
		return nil
	}
	return err
}

// open sets the options for opening a model.
func (o *promptCacheFlags) open(to *gomflux.OpenOptions) {
	to.PromptCache, to.PromptCacheSize = o.folder, o.size
}
