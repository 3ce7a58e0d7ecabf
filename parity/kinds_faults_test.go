package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/report"
)

// TestFaultsAtOnce plants faults of three kinds, the first of them in every layer and more often
// than tensors are searched for hints. Each kind gets its hint.
func TestFaultsAtOnce(t *testing.T) {
	faults := []func(*replay, hooks.Tap) *mlx.Array{
		on("transformer.t_embedder.mlp.1@0", func(_ *replay, tap hooks.Tap) *mlx.Array { return gelu(tap.Inputs[0].Array) }),
		onto("vae.decode.in", func(x *mlx.Array) *mlx.Array { return x.Times(2) }),
	}
	for _, list := range []string{"noise_refiner.0", "noise_refiner.1", "layers.0", "layers.1", "layers.2"} {
		for _, norm := range []string{"attention_norm1", "ffn_norm1"} {
			faults = append(faults, onto(fmt.Sprintf("transformer.%s.%s@0", list, norm), throughHalf))
		}
	}
	r, err := Replay(context.Background(), ordinary,
		Options{Dtype: exact, Readings: []string{report.Isolated}, quick: true, bug: either(faults...)})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Verdict
	if v.Module != "transformer.t_embedder.mlp.1@0" || !hinted(v.Hints, "activation") {
		t.Errorf("verdict %+v", v)
	}
	modules := 0
	for _, k := range v.Kinds {
		modules += k.Count
		want := "lost upcast"
		if k.Modules == "vae.decode.in" {
			want = "ratio"
		}
		if !hinted(k.Hints, want) {
			t.Errorf("%+v: expected a hint %q", k, want)
		}
	}
	if modules != len(v.Others) || len(v.Kinds) < 3 || len(v.Others) < 7 {
		t.Errorf("%d modules of %d kinds, %d others", modules, len(v.Kinds), len(v.Others))
	}
	var text, page bytes.Buffer
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	mlxtest.Contains(t, text.String(),
		"  also: transformer.noise_refiner.0.attention_norm1@0 differs by itself\n    hint: all of our values",
		"  also: transformer.layers.{0-1}.attention_norm1@0 (2 modules) differ by themselves\n  also", // not again
		"  also: vae.decode.in differs by itself\n    hint: ours is 2 times the reference everywhere\n")
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, page.String(), "<br>Also: vae.decode.in differs by itself<br>Hint: ours is 2 times")
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	mlxtest.Contains(t, string(data), `"others":["transformer.`, `"kinds":[{"modules":"transformer.`, `"count":`)
	if !strings.Contains(string(data), `"transformer.layers.1.attention_norm1@0"`) {
		t.Error("the JSON does not list every module")
	}
}

func hinted(found []report.Hint, key string) bool {
	return slices.ContainsFunc(found, func(h report.Hint) bool { return h.Key == key })
}
