package cli

import (
	"strings"

	"github.com/gomflux/gomflux/models/family"
)

// HelpOf returns a part of the families' help, of those that have it.
func HelpOf(part func(family.Help) string) (texts []string) {
	for _, f := range family.All {
		if text := part(f.Help); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// EditingHelp describes the images that the families edit, in paragraphs.
func EditingHelp() string {
	return strings.Join(HelpOf(func(h family.Help) string { return h.Editing }), "\n\n")
}

// Filled breaks a text into lines of up to 80 characters that begin with an indent.
func Filled(indent, text string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(indent)+len([]rune(line+" "+word)) > 80 {
			lines, line = append(lines, indent+line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return strings.Join(append(lines, indent+line), "\n")
}
