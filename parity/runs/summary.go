package runs

import (
	"math"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// summaryBlock is the number of elements whose statistics the device computes together, in rows
// and columns of summarySide: sums of more float32 values lose accuracy. Arrays are summarized in
// parts of summaryMost blocks, 64 MiB, since there are copies of a part.
const (
	summarySide  = 64
	summaryBlock = summarySide * summarySide
	summaryMost  = 4096
)

// The statistics of a block, in the order in which the device returns them. Without extreme
// elements these are only the first four, and the scale is 1.
const (
	blockMin = iota
	blockMax
	blockMean    // approximately, of the finite elements divided by the scale
	blockRest    // sum of their differences from that mean, which is rounded
	blockSquares // sum of the squares of these differences
	plainStats   // number of the statistics above

	blockScale   = iota - 1 // largest absolute value, so that squares of huge elements do not overflow
	blockFinite             // number of finite elements
	blockNumbers            // number of elements that are not NaN
	maskedStats             // number of all statistics
)

// Summarize returns the statistics of an array and its first n elements, as
// [checkpoint.Array.Stats] and First do, but does not copy the array to the host: its device
// computes the statistics of blocks, in one evaluation, or two if there are extreme elements, for
// every 16 million elements. It must run on the MLX thread.
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
	var all checkpoint.Summary
	var rest []float32
	mlx.WithScope(func() { rest = addBlocks(&all, x.Reshape(-1), n) })
	values := make([]float64, len(rest))
	for i, v := range rest {
		values[i] = float64(v)
	}
	first := values[:min(n, len(values))]
	if x.Size() >= summaryBlock { // the elements after the last block follow
		values = values[len(first):]
	}
	all.Add(values)
	return all.Stats(), first, nil
}

// addBlocks adds the statistics of the blocks of x, [N], to a summary. It returns the first n
// elements, unless there are no blocks, and the elements after the last block.
func addBlocks(all *checkpoint.Summary, x *mlx.Array, n int) (rest []float32) {
	blocks := x.Size() / summaryBlock
	if blocks == 0 {
		return x.Floats()
	}
	more := []*mlx.Array{x.Slice(0, 0, n)}
	if end := blocks * summaryBlock; end < x.Size() {
		more = append(more, x.Slice(0, end, x.Size()))
	}
	for at := 0; at < blocks; at += summaryMost {
		count := min(summaryMost, blocks-at)
		var others []*mlx.Array
		if at+count == blocks {
			others = more
		}
		mlx.WithScope(func() {
			part := x.Slice(0, at*summaryBlock, (at+count)*summaryBlock)
			part = part.AsType(mlx.Float32).Reshape(count, summarySide, summarySide)
			kinds, values := plainStats, together(plainParts(part), others)
			if extreme(values, count) {
				kinds, values = maskedStats, together(maskedParts(part), others)
			}
			for i := range count {
				stats := make([]float64, kinds)
				for k := range stats {
					stats[k] = float64(values[k*count+i])
				}
				all.Join(blockSummary(stats), summaryBlock)
			}
			rest = values[kinds*count:]
		})
	}
	return rest
}

// together evaluates the statistics of blocks and further elements, and copies them to the host.
func together(stats, rest []*mlx.Array) []float32 {
	var parts []*mlx.Array
	for _, x := range stats {
		parts = append(parts, x.Reshape(-1))
	}
	for _, x := range rest {
		parts = append(parts, x.AsType(mlx.Float32))
	}
	return mlx.Concat(0, parts...).Floats()
}

// sumBlock adds up the elements of each block.
func sumBlock(b *mlx.Array) *mlx.Array { return b.AsType(mlx.Float32).Sum(2).Sum(1) }

// plainParts returns the first statistics of blocks, [blocks, side, side].
func plainParts(b *mlx.Array) []*mlx.Array {
	mean := sumBlock(b).Over(summaryBlock)
	d := b.Sub(mean)
	return []*mlx.Array{b.Min(2).Min(1), b.Max(2).Max(1), mean, sumBlock(d), sumBlock(d.Square())}
}

// extreme reports whether a block has elements that are not finite, or so large or small that the
// squares of float32 values overflow or underflow.
func extreme(values []float32, blocks int) bool {
	const small, large = 1e-12, 1e15
	for i := range blocks {
		low, high := values[blockMin*blocks+i], values[blockMax*blocks+i]
		size := max(-low, high) // NaN if either is
		constant := low == 0 && high == 0
		if sum := values[blockMean*blocks+i]; !constant && !(size > small && size < large) || sum != sum {
			return true
		}
	}
	return false
}

// maskedParts returns all statistics of blocks, [blocks, side, side].
func maskedParts(b *mlx.Array) []*mlx.Array {
	number := func(v float64) *mlx.Array { return mlx.Scalar(v, mlx.Float32) }
	finite := b.IsFinite()
	low := mlx.Where(finite, b, number(math.Inf(1))).Min(2).Min(1)
	high := mlx.Where(finite, b, number(math.Inf(-1))).Max(2).Max(1)
	count := sumBlock(finite)
	scale := low.Abs().Maximum(high.Abs())
	scale = mlx.Where(scale.Equal(number(0)).Or(scale.Equal(number(math.Inf(1)))), number(1), scale)
	scaled := mlx.Where(finite, b, number(0)).Div(scale)
	mean := sumBlock(scaled).Div(count.Maximum(number(1)))
	d := mlx.Where(finite, scaled.Sub(mean), number(0))
	return []*mlx.Array{low, high, mean, sumBlock(d), sumBlock(d.Square()), scale, count, sumBlock(b.Equal(b))}
}

// blockSummary returns the statistics of a block.
func blockSummary(stats []float64) checkpoint.Stats {
	scale, finite, numbers := 1.0, float64(summaryBlock), float64(summaryBlock)
	if len(stats) > plainStats {
		scale, finite, numbers = stats[blockScale], stats[blockFinite], stats[blockNumbers]
	}
	rest := stats[blockRest] / max(1, finite)
	variance := stats[blockSquares]/max(1, finite) - rest*rest
	return checkpoint.Stats{
		Min: checkpoint.Float(stats[blockMin]), Max: checkpoint.Float(stats[blockMax]),
		Mean: checkpoint.Float((stats[blockMean] + rest) * scale), Std: checkpoint.Float(math.Sqrt(max(0, variance)) * scale),
		NaN: int(summaryBlock - numbers), Inf: int(numbers - finite),
	}
}
