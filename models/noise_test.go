package models_test

import (
	"context"
	"os"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
)

// TestTorchNoise makes the references' pictures from their prompts and seeds
// alone.
func TestTorchNoise(t *testing.T) {
	for _, golden := range []string{"zimage-ordinary", "zimage-small"} {
		t.Run(golden, func(t *testing.T) {
			err := mlx.Do(context.Background(), func() error {
				p, err := models.Load(os.DirFS("testdata/"+golden+"/model"), models.LoadOptions{})
				if err != nil {
					return err
				}
				defer p.Close()
				ref, err := parity.OpenRun(os.DirFS("testdata/" + golden + "/dump"))
				if err != nil {
					return err
				}
				r := models.Request{
					Prompt: ref.Prompt, Height: ref.Height, Width: ref.Width, Steps: ref.Steps, Guidance: ref.Guidance,
					MaxSequenceLength: ref.MaxSequenceLength, Seed: ref.Seed, RNG: "torch",
				}
				if ref.NegativePrompt != nil {
					r.NegativePrompt = *ref.NegativePrompt
				}
				res, err := p.Generate(r)
				if err != nil {
					return err
				}
				off := 0
				for i, want := range ref.Array("image").Uint8s() {
					got := int(res.Image.Pix[i/3*4+i%3])
					if d := got - int(want); d < -1 || d > 1 {
						t.Fatalf("value %d is %d, expected %d", i, got, want)
					} else if d != 0 {
						off++
					}
				}
				t.Logf("%d values off by 1", off)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
