package main

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/generate"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/models"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// TestTopicsAreComplete holds the texts against what the code has.
func TestTopicsAreComplete(t *testing.T) {
	if picture.SettingsVersion != 1 {
		t.Error("the topic metadata describes version 1 of the settings")
	}
	fields := reflect.TypeFor[picture.Settings]()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if !regexp.MustCompile(`(?m)^  ([a-z_, ]+, )?` + name + `\b`).MatchString(topicText("metadata")) {
			t.Errorf("the topic metadata does not have the field %s", name)
		}
	}
	for _, v := range []any{generate.JSONStart{}, generate.JSONProgress{}, generate.JSONPicture{}, generate.JSONSeconds{}, ui.Message{}} {
		fields := reflect.TypeOf(v)
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(topicText("json")) {
				t.Errorf("the topic json does not have %s of %s", name, fields.Name())
			}
		}
	}
	for _, name := range append([]string{mlx.EnvLibrary, "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}, models.DoctorVariables...) {
		if !strings.Contains(topicText("environment"), name) {
			t.Errorf("the topic environment does not have %s", name)
		}
	}
	text := schedulersTopic()
	for _, name := range scheduler.Names() {
		if !regexp.MustCompile(`(?m)^  ` + name + `\n      \S`).MatchString(text) {
			t.Errorf("the topic schedulers does not describe %s", name)
		}
	}
}

// TestHelpFits is for terminals of 80 columns, but for examples.
func TestHelpFits(t *testing.T) {
	root := newRootCommand()
	commands := []*cobra.Command{root}
	for i := 0; i < len(commands); i++ {
		cmd := commands[i]
		commands = append(commands, cmd.Commands()...)
		for line := range strings.Lines(cmd.Long + "\n" + cmd.LocalFlags().FlagUsagesWrapped(80)) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("the help of %s has a line of %d characters: %s", cmd.Name(), n, line)
			}
		}
		if text := cmd.UsageString(); cmd.Runnable() && !strings.Contains(text,
			strings.TrimRight(cmd.LocalFlags().FlagUsagesWrapped(80), " \n")) {
			t.Errorf("the flags of %s are not wrapped: %s", cmd.Name(), text)
		}
	}
}

// TestTopicsFit is for terminals of 80 columns.
func TestTopicsFit(t *testing.T) {
	for _, topic := range newTopics() {
		if !topic.IsAdditionalHelpTopicCommand() {
			t.Errorf("%s is not listed as a topic", topic.Name())
		}
		for line := range strings.Lines(topic.Long) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 || strings.Contains(line, "\t") {
				t.Errorf("%s has a line of %d characters, or a tab: %s", topic.Name(), n, line)
			}
		}
	}
}
