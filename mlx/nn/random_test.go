package nn_test

import (
	"math"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// TestRandom loads a model from a checkpoint without files.
func TestRandom(t *testing.T) {
	var reported, total int64
	load := func() *model {
		m := newModel()
		ck := nn.RandomCheckpoint(m, checkpoint.BF16)
		o := nn.LoadOptions{Name: "m", Dtype: mlx.BFloat16, Random: true, Progress: func(done, all int64) { reported, total = done, all }}
		if err := nn.Load(m, ck, o); err != nil {
			t.Fatal(err)
		}
		return m
	}
	mlxtest.Do(t, func() {
		a, b := nn.Parameters(load()), nn.Parameters(load())
		var bytes int64
		for i, p := range a {
			bytes += int64(2 * mlxtest.Size(p.Stored()))
			if p.Dtype() != mlx.BFloat16 || !slices.Equal(p.Original(mlx.BFloat16).Shape(), p.Shape()) {
				t.Errorf("%s is %v, expected %v in bfloat16", p.Name, p.Array, p.Shape())
			}
			mlxtest.Same(t, p.Name+" drawn again", b[i].Floats(), p.Floats())
		}
		if reported != bytes || total != bytes {
			t.Errorf("progress ended at %d of %d bytes, expected %d", reported, total, bytes)
		}
	})
}

// TestRandomNumbers checks mean and deviation of what is drawn, by the kind of parameter, in one
// part and in several.
func TestRandomNumbers(t *testing.T) {
	type parts struct {
		nn.Module
		Linear *nn.Linear    `w:"linear"`
		Large  *nn.Embedding `w:"large"`
		Norm   nn.Param      `w:"norm.weight"`
		Gamma  nn.Param      `w:"gamma"`
		Mean   nn.Param      `w:"running_mean"`
		Var    nn.Param      `w:"running_var"`
	}
	const rows = 1 << 14 // of 1024, four times as many numbers as are drawn
	mlxtest.Do(t, func() {
		m := &parts{
			Linear: nn.NewLinear(400, 300, true), Large: nn.NewEmbedding(rows, 1024), Norm: nn.NewParam(3000),
			Gamma: nn.NewParam(3000, 1, 1), Mean: nn.NewParam(3000), Var: nn.NewParam(3000),
		}
		before := mlx.ActiveMemory()
		mlx.ResetPeakMemory()
		o := nn.LoadOptions{Dtype: mlx.Float32, Random: true}
		if err := nn.Load(m, nn.RandomCheckpoint(m, checkpoint.BF16), o); err != nil {
			t.Fatal(err)
		}
		if peak, most := mlx.PeakMemory()-before, 2*2*rows*1024+5*4<<22; peak > most {
			t.Errorf("%d bytes at the peak, expected at most %d", peak, most)
		}
		for name, c := range map[string]struct {
			of              nn.Param
			mean, deviation float64
		}{
			"linear.weight": {m.Linear.Weight, 0, 1.0 / 20}, "linear.bias": {m.Linear.Bias, 0, 0.02},
			"large.weight": {m.Large.Weight, 0, 1.0 / 32}, "norm.weight": {m.Norm, 1, 0.02}, "gamma": {m.Gamma, 1, 0.02},
			"running_mean": {m.Mean, 0, 0.02}, "running_var": {m.Var, 1, 0.02},
		} {
			values := c.of.Floats()
			sum, squares := 0.0, 0.0
			for _, v := range values {
				sum += float64(v)
				squares += float64(v) * float64(v)
			}
			n := float64(len(values))
			mean, deviation := sum/n, math.Sqrt(squares/n-sum/n*sum/n)
			if math.Abs(mean-c.mean) > 6*c.deviation/math.Sqrt(n)+0.0005 || math.Abs(deviation/c.deviation-1) > 0.2 {
				t.Errorf("%s: mean %g and deviation %g, expected %g and %g", name, mean, deviation, c.mean, c.deviation)
			}
		}
		large := m.Large.Weight.Floats()
		rowsSeen := map[[8]float32]bool{}
		for i := 0; i < len(large); i += 1024 {
			rowsSeen[[8]float32(large[i:])] = true
		}
		if len(rowsSeen) != rows {
			t.Errorf("%d different rows, expected %d", len(rowsSeen), rows)
		}
		if slices.Equal(m.Norm.Floats(), m.Var.Floats()) {
			t.Error("two tensors are equal")
		}
		for _, p := range nn.Parameters(m) {
			p.Free()
		}
	})
}

// TestRandomQuantized: weights are quantized one after the other, so that memory is that of the
// quantized weights and of one that is not.
func TestRandomQuantized(t *testing.T) {
	const layers, size = 16, 1024
	m := &struct {
		nn.Module
		Layers []*nn.Linear `w:"layers"`
	}{}
	for range layers {
		m.Layers = append(m.Layers, nn.NewLinear(size, size, false))
	}
	mlxtest.Do(t, func() {
		before := mlx.ActiveMemory()
		mlx.ResetPeakMemory()
		o := nn.LoadOptions{Dtype: mlx.Float32, Random: true, Quantize: func(nn.Parameter) *mlx.Quantization {
			return &mlx.Quantization{Mode: "affine", Bits: 4, Group: 64}
		}}
		if err := nn.Load(m, nn.RandomCheckpoint(m, checkpoint.BF16), o); err != nil {
			t.Fatal(err)
		}
		packed := layers * size * size * 9 / 16 // scales and biases of 16 bits for 64 weights
		if loaded := mlx.ActiveMemory() - before; loaded < packed || loaded > packed+packed/100 {
			t.Errorf("%d bytes in memory, expected about %d", loaded, packed)
		}
		if peak := mlx.PeakMemory() - before; peak > packed+8*4*size*size {
			t.Errorf("%d bytes at the peak, for %d of quantized weights", peak, packed)
		}
		for _, p := range nn.Parameters(m) {
			p.Free()
		}
	})
}
