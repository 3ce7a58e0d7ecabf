package main

import (
	"context"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/hooks"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/weights"
)

// TestFLOPs counts the linear layers of a run as they are called, and
// attention from what it is given.
func TestFLOPs(t *testing.T) {
	const folder = "../../models/testdata/zimage-ordinary/model"
	ctx := context.Background()
	m, err := gomflux.Open(ctx, folder, &gomflux.OpenOptions{Device: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	want, layers := 0.0, 0
	none := 0.0
	const height, width = 48, 56
	res, err := m.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: height, Width: width, Steps: 1, Guidance: &none,
		Hook: func(tap hooks.Tap) (*mlx.Array, error) {
			name, ok := strings.CutPrefix(tap.Name, "transformer.")
			if !ok || len(tap.Inputs) == 0 {
				return nil, nil
			}
			in, out := tap.Inputs[0], tap.Output
			switch {
			case strings.HasSuffix(name, ".attention"):
				n := float64(out.Dim(1))
				want += 2 * 2 * n * n * float64(out.Dim(2))
			case linear(name):
				want += 2 * float64(in.Size()) * float64(out.Dim(-1))
				layers++
			}
			return nil, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	c := transformer.DefaultZImageConfig()
	fsys, err := weights.OpenFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := weights.ReadJSON(fsys, "transformer/config.json", &c); err != nil {
		t.Fatal(err)
	}
	got := zimageFLOPs(c, height/m.Multiple()*(width/m.Multiple()), res.TextTokens)
	if got != want || layers == 0 {
		t.Errorf("counted %.0f FLOPs, the %d layers that ran and attention did %.0f", got, layers, want)
	}
}

// linear tells the linear layers from the other modules, as modules.txt of the
// test data lists them.
func linear(name string) bool {
	for _, s := range []string{"attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w1", "feed_forward.w2",
		"feed_forward.w3", "all_x_embedder.2-1", "all_final_layer.2-1.linear", "all_final_layer.2-1.adaLN_modulation.1",
		"t_embedder.mlp.0", "t_embedder.mlp.2", "cap_embedder.1"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return strings.HasSuffix(name, "adaLN_modulation.0") && !strings.HasPrefix(name, "all_final_layer")
}
