package generate

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
)

// A fullWriter takes no more than some bytes.
type fullWriter struct{ left int }

var errFull = errors.New("full")

func (w *fullWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, errFull
	}
	w.left -= len(p)
	return len(p), nil
}

// TestUnreported checks that output that cannot be written is an error after an
// image is saved, not before.
func TestUnreported(t *testing.T) {
	var stderr strings.Builder
	out := &ui.Output{Stdout: &fullWriter{100}, Stderr: &stderr, Format: ui.JSONLines}
	r := &report{out: out}
	for range 10 {
		r.start([]uint64{7}, 0, 1, "")
	}
	if err := unreported(out, "x.png"); !errors.Is(err, errFull) || !strings.HasPrefix(err.Error(), "x.png is saved, but ") {
		t.Error(err)
	}
	if stderr.Len() > 0 {
		t.Errorf("on standard error: %q", stderr.String())
	}
}
