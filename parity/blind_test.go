package parity

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// TestBlind finds the epsilon that a dump does not show, because its activations are large, and none that it shows.
func TestBlind(t *testing.T) {
	found, err := Blind(t.Context(), filepath.Join(testdata, "flux2-klein", "dump"), Options{Dtype: exact})
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v (%v)", found, err)
	}
	if n := found[0]; n.Config != "transformer/config.json" || n.Key != "eps" || n.Value != 1e-6 || math.Abs(n.Tried-1e-5) > 1e-12 ||
		!strings.Contains(n.Record, "smaller activations") {
		t.Errorf("%+v", n)
	}
	theta := number{file: "transformer/config.json", key: "rope_theta"}
	for name, want := range map[string]string{"transformer@0": "--taps 'transformer.*:[qk]'", "transformer.a@0:q": "more positions: "} {
		if got := theta.record([]string{name}); !strings.HasPrefix(got, want) {
			t.Errorf("with %s: %s, expected %s", name, got, want)
		}
	}
}
