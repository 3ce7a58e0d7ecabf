package cli

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

func TestConfirmNeedsTerminal(t *testing.T) {
	ok, err := (&ConfirmFlags{}).Confirm(t.Context(), strings.NewReader("y\n"), &ui.Output{}, "remove", "it")
	if ok || ExitCode(err) != ExitUsage || err.Error() != "this removes it: give --yes" {
		t.Errorf("%v, %v, expected an error of usage", ok, err)
	}
}
