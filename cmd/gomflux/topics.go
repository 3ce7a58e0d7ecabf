package main

import (
	"embed"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/scheduler"
)

// topics has the texts of the topics. Words in capitals in some of them are replaced.
//
//go:embed topics/*.txt
var topics embed.FS

// topicText returns the text of a topic.
func topicText(name string) string {
	text, err := topics.ReadFile("topics/" + name + ".txt")
	if err != nil {
		panic(err) // of a name in this file
	}
	return string(text)
}

// newTopics returns the topics of gomflux help TOPIC. For cobra they are commands
// that cannot be run.
func newTopics() []*cobra.Command {
	commands := []*cobra.Command{
		{Use: "environment", Short: "Environment variables", Long: topicText("environment")},
		{Use: "exit-codes", Short: "Exit codes", Long: exitCodesTopic()},
		{Use: "images", Aliases: []string{"pictures"}, Short: "Image-to-image, inpainting and editing", Long: imagesTopic()},
		{Use: "json", Short: "JSON output of generate, edit and inpaint", Long: topicText("json")},
		{Use: "metadata", Short: "Settings stored in images", Long: topicText("metadata")},
		{Use: "model", Short: "Values of --model, and where models are found", Long: modelTopic()},
		{Use: "schedulers", Short: "Values of --scheduler", Long: schedulersTopic()},
		{Use: "weights", Short: "Quantization and LoRAs", Long: topicText("weights")},
	}
	for _, t := range commands {
		t.Long = strings.TrimSuffix(t.Long, "\n")
		t.DisableFlagsInUseLine = true
		t.SetUsageTemplate("") // there is nothing to run
	}
	return commands
}

// checkTopics refuses gomflux help with an unknown name, which cobra answers with the
// root's help and exit code 0.
func checkTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		panic("cobra has no help command")
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		if _, _, err := root.Find(args); err != nil {
			return cli.UsageErrorf("no help for %q (gomflux --help lists commands and topics)", strings.Join(args, " "))
		}
		return nil
	}
}

func exitCodesTopic() string {
	return strings.Replace(topicText("exit-codes"), "EXIT STATUS", strings.TrimSuffix(cli.ExitStatus, "\n"), 1)
}

func modelTopic() string {
	var builtins, published []string
	known := catalog.Builtins()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		builtins = append(builtins, "      "+name+": "+known[name].About)
	}
	for _, p := range catalog.Presets {
		published = append(published, "      "+p.Name+": "+p.Repo)
	}
	return strings.NewReplacer(
		"BUILTINS", strings.Join(builtins, "\n"),
		"PUBLISHED", strings.Join(published, "\n"),
		"EXAMPLE", catalog.Presets[0].Name,
		"DEFAULT", cli.DefaultModel,
		"EDIT", cli.DefaultEditModel,
		"CLASSES", "  "+strings.Join(family.Classes(), "\n  "),
	).Replace(topicText("model"))
}

func imagesTopic() string {
	families := "The families that edit are " + family.Editors() + ". $1 is the first image (in single quotes, since shells " +
		"have their own $1); it is replaced by the model's own term, such as image 1. Each image costs time and memory; " +
		"two or three are usual."
	return topicText("images") + "\n" + cli.Filled("", families) + "\n\n" + cli.EditingHelp()
}

// shifted returns the published models whose config shifts sigmas by the image's
// size, or those with a constant shift.
func shifted(bySize bool) string {
	var names []string
	for _, m := range catalog.Presets {
		if dynamic, _ := m.Scheduler["use_dynamic_shifting"].(bool); dynamic == bySize {
			names = append(names, m.Name)
		}
	}
	return family.And(names)
}

func schedulersTopic() string {
	about := map[gomflux.Scheduler]string{
		gomflux.Euler: "Euler's method over sigmas that are shifted as the model's config says, by a constant or by the image's size. " +
			"All families here were trained for it. Short name: euler",
		gomflux.Heun: "Heun's method, of second order. N steps evaluate the model 2N-1 times. Only for models whose config shifts " +
			"sigmas by a constant, such as " + shifted(false) + ". Models that shift them by the image's size " +
			"(use_dynamic_shifting), such as " + shifted(true) + ", refuse it. Short name: heun",
		gomflux.Linear: "Euler's method over sigmas that are always shifted by the image's size: mflux's scheduler of that name. " +
			"For models that shift by size anyway it is the same as euler",
	}
	var b strings.Builder
	b.WriteString("--scheduler takes one of these names, which are those of diffusers' classes in\n" +
		"snake case, or the name of the class. The default is the model's scheduler.\n")
	for _, name := range scheduler.Names() {
		b.WriteString("\n  " + name + "\n" + cli.Filled("      ", about[gomflux.Scheduler(name)]) + "\n")
	}
	return b.String()
}
