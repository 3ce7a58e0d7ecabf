package nn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx/nn"
)

// A file can have any number of tensors that nobody expects.
func TestMismatchIsBounded(t *testing.T) {
	e := &nn.MismatchError{Name: "vae", Dir: "m/vae"}
	for i := range 100_000 {
		e.Unexpected = append(e.Unexpected, nn.Misfit{Name: fmt.Sprint("t", i), Why: " [1] in x"})
	}
	lines := strings.Split(e.Error(), "\n\t")
	if len(lines) != 202 || lines[200] != "unexpected: t199 [1] in x" || lines[201] != "unexpected: 99800 more" {
		t.Errorf("%d lines: %q", len(lines), lines[len(lines)-1])
	}
}
