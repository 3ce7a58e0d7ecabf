package models_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/parity"
)

// TestTorchNoise generates the references' images from nothing but their prompts and seeds.
func TestTorchNoise(t *testing.T) {
	for _, golden := range []string{"zimage-ordinary", "zimage-small"} {
		t.Run(golden, func(t *testing.T) {
			var got []byte
			var want []uint8
			err := mlx.Do(context.Background(), func() error {
				p, err := models.Load(os.DirFS(testModel(golden)), models.LoadOptions{Dtype: new(mlx.Float32)})
				if err != nil {
					return err
				}
				defer p.Close()
				ref, err := parity.OpenRun(os.DirFS(filepath.Join("testdata", golden, "dump")))
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
				got, want = res.Image.Pix, ref.Array("image").Uint8s()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(want) == 0 || len(got)/4 != len(want)/3 {
				t.Fatalf("%d values of a picture, expected 4 for each 3 of %d", len(got), len(want))
			}
			off := 0
			for i, w := range want {
				switch d := int(got[i/3*4+i%3]) - int(w); {
				case d < -1 || d > 1:
					t.Fatalf("value %d is %d, expected %d", i, int(w)+d, w)
				case d != 0:
					off++
				}
			}
			t.Logf("%d values off by 1", off)
		})
	}
}
