package debug

import (
	"math"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// summaryBlock is the number of elements whose statistics the device computes together, in rows
// and columns of summarySide: sums of more float32 values lose accuracy.
const (
	summarySide  = 64
	summaryBlock = summarySide * summarySide
)

// The statistics of a block, in the order in which the device returns them. Mean and squares are
// those of the elements divided by the scale, so that squares of huge elements do not overflow.
const (
	blockMin = iota
	blockMax
	blockScale
	blockMean
	blockSquares // sum of the squared differences from the mean
	blockFinite  // number of finite elements
	blockNumbers // number of elements that are not NaN
	blockStats
)

// Summarize returns the statistics of an array and its first n elements, as
// [checkpoint.Array.Stats] and First do, but does not copy the array to the host: its device
// computes the statistics of blocks, in one evaluation. It must run on the MLX thread.
func Summarize(x *mlx.Array, n int) (checkpoint.Stats, []float64, error) {
	switch d := x.Dtype(); {
	case x.Size() > 0 && (d == mlx.Float32 || d == mlx.Float16 || d == mlx.BFloat16):
	default: // token ids and pixels: float32 does not hold all of them exactly
		t, err := FromArray("", x)
		if err != nil {
			return checkpoint.Stats{}, nil, err
		}
		return t.Stats(), t.First(n), nil
	}
	var values []float64
	blocks := x.Size() / summaryBlock
	mlx.WithScope(func() {
		for _, v := range summaryParts(x.Reshape(-1).AsType(mlx.Float32), blocks, n).Floats() {
			values = append(values, float64(v))
		}
	})
	var all checkpoint.Summary
	for i := range blocks {
		stat := func(k int) float64 { return values[k*blocks+i] }
		part := checkpoint.Stats{Min: checkpoint.Float(stat(blockMin)), Max: checkpoint.Float(stat(blockMax))}
		part.NaN = summaryBlock - int(stat(blockNumbers))
		part.Inf = summaryBlock - part.NaN - int(stat(blockFinite))
		part.Mean = checkpoint.Float(stat(blockMean) * stat(blockScale))
		part.Std = checkpoint.Float(math.Sqrt(stat(blockSquares)/max(1, stat(blockFinite))) * stat(blockScale))
		all.Join(part, summaryBlock)
	}
	values = values[blockStats*blocks:]
	first := values[:min(n, len(values))]
	if blocks > 0 { // the rest begins after the first elements
		values = values[len(first):]
	}
	all.Add(values)
	return all.Stats(), first, nil
}

// summaryParts returns the statistics of the blocks of x, [N], then if there are any the first n
// elements of x, and then the elements after the last block.
func summaryParts(x *mlx.Array, blocks, n int) *mlx.Array {
	if blocks == 0 {
		return x
	}
	number := func(v float64) *mlx.Array { return mlx.Scalar(v, mlx.Float32) }
	sum := func(x *mlx.Array) *mlx.Array { return x.AsType(mlx.Float32).Sum(2).Sum(1) }
	end := blocks * summaryBlock
	b := x.Slice(0, 0, end).Reshape(blocks, summarySide, summarySide)
	finite := b.IsFinite()
	low := mlx.Where(finite, b, number(math.Inf(1))).Min(2).Min(1)
	high := mlx.Where(finite, b, number(math.Inf(-1))).Max(2).Max(1)
	count := sum(finite)
	scale := low.Abs().Maximum(high.Abs())
	scale = mlx.Where(scale.Equal(number(0)).Or(scale.Equal(number(math.Inf(1)))), number(1), scale)
	scaled := mlx.Where(finite, b, number(0)).Div(scale)
	mean := sum(scaled).Div(count.Maximum(number(1)))
	squares := sum(mlx.Where(finite, scaled.Sub(mean), number(0)).Square())
	parts := []*mlx.Array{low, high, scale, mean, squares, count, sum(b.Equal(b))}
	for i := range parts {
		parts[i] = parts[i].Reshape(blocks)
	}
	parts = append(parts, x.Slice(0, 0, n))
	if end < x.Size() {
		parts = append(parts, x.Slice(0, end, x.Size()))
	}
	return mlx.Concat(0, parts...)
}
