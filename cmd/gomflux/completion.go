package main

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/scheduler"
)

// completionShells are the supported shells.
var completionShells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
}

const completionHelp = `Completion prints a completion script for bash, zsh or fish on standard output.
With it the Tab key completes commands, flags, models on this machine, and
files.

To try it in the current shell:

  bash   source <(gomflux completion bash)
  zsh    source <(gomflux completion zsh)
  fish   gomflux completion fish | source

To use it in every new shell, write it to the shell's folder:

  gomflux completion bash > ~/.local/share/bash-completion/completions/gomflux
  gomflux completion zsh > DIR/_gomflux
  gomflux completion fish > ~/.config/fish/completions/gomflux.fish

Bash needs the package bash-completion, on Macs from Homebrew. For zsh DIR is
one of $fpath, and ~/.zshrc must call compinit after setting it.
` + cli.ExitStatus

func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "completion SHELL",
		Short:   "Print a shell completion script",
		Long:    completionHelp,
		Example: "  gomflux completion bash > ~/.local/share/bash-completion/completions/gomflux",
		Args: func(_ *cobra.Command, args []string) error {
			shells := strings.Join(cli.SortedKeys(completionShells), ", ")
			switch {
			case len(args) == 0:
				return cli.UsageErrorf("give the shell: %s", shells)
			case completionShells[args[0]] == nil:
				return cli.UsageErrorf("no completion for %q (expected one of %s)", args[0], shells)
			case len(args) > 1:
				return cli.UsageErrorf("unexpected argument %q", args[1])
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return cli.SortedKeys(completionShells), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return completionShells[args[0]](cmd.Root(), cmd.OutOrStdout())
		},
	}
}

// flagCompletions complete the values of flags of any command.
var flagCompletions = map[string]cobra.CompletionFunc{
	"model":                     cli.CompleteModel,
	"base-model":                cli.CompleteModel,
	"refine-model":              cli.CompleteModel,
	"upscaler":                  cli.CompleteUpscaler,
	"random":                    completeRandom,
	"scheduler":                 cli.CompleteWords(scheduler.Names()...),
	"step-cache":                cli.CompleteWords("first-block:0.05", "first-block:0.1", "easy:0.02", "easy:0.05"),
	"rng":                       cli.CompleteWords(scheduler.RNGs...),
	"background":                cli.CompleteWords(models.Backgrounds...),
	"quantize":                  cli.CompleteWords(component.Quantizations...),
	"group-size":                cli.CompleteWords("32", "64", "128"),
	"layout":                    cli.CompleteWords(string(gomflux.DiffusersLayout), string(gomflux.MFluxLayout)),
	"path":                      cli.CompleteFolders,
	"lora":                      cli.CompleteFiles("safetensors"),
	"dtype":                     cli.CompleteWords("float32", "bfloat16", "float16"),
	"device":                    cli.CompleteWords("cpu", "gpu"),
	"backend":                   cli.CompleteWords("ring", "jaccl", "nccl"),
	"preview":                   cli.CompleteWords(cli.ProtocolNames()...),
	"preview-decoder":           completePreviewDecoder,
	"show":                      cli.CompleteWords(cli.ProtocolNames()...),
	"image":                     cli.CompleteFiles(cli.ImageFiles...),
	"mask":                      cli.CompleteFiles(cli.ImageFiles...),
	"config-from-metadata":      cli.CompleteFiles(cli.SettingsFiles...),
	"output":                    cli.CompleteFiles(cli.ImageFiles...),
	"stepwise-image-output-dir": cli.CompleteFolders,
	"log-dir":                   cli.CompleteFolders,
	"side":                      cli.CompleteWords("gomflux", "reference", "both"),
	"prompt-file":               nil, // any file
}

// completePreviewDecoder offers the two words, and files if neither has the prefix.
func completePreviewDecoder(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return cli.WithPrefix([]string{gomflux.LinearPreviews, gomflux.TinyPreviews}, prefix), cobra.ShellCompDirectiveDefault
}

// argCompletions complete the arguments of commands.
var argCompletions = map[string]cobra.CompletionFunc{
	"pull":      completePublished,
	"show":      cli.CompleteModel,
	"rm":        completeCached,
	"info":      cli.CompleteFiles(cli.SettingsFiles...),
	"roundtrip": cli.CompleteFiles(cli.ImageFiles...),
	"upscale":   cli.CompleteFiles(cli.ImageFiles...),
	"decode":    cli.CompleteFiles(cli.LatentsFiles...),
}

// registerCompletions registers completions for the flags and arguments of a command
// and its subcommands. Files are offered only for flags that take files.
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
			panic(err) // the command does not have the flag
		}
	})
	for _, sub := range cmd.Commands() {
		registerCompletions(sub)
	}
}

// completeTopics adds topics to the completions of the help command, which are only
// commands.
func completeTopics(root *cobra.Command) {
	help, _, err := root.Find([]string{"help"})
	if err != nil || help.ValidArgsFunction == nil {
		panic("cobra has no help command with completions")
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

// takesFile reports whether a flag's help names its value as a file or folder.
func takesFile(f *pflag.Flag) bool {
	value, _ := pflag.UnquoteUsage(f)
	return slices.Contains([]string{"file", "folder", "picture", "path"}, value)
}

// completePublished offers the published models.
func completePublished(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var found []string
	for _, p := range catalog.Presets {
		if len(args) == 0 {
			found = append(found, p.Name+"\t"+p.Repo)
		}
	}
	return cli.WithPrefix(found, prefix), cobra.ShellCompDirectiveNoFileComp
}

// completeRandom offers the published models, or folders if no name fits.
func completeRandom(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	found, directive := completePublished(cmd, nil, prefix)
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, directive
}

// completeCached offers the repositories in the Hugging Face cache.
func completeCached(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	repos, err := hub.List()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for _, r := range repos {
		found = append(found, r.Name)
	}
	return cli.WithPrefix(found, prefix), cobra.ShellCompDirectiveNoFileComp
}
