package main

import (
	"context"
	"image"
	"strings"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TestFLOPs counts the linear layers of a step as they are called, and attention
// from what it is given.
func TestFLOPs(t *testing.T) {
	for _, c := range []struct {
		folder   string
		guidance float64
		images   int
	}{
		{"zimage-ordinary", 0, 0},
		{"zimage-ordinary", 3, 0},
		{"flux1-schnell-ordinary", 0, 0},
		{"flux1-dev-small", 3.5, 0},
		{"flux2-klein", 1, 0},
		{"flux2-klein-base", 4, 0},
		{"flux2-klein", 1, 2},
		{"qwen-image-ordinary", 1, 0},
		{"qwen-image-ordinary", 4, 0},
		{"qwen-edit", 4, 1},
		{"qwen-edit-plus", 1, 2}, // with zero_cond_t
	} {
		t.Run(c.folder, func(t *testing.T) {
			folder := "../../models/testdata/" + c.folder + "/model"
			fsys, err := checkpoint.OpenFolder(folder)
			if err != nil {
				t.Fatal(err)
			}
			checkpoint, err := checkpoint.OpenCheckpoint(fsys, "transformer")
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			m, err := gomflux.Open(ctx, folder, &gomflux.OpenOptions{Device: "cpu"})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			o := gomflux.Options{Prompt: "a red circle", NegativePrompt: "a red circle", Height: 48, Width: 64, Steps: 1, Guidance: &c.guidance}
			for range c.images {
				o.References = append(o.References, image.NewRGBA(image.Rect(0, 0, 70, 80)))
			}
			r := &report{Class: m.Class(), Height: o.Height, Width: o.Width, Guidance: c.guidance, Images: c.images}
			r.Image = r.Height / m.Multiple() * (r.Width / m.Multiple())
			if c.images > 0 {
				if r.Image, err = imageTokens(ctx, m, o); err != nil {
					t.Fatal(err)
				}
			}

			want, layers := 0.0, 0
			headDim := 0
			o.Hook = func(tap hooks.Tap) (*mlx.Array, error) {
				name, ok := strings.CutPrefix(tap.Name, "transformer.")
				out := tap.Output
				switch {
				case !ok:
				case tap.Point == hooks.Point{Kind: hooks.Inner, Key: hooks.Q}:
					headDim = out.Dim(-1)
				case tap.Point == hooks.Point{Kind: hooks.Inner, Key: hooks.Weights}:
					want += 2 * 2 * float64(out.Size()) * float64(headDim)
				case tap.Point == hooks.Point{} && len(checkpoint.Tensors[name+".weight"].Shape) == 2:
					want += 2 * float64(tap.Inputs[0].Size()) * float64(out.Dim(-1))
					layers++
				}
				return nil, nil
			}
			res, err := m.Generate(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			r.Tokens = res.TextTokens
			got, err := stepFLOPs(fsys, r)
			if err != nil {
				t.Fatal(err)
			}
			if got != want || layers == 0 {
				t.Errorf("counted %.0f FLOPs, the %d layers that ran and attention did %.0f", got, layers, want)
			}
		})
	}
}
