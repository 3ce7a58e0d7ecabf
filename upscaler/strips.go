package upscaler

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// rows returns rows [lo, hi) of [N, H, W, C].
func rows(x *mlx.Array, lo, hi int) *mlx.Array {
	if lo == 0 && hi == x.Dim(1) {
		return x
	}
	return x.Slice(1, lo, hi)
}

// around returns the rows [from, to) that have an influence on [lo, hi) of h rows, extended to multiples.
func around(lo, hi, radius, multiple, h int) (from, to int) {
	from = max(0, lo-radius) / multiple * multiple
	return from, min(h, ceilDiv(hi+radius, multiple)*multiple)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// strips returns f(x), which has the shape of x, in strips of rows. f(x) of a pixel depends on the rows within a
// radius.
func strips(x *mlx.Array, step, radius int, f func(*mlx.Array) *mlx.Array) *mlx.Array {
	h := x.Dim(1)
	if step >= h {
		return mlx.Scope(func() *mlx.Array { return f(x) })
	}
	y := mlx.Zeros(x.Dtype(), x.Shape()...)
	mlx.Eval(y)
	for lo := 0; lo < h; lo += step {
		hi := min(lo+step, h)
		from, to := around(lo, hi, radius, 1, h)
		next := mlx.Scope(func() *mlx.Array { return y.SliceUpdate(1, lo, rows(f(rows(x, from, to)), lo-from, hi-from)) })
		y.Free() // lets MLX update it in place
		mlx.Eval(next)
		mlx.StopPoint()
		y = next
	}
	return y
}

// A memory estimates the memory that layers take.
type memory struct {
	device mlx.Device
	dtype  mlx.Dtype
	limit  int64 // of the temporaries of a strip, in bytes
}

// limit returns the bytes of temporaries at a time: so many that a GPU rarely waits between strips. On the CPU more
// makes nothing faster.
func (r Run) limit(d mlx.Device) int64 {
	most := int64(1) << 30
	if d != mlx.CPU {
		most = 4 << 30
	}
	if r.Budget == 0 {
		return most
	}
	return min(most, max(1, r.Budget/2))
}

// item is the size of an element in bytes.
func (m memory) item() int64 {
	if m.dtype == mlx.Float32 {
		return 4
	}
	return 2
}

// step returns how many of h rows to compute at a time: as few as the smallest number of strips needs, if each row,
// and those around a strip, takes bytes of temporaries and its largest convolution so many operations.
func (m memory) step(h, radius int, bytes int64, flops float64) int {
	most := int(min(int64(h), max(1, m.limit/bytes-2*int64(radius))))
	most = m.device.RowsAtOnce(most, flops)
	return ceilDiv(h, ceilDiv(h, most))
}

// unfolded returns the bytes for each pixel that MLX takes to convolve in to out channels, 3x3, in addition to
// its input and output.
func (m memory) unfolded(in, out int) int64 {
	switch {
	case m.device == mlx.CPU && m.dtype == mlx.Float32 && mlx.ConvolvesOnHost():
		return 0
	case m.device == mlx.CPU:
		return 9 * int64(in) * 4
	case m.device.Backend() == mlx.BackendMetal: // the transformed tiles of Winograd's convolution
		return int64(in+out) * 64 / 36 * m.item()
	}
	return int64(in) * m.item() // padded
}

// rowsWithin returns how many rows of an image are enlarged at a time within a memory budget: all, if possible.
func rowsWithin(n Network, h, w int, m memory, budget int64) int {
	step := h
	for budget > 0 && step > least && n.memory(min(h, step+2*n.Radius()), w, m) > budget {
		step = step * 3 / 4
	}
	return max(1, ceilDiv(h, ceilDiv(h, max(1, step))))
}

// least is the least number of rows that are enlarged at a time: fewer take hardly less memory, since those around
// them are computed too.
const least = 16

// Memory estimates the bytes that [Enlarge] takes for an image, without the weights and the output.
func Memory(n Network, h, w int, r Run, d mlx.Device, dtype mlx.Dtype) int64 {
	m := memory{d, dtype, r.limit(d)}
	return n.memory(min(h, rowsWithin(n, h, w, m, r.Budget)+2*n.Radius()), w, m)
}

// leaky is a convolution of a module, followed by a leaky ReLU.
func leaky(m *nn.Module, c *nn.Conv2d, x, slope *mlx.Array) *mlx.Array {
	return m.Fused("LeakyConv2d", func() *mlx.Array {
		weight, bias := c.As(x.Dtype())
		return x.LeakyConv2d(weight, bias, slope, c.Padding)
	}, func() *mlx.Array { return c.Forward(x).LeakyReLU(slope) })
}

// unshuffle is torch.nn.PixelUnshuffle for [N, H, W, C]. Rows and columns up to multiples of k are those before the
// edge, mirrored.
func unshuffle(x *mlx.Array, k int) *mlx.Array {
	for axis := 1; axis <= 2; axis++ {
		if n := x.Dim(axis); n%k != 0 {
			x = x.Take(axis, mirrored(n, ceilDiv(n, k)*k))
		}
	}
	n, h, w, c := x.Dim(0), x.Dim(1)/k, x.Dim(2)/k, x.Dim(3)
	return x.Reshape(n, h, k, w, k, c).Transpose(0, 1, 3, 5, 2, 4).Reshape(n, h, w, c*k*k)
}

// mirrored returns the indices 0 to n-1, n-2, n-3 and so on, to and fro.
func mirrored(n, total int) []int32 {
	out := make([]int32, total)
	period := max(1, 2*n-2)
	for i := range out {
		at := i % period
		out[i] = int32(min(at, period-at))
		if at < n {
			out[i] = int32(at)
		}
	}
	return out
}

// shuffle is torch.nn.PixelShuffle for [N, H, W, C].
func shuffle(x *mlx.Array, k int) *mlx.Array {
	n, h, w, c := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)/(k*k)
	return x.Reshape(n, h, w, c, k, k).Transpose(0, 1, 4, 2, 5, 3).Reshape(n, h*k, w*k, c)
}

// nearest repeats every pixel of [N, H, W, C] k times in both directions.
func nearest(x *mlx.Array, k int) *mlx.Array {
	n, h, w, c := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
	return x.Reshape(n, h, 1, w, 1, c).BroadcastTo(n, h, k, w, k, c).Reshape(n, h*k, w*k, c)
}
