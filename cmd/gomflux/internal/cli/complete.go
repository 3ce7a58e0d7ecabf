package cli

import (
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/index"
)

// Extensions of files by content.
var (
	ImageFiles    = []string{"png", "jpg", "jpeg", "webp"}
	SettingsFiles = []string{"png", "jpg", "jpeg", "webp", "json"}
	LatentsFiles  = []string{"safetensors", "npy", "npz"}
)

func CompleteWords(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return WithPrefix(words, strings.ToLower(prefix)), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// WithPrefix returns the words with a prefix.
func WithPrefix(words []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, prefix) })
}

func CompleteFiles(extensions ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(extensions, cobra.ShellCompDirectiveFilterFileExt)
}

// CompleteUpscaler offers networks for gomflux upscale, and files if no network fits.
func CompleteUpscaler(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found := WithPrefix(append(catalog.UpscalerNames(), gomflux.Lanczos), prefix)
	if len(found) == 0 {
		return []string{"safetensors"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func CompleteFolders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func ProtocolNames() (names []string) {
	for _, p := range termpic.Protocols {
		names = append(names, string(p))
	}
	return names
}

// CompleteModel offers known models and those in the Hugging Face cache and, if none of
// them fits, folders.
func CompleteModel(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var found []string
	offer := func(name, about string) {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name+"\t"+about)
		}
	}
	builtins := catalog.Builtins()
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		offer(name, "built in: "+builtins[name].About)
	}
	for _, p := range catalog.Presets {
		offer(p.Name, p.Repo)
		for _, alias := range p.Aliases {
			if prefix != "" { // or there would be too many
				offer(alias, p.Name)
			}
		}
	}
	repos, _ := hub.List() // a shell cannot show the error
	for _, r := range repos {
		if r.Err == nil && IsPipeline(r.Snapshot) {
			offer(r.Name, "in the Hugging Face cache")
		}
	}
	entries, _ := os.ReadDir(".")
	for _, e := range entries {
		if IsPipeline(e.Name()) {
			offer(e.Name(), "a folder")
		}
	}
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func IsPipeline(folder string) bool { return index.Exists(os.DirFS(folder)) }
