package hooks_test

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/mlx/hooks"
)

func TestName(t *testing.T) {
	cases := map[string]hooks.Name{
		"latents":                     {Module: "latents", Step: -1},
		"vae.decoder.conv_in":         {Module: "vae.decoder.conv_in", Step: -1},
		"noise_pred@11":               {Module: "noise_pred", Step: 11},
		"text_encoder.layers.0#1":     {Module: "text_encoder.layers.0", Step: -1, Call: 1},
		"transformer@0#2:out.0.1":     {Module: "transformer", Call: 2, Point: hooks.Point{Key: "0.1"}},
		"transformer.layers.0@3:in.2": {Module: "transformer.layers.0", Step: 3, Point: hooks.Point{Kind: hooks.Input, Key: "2"}},
		"text_encoder:in.hidden_states": {Module: "text_encoder", Step: -1,
			Point: hooks.Point{Kind: hooks.Input, Key: "hidden_states"}},
		"transformer.attn@0:q.unrotated":    {Module: "transformer.attn", Point: hooks.Point{Kind: hooks.Inner, Key: "q.unrotated"}},
		"transformer.attn@0:weights":        {Module: "transformer.attn", Point: hooks.Point{Kind: hooks.Inner, Key: "weights"}},
		"transformer.all_x_embedder.2-1@12": {Module: "transformer.all_x_embedder.2-1", Step: 12},
	}
	for text, want := range cases {
		got, err := hooks.ParseName(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: found %+v (%s), %v, expected %+v", text, got, got, err, want)
		}
	}
	for _, bad := range []string{"", "@1", ":q", "a@", "a@-1", "a@01", "a@1#0", "a#x", "a@1:", "a:in", "a:in.", "a:p", "a#1@2",
		"a:in.0#1@"} {
		if n, err := hooks.ParseName(bad); err == nil && n.String() != bad {
			t.Errorf("%q was read as %+v", bad, n)
		} else if err == nil && bad != "a:in.0#1@" {
			t.Errorf("%q was read as %+v", bad, n)
		} else if err != nil && !strings.Contains(err.Error(), "expected COMPONENT") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if (hooks.Point{Kind: hooks.Inner, Key: "q"}).OnRequest() || !(hooks.Point{Kind: hooks.Inner, Key: "weights"}).OnRequest() {
		t.Error("the wrong points are on request")
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("transformer.layers.0@3#1:in.2.0")
	f.Add("a:q.unrotated")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := hooks.ParseName(s); err == nil && n.String() != s {
			t.Errorf("%q was read as %+v, which is %q", s, n, n)
		}
	})
}
