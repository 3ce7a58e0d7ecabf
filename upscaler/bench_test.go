package upscaler

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/gomflux/gomflux/internal/foreigntest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

var (
	benchSize = flag.Int("size", 1024, "height and width of the benchmarks' images")
	benchCPU  = flag.Bool("cpu", false, "run benchmarks on the CPU, in float32")
)

// onDevice runs f on the MLX thread, with the dtype to compute in.
func onDevice(b *testing.B, f func(dtype mlx.Dtype)) {
	b.Helper()
	err := mlx.Do(context.Background(), func() error {
		device, dtype := mlx.GPU, mlx.BFloat16
		if *benchCPU {
			device, dtype = mlx.CPU, mlx.Float32
		}
		if err := mlx.Use(device); err != nil {
			return err
		}
		mlx.CheckKernels()
		f(dtype)
		return nil
	})
	if err != nil {
		b.Skip(err)
	}
}

// BenchmarkRRDB times one of the 23 blocks of Real-ESRGAN x4, in both layouts, and what follows the blocks.
func BenchmarkRRDB(b *testing.B) {
	defer func(before func(mlx.Device) bool) { fannedOn = before }(fannedOn)
	for _, fanned := range []bool{false, true} {
		for blocks := 1; blocks <= 3; blocks += 2 {
			b.Run(fmt.Sprintf("fanned=%t/blocks=%d", fanned, blocks), func(b *testing.B) {
				onDevice(b, func(dtype mlx.Dtype) {
					fannedOn = func(mlx.Device) bool { return fanned }
					c := DefaultRRDBConfig()
					c.NumBlock = blocks
					n := NewRRDBNet(c)
					foreigntest.Fill(n)
					x := nn.ChannelsLast(image(3, *benchSize, *benchSize)).AsType(dtype).Contiguous()
					mlx.Eval(x)
					run := func() { Enlarge(n, x, Run{}, func(y *mlx.Array) { mlx.Eval(y) }) }
					for range 3 {
						run()
					}
					for b.Loop() {
						run()
					}
				})
			})
		}
	}
}

// convsAtOnce is how many convolutions are started before the first is waited for.
const convsAtOnce = 10

// BenchmarkConv times convsAtOnce convolutions by their numbers of inputs and outputs. upscale.py --convs in scripts/bench
// does the same in PyTorch.
func BenchmarkConv(b *testing.B) {
	for _, c := range [][2]int{
		{64, 32}, {96, 32}, {128, 32}, {160, 32}, {192, 64}, // joined
		{64, 192}, {32, 160}, {32, 128}, {32, 96}, {32, 64}, // fanned out
		{64, 64}, {64, 3}, {64, 8},
	} {
		b.Run(fmt.Sprintf("%dto%d", c[0], c[1]), func(b *testing.B) {
			onDevice(b, func(dtype mlx.Dtype) {
				x := mlx.Normal(mlx.Key(1), mlx.Float32, 1, *benchSize, *benchSize, c[0]).AsType(dtype)
				weight := mlx.Normal(mlx.Key(2), mlx.Float32, c[1], 3, 3, c[0]).AsType(dtype)
				mlx.Eval(x, weight)
				run := func() {
					mlx.WithScope(func() {
						var made []*mlx.Array
						for range convsAtOnce {
							made = append(made, x.Conv2d(weight, 1, 1))
						}
						mlx.Eval(made...)
					})
				}
				run()
				for b.Loop() {
					run()
				}
			})
		})
	}
}
