package main

import (
	"strings"
	"testing"
)

// TestTemplateFieldsInHelp keeps the help complete.
func TestTemplateFieldsInHelp(t *testing.T) {
	help := newGenerateCommand().Long
	for field := range templateFields {
		if !strings.Contains(help, "{"+field+"}") {
			t.Errorf("the help does not have {%s}", field)
		}
	}
}
