package stepcache_test

import (
	"testing"

	"github.com/gomflux/gomflux/models/stepcache"
)

func TestParseRule(t *testing.T) {
	for text, want := range map[string]stepcache.Rule{
		"first-block:0.1":  {Name: stepcache.FirstBlock, Threshold: 0.1},
		"first-block:1e-9": {Name: stepcache.FirstBlock, Threshold: 1e-9},
		"first-block:.5":   {Name: stepcache.FirstBlock, Threshold: 0.5},
		"easy:0.05":        {Name: stepcache.Easy, Threshold: 0.05},
	} {
		if got, err := stepcache.ParseRule(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", ":", "first-block", "first-block:", "first-block:0", "first-block:1", "first-block:-0.1", "first-block:NaN",
		"first-block:inf", "first-block:0.1:0.2", "first-block:0,1", "first-block: 0.1", "First-Block:0.1", "second-block:0.1", "0.1",
	} {
		if got, err := stepcache.ParseRule(text); err == nil {
			t.Errorf("%q is accepted as %v", text, got)
		}
	}
}

// FuzzParseRule checks that an accepted rule is read again from its own form.
func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"first-block:0.1", "first-block:0x1p-3", "first-block:1e-400", "x:0.1", "first-block:", ":0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := stepcache.ParseRule(s)
		if err != nil {
			return
		}
		if again, err := stepcache.ParseRule(r.String()); err != nil || again != r || !(r.Threshold > 0 && r.Threshold < 1) {
			t.Errorf("%q is %v, written as %s: %v, %v", s, r, r, again, err)
		}
	})
}
