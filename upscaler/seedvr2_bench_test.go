package upscaler

import (
	"context"
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/vae"
)

// BenchmarkSeedVR2 times the parts of the published model of 3 billion parameters on a GPU, in bfloat16 with random weights.
func BenchmarkSeedVR2(b *testing.B) {
	m := &SeedVR2{
		Transformer: transformer.NewNaDiT(transformer.DefaultNaDiTConfig()), VAE: vae.NewSeedVR2(vae.DefaultSeedVR2Config()),
	}
	err := mlx.Do(context.Background(), func() error {
		if err := mlx.Use(mlx.GPU); err != nil {
			return err
		}
		mlx.CheckKernels()
		for _, part := range m.Modules() {
			o := nn.LoadOptions{Points: &hooks.Points{}, Dtype: mlx.BFloat16, Random: true}
			if err := nn.Load(part, nn.RandomCheckpoint(part, checkpoint.BF16), o); err != nil {
				return err
			}
		}
		m.Text = foreigntest.Signed(0, 1, 58, 5120)
		mlx.Keep(m.Text)
		return nil
	})
	if err != nil {
		b.Skip(err)
	}
	for _, size := range []int{1024, 2048} {
		var image, latents *mlx.Array
		mlx.Do(context.Background(), func() error {
			image = foreigntest.Signed(0, 1, 3, size, size)
			mlx.Keep(image)
			return nil
		})
		for _, part := range []struct {
			name string
			run  func() (*mlx.Array, error)
		}{
			{"encode", func() (*mlx.Array, error) { return m.Latents(image.AsType(mlx.BFloat16)), nil }},
			{"step", func() (*mlx.Array, error) { return m.Step(latents, foreigntest.Signed(2, latents.Shape()...), nil) }},
			{"decode", func() (*mlx.Array, error) { return m.Image(latents, image, Wavelet), nil }},
		} {
			b.Run(fmt.Sprintf("%d/%s", size, part.name), func(b *testing.B) {
				err := mlx.Do(context.Background(), func() error {
					y, err := part.run()
					if err != nil {
						return err
					}
					mlx.Eval(y)
					if part.name == "encode" && latents == nil {
						latents = y
						mlx.Keep(y)
					}
					// as in a run: without it MLX allocates for all layers ahead of the work, 20.4 GB for 1024x1024 on an H200
					mlx.SetMemoryLimit(mlx.ActiveMemory() + 2e9)
					mlx.ResetPeakMemory()
					for b.Loop() {
						mlx.WithScope(func() {
							y, _ := part.run()
							mlx.Eval(y)
						})
					}
					b.ReportMetric(float64(mlx.PeakMemory())/1e9, "peak-GB")
					b.ReportMetric(float64(m.Memory(size, size, mlx.GPU, mlx.BFloat16))/1e9, "estimate-GB")
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
