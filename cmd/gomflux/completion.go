package main

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/termpic"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/scheduler"
)

// completionShells write a script for each shell that completion knows.
var completionShells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
}

func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write a script that completes gomflux's commands in a shell",
		Long: `Completion writes a script for bash, zsh or fish to standard output. With it the
Tab key completes commands, flags, models that are on this machine, and files of
the right kind.

To try it in the shell that you are in:

  bash   source <(gomflux completion bash)
  zsh    source <(gomflux completion zsh)
  fish   gomflux completion fish | source

To have it in every new shell, write it where the shell looks for it:

  gomflux completion bash > ~/.local/share/bash-completion/completions/gomflux
  gomflux completion zsh > DIR/_gomflux
  gomflux completion fish > ~/.config/fish/completions/gomflux.fish

Bash needs the package bash-completion, on Macs from Homebrew. For zsh DIR is
one of $fpath, and ~/.zshrc calls compinit after setting it.
` + exitStatus,
		Example: "  gomflux completion bash > ~/.local/share/bash-completion/completions/gomflux",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usageErrorf("give the shell: %s", strings.Join(slices.Sorted(maps.Keys(completionShells)), ", "))
			case completionShells[args[0]] == nil:
				return usageErrorf("no completion for %q (there is one for %s)", args[0], strings.Join(slices.Sorted(maps.Keys(completionShells)), ", "))
			case len(args) > 1:
				return usageErrorf("unexpected argument %q", args[1])
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return slices.Sorted(maps.Keys(completionShells)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return completionShells[args[0]](cmd.Root(), cmd.OutOrStdout())
		},
	}
}

// Names of files by what they hold.
var (
	pictureFiles  = []string{"png", "jpg", "jpeg", "webp"}
	writtenFiles  = []string{"png", "jpg", "jpeg"}
	settingsFiles = []string{"png", "jpg", "jpeg", "webp", "json"}
	latentsFiles  = []string{"safetensors", "npy", "npz"}
)

// flagCompletions complete the values of flags by the flag's name, whichever
// command has it.
var flagCompletions = map[string]cobra.CompletionFunc{
	"model":                     completeModel,
	"base-model":                completeModel,
	"scheduler":                 completeWords(scheduler.Names()...),
	"rng":                       completeWords(scheduler.RNGs...),
	"quantize":                  completeWords(component.Quantizations...),
	"group-size":                completeWords("32", "64", "128"),
	"layout":                    completeWords(string(gomflux.DiffusersLayout), string(gomflux.MFluxLayout)),
	"path":                      completeFolders,
	"lora":                      completeFiles("safetensors"),
	"dtype":                     completeWords("float32", "bfloat16", "float16"),
	"device":                    completeWords("cpu", "gpu"),
	"preview":                   completeWords(protocolNames()...),
	"show":                      completeWords(protocolNames()...),
	"image":                     completeFiles(pictureFiles...),
	"config-from-metadata":      completeFiles(settingsFiles...),
	"output":                    completeFiles(writtenFiles...),
	"stepwise-image-output-dir": completeFolders,
	"log-dir":                   completeFolders,
	"side":                      completeWords("gomflux", "reference", "both"),
	"prompt-file":               nil, // any file
}

// argCompletions complete what follows a command.
var argCompletions = map[string]cobra.CompletionFunc{
	"pull":      completePublished,
	"show":      completeModel,
	"rm":        completeCached,
	"info":      completeFiles(settingsFiles...),
	"roundtrip": completeFiles(pictureFiles...),
	"decode":    completeFiles(latentsFiles...),
}

// registerCompletions gives a command and those below it completions for the
// flags and arguments that they have. Where nothing can be known, files are
// offered only for flags that take one.
func registerCompletions(cmd *cobra.Command) {
	if !cmd.HasParent() {
		cmd.InitDefaultHelpCmd()
		completeTopics(cmd)
	}
	if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
		if f := argCompletions[cmd.Name()]; f != nil {
			cmd.ValidArgsFunction = f
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete, known := flagCompletions[f.Name]
		if !known && !takesFile(f) {
			complete = cobra.NoFileCompletions
		}
		if complete == nil || f.Value.Type() == "bool" {
			return
		}
		if _, registered := cmd.GetFlagCompletionFunc(f.Name); registered {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic(err) // a flag that the command has not
		}
	})
	for _, sub := range cmd.Commands() {
		registerCompletions(sub)
	}
}

// completeTopics adds topics to what the root's help command offers, which is
// commands only.
func completeTopics(root *cobra.Command) {
	help, _, err := root.Find([]string{"help"})
	if err != nil || help.ValidArgsFunction == nil {
		panic("cobra's help command is not as it was")
	}
	commands := help.ValidArgsFunction
	help.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		found, directive := commands(cmd, args, prefix)
		for _, c := range root.Commands() {
			if len(args) == 0 && c.IsAdditionalHelpTopicCommand() && strings.HasPrefix(c.Name(), prefix) {
				found = append(found, c.Name()+"\t"+c.Short)
			}
		}
		return found, directive
	}
}

// takesFile says whether a flag's help names its value so.
func takesFile(f *pflag.Flag) bool {
	value, _ := pflag.UnquoteUsage(f)
	return slices.Contains([]string{"file", "folder", "picture", "path"}, value)
}

func completeWords(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var found []string
		for _, w := range words {
			if strings.HasPrefix(w, strings.ToLower(prefix)) {
				found = append(found, w)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

func completeFiles(extensions ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(extensions, cobra.ShellCompDirectiveFilterFileExt)
}

func completeFolders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func protocolNames() (names []string) {
	for _, p := range termpic.Protocols {
		names = append(names, string(p))
	}
	return names
}

// completeModel offers the models that can be named and those in the Hugging
// Face cache and, where none of them is meant, folders.
func completeModel(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
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
	for _, repo := range cachedRepos() {
		offer(repo, "in the Hugging Face cache")
	}
	for _, dir := range modelFolders() {
		offer(dir, "a folder")
	}
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completePublished offers the models that are known by name.
func completePublished(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var found []string
	for _, p := range catalog.Presets {
		if len(args) == 0 && strings.HasPrefix(p.Name, prefix) {
			found = append(found, p.Name+"\t"+p.Repo)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeCached offers the repositories in the Hugging Face cache.
func completeCached(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	repos, err := hub.List()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for _, r := range repos {
		if strings.HasPrefix(r.Name, prefix) {
			found = append(found, r.Name)
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// cachedRepos are the repositories in the Hugging Face cache that hold a
// pipeline.
func cachedRepos() (names []string) {
	repos, err := hub.List()
	if err != nil {
		return nil // a shell can say nothing about it
	}
	for _, r := range repos {
		if r.Err == nil && isPipeline(r.Snapshot) {
			names = append(names, r.Name)
		}
	}
	return names
}

// modelFolders are the folders right here that hold a pipeline.
func modelFolders() (dirs []string) {
	paths, err := filepath.Glob("*/model_index.json")
	if err != nil {
		return nil
	}
	for _, path := range paths {
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

func isPipeline(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "model_index.json"))
	return err == nil
}
