// Package upscaler has the networks that enlarge images, one file per class. Their classes are those of
// BasicSR, whose names the checkpoints have, and SeedVR2's.
package upscaler

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// A Model is a [Network] or a [SeedVR2].
type Model interface {
	// Scale is the height or width of the output divided by that of the input, of SeedVR2 at most.
	Scale() int
}

// A Network enlarges images.
type Network interface {
	Model
	// Channels is the number of channels of images: 1 for gray, 3 for RGB, 4 for RGB and alpha.
	Channels() int
	// Radius is how many rows above and below a pixel of the input have an influence on its output.
	Radius() int
	// Forward enlarges images [N, C, H, W] from 0 to 1. The output is not clamped.
	Forward(x *mlx.Array) *mlx.Array

	// Observed reports whether a hook sees the network's tensors.
	Observed() bool

	// multiple is the number of rows that parts of an image must be multiples of, except the last.
	multiple() int
	// enlarge computes Forward for images [N, H, W, C] with temporaries of about limit bytes at a time, and calls
	// emit with rows of the output, from the first to the last.
	enlarge(x *mlx.Array, limit int64, emit func(y *mlx.Array), done func(share float64))
	// memory estimates the bytes that enlarge takes for an image, without weights and output.
	memory(h, w int, m memory) int64
}

// A Run describes how [Enlarge] computes.
type Run struct {
	// Budget limits the memory of the network's activations, in bytes; 0 is no limit.
	Budget int64
	// Progress, if set, is called with the share of the work that is done, up to 1.
	Progress func(share float64)
}

// Enlarge is n.Forward for an image [1, H, W, C], within a memory budget. It calls emit with rows of the output,
// [1, rows, W·Scale, C], from the first to the last, which it frees afterwards. The layers are computed for parts
// of the rows, with as many rows around them as have an influence. So the parts have no seams, whatever their size.
func Enlarge(n Network, x *mlx.Array, r Run, emit func(y *mlx.Array)) {
	if n.Observed() { // once, as a hook expects it
		emit(nn.ChannelsLast(n.Forward(nn.ChannelsFirst(x))))
		return
	}
	h, w := x.Dim(1), x.Dim(2)
	m := memory{mlx.CurrentDevice(), x.Dtype(), r.limit(mlx.CurrentDevice())}
	report := func(done float64) {
		if r.Progress != nil {
			r.Progress(min(1, done/float64(h)))
		}
	}
	step := rowsWithin(n, h, w, m, r.Budget)
	for lo := 0; lo < h; lo += step {
		hi := min(lo+step, h)
		from, to := around(lo, hi, n.Radius(), n.multiple(), h)
		at, first, last := from*n.Scale(), lo*n.Scale(), hi*n.Scale()
		mlx.WithScope(func() {
			n.enlarge(rows(x, from, to), m.limit, func(y *mlx.Array) {
				if a, b := max(at, first), min(at+y.Dim(1), last); a < b {
					emit(rows(y, a-at, b-at))
				}
				at += y.Dim(1)
				y.Free()
			}, func(share float64) { report(float64(lo) + share*float64(hi-lo)) })
		})
	}
}
