package models

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// TestMacTable checks that docs/macs.md has the table that models --mac prints.
func TestMacTable(t *testing.T) {
	list, err := fitMacs(t.Context(), []int{8, 16, 32, 64})
	if err != nil {
		t.Fatal(err)
	}
	var page ui.Page
	list.Text(&page)
	text, err := os.ReadFile("../../../../docs/macs.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(page.String()) {
		if !strings.Contains(string(text), "\n"+strings.TrimRight(line, " \n")+"\n") {
			t.Errorf("docs/macs.md lacks the line %q (gomflux models --mac 8,16,32,64 prints the table)", line)
		}
	}
	for _, gib := range []int{3, -1, 1025} {
		_, err := fitMacs(t.Context(), []int{gib})
		if coded, ok := errors.AsType[*cli.CodedError](err); !ok || coded.Code != cli.ExitUsage {
			t.Errorf("%d GB: error %v", gib, err)
		}
	}
}
