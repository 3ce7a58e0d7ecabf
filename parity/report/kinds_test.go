package report

import (
	"slices"
	"testing"
)

func TestKinds(t *testing.T) {
	modules := []string{
		"transformer.layers.0.attention@0", "transformer.layers.1.attention@0", "transformer.layers.0.attention.to_q@0",
		"transformer.layers.2.attention@1", "vae.decoder", "transformer.layers.7.attention@0",
		"x.99999999999999999999", "x.99999999999999999998", "transformer.layers.0.norm1@0", "transformer.layers.0.norm2@0",
		"transformer@0", "transformer@1", "transformer@1#1",
	}
	got := Kinds(modules, func(m string) string { return m })
	var names []string
	for _, k := range got {
		names = append(names, k.Name)
	}
	want := []string{"transformer.layers.{0-2,7}.attention@{0-1}", "transformer.layers.0.attention.to_q@0", "vae.decoder",
		"x.99999999999999999999", "transformer.layers.0.norm1@0", "transformer.layers.0.norm2@0", "transformer@{0-1}", "transformer@1#1"}
	if !slices.Equal(names, want) {
		t.Errorf("kinds %q, expected %q", names, want)
	}
	if n := len(got[0].Modules); n != 4 {
		t.Errorf("%d modules of the first kind, expected 4", n)
	}
}
