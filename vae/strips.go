package vae

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// strips runs the layers of an autoencoder within a memory budget.
//
// Encoding or decoding an image in tiles would show seams, since each tile would be
// normalised by its own statistics. Instead, each layer is computed for the whole image
// before the next one: first the statistics of its norm, then its output in strips of
// rows, each from the input rows that its convolution covers.
type strips struct {
	budget int64 // bytes in addition to the layers' inputs and outputs; 0 is no limit
}

func (s *strips) run(x *mlx.Array, layers []layer) *mlx.Array {
	return mlx.EvalChain(x, layers, func(l layer, x *mlx.Array) *mlx.Array {
		mlx.ClearCache() // its arrays have the sizes of the previous layer
		return l.strip(x, s.budget)
	})
}

// A layer computes its output from [N, H, W, C] in strips of rows.
type layer interface {
	strip(x *mlx.Array, budget int64) *mlx.Array
	// memory estimates the memory that the layer takes for one image, without the
	// weights, and returns the size of its output.
	memory(in size, m memoryModel) (bytes int64, out size)
}

func appendLayers[L layer](layers []layer, more []L) []layer {
	for _, l := range more {
		layers = append(layers, l)
	}
	return layers
}

// size is the size of an image or of the activations of one image.
type size struct{ h, w, c int }

func (s size) bytes(item int64) int64 { return int64(s.h) * s.rowBytes(item) }

func (s size) rowBytes(item int64) int64 { return int64(s.w) * int64(s.c) * item }

// A stage is a convolution with the operations right before it.
type stage struct {
	norm          norm                        // followed by SiLU; nil if the stage has neither
	double        func(*mlx.Array) *mlx.Array // first: every pixel becomes 2x2; nil if it stays one
	conv          *nn.Conv2d
	before, after int // padding: rows and columns of zeros on each side
	// residual is the memory for adding the shortcut to the output, as a number of
	// channels at the output's height and width.
	residual int
}

// A norm of [N, H, W, C] computes its statistics from the whole input, and can then
// normalise any rows.
type norm interface {
	nn.Layer
	Statistics(x *mlx.Array, rows int) nn.Statistics
	// ApplySiLU normalises rows and applies SiLU.
	ApplySiLU(x *mlx.Array, s nn.Statistics) *mlx.Array
	// SiLU returns silu(norm(x + before)). before is nil or [C].
	SiLU(x, before *mlx.Array) *mlx.Array
}

// convStage is a stage with nothing but a 3x3 convolution, which keeps the size.
func convStage(conv *nn.Conv2d) stage { return stage{conv: conv, before: 1, after: 1} }

func (s stage) strip(x *mlx.Array, budget int64) *mlx.Array {
	return s.stripThen(x, budget, func(y *mlx.Array, lo, hi int) *mlx.Array { return y })
}

// stripThen computes the stage in strips. It calls then for each strip, rows [lo, hi) of
// the convolution's output y, and uses its result instead of y.
func (s stage) stripThen(x *mlx.Array, budget int64, then func(y *mlx.Array, lo, hi int) *mlx.Array) *mlx.Array {
	in := size{x.Dim(1), x.Dim(2), x.Dim(3)}
	out := s.size(in)
	m := memoryModel{mlx.CurrentDevice(), x.Dtype(), budget / int64(max(1, x.Dim(0)))}
	weight, bias := s.conv.As(x.Dtype())
	kernel, stride := weight.Dim(1), s.conv.Stride
	inputRows := in.h // of the convolution, without padding
	if s.double != nil {
		inputRows *= 2
	}
	var stats nn.Statistics
	if s.norm != nil {
		stats = s.norm.Statistics(x, m.statisticsRows(in))
		stats.Eval()
	}
	mlx.Eval(weight)
	if bias != nil {
		mlx.Eval(bias)
	}
	rows := func(lo, hi int) *mlx.Array {
		from, to := lo*stride-s.before, (hi-1)*stride+kernel-s.before
		top, bottom := max(0, -from), max(0, to-inputRows)
		y := mlx.Scope(func() *mlx.Array { return s.input(x, stats, from+top, to-bottom) })
		mlx.Eval(y) // frees the temporaries of the norm before the convolution allocates its own
		y = y.Pad([]int{0, top, s.before, 0}, []int{0, bottom, s.after, 0}, 0).BiasedConv2d(weight, bias, stride, 0, s.conv.Groups)
		return then(y, lo, hi)
	}
	step := m.rows(s, in)
	if step >= out.h {
		return rows(0, out.h)
	}
	y := mlx.Zeros(x.Dtype(), x.Dim(0), out.h, out.w, out.c)
	mlx.Eval(y)
	for lo := 0; lo < out.h; lo += step {
		next := mlx.Scope(func() *mlx.Array { return y.SliceUpdate(1, lo, rows(lo, min(lo+step, out.h))) })
		y.Free() // lets MLX update it in place
		mlx.Eval(next)
		mlx.StopPoint()
		y = next
	}
	return y
}

// input returns rows [lo, hi) of the convolution's input.
func (s stage) input(x *mlx.Array, stats nn.Statistics, lo, hi int) *mlx.Array {
	if s.double == nil {
		y := slice(x, lo, hi)
		if s.norm != nil {
			y = s.norm.ApplySiLU(y, stats)
		}
		return y
	}
	first := lo / 2
	return slice(s.double(slice(x, first, (hi+1)/2)), lo-2*first, hi-2*first)
}

// slice returns rows [lo, hi) of [N, H, W, C].
func slice(x *mlx.Array, lo, hi int) *mlx.Array {
	if lo == 0 && hi == x.Dim(1) {
		return x
	}
	return x.Slice(1, lo, hi)
}

// size returns the size of the output.
func (s stage) size(in size) size {
	weight := nn.Parameters(s.conv)[0].Stored() // [out, in, k, k] or [out, in, k, k, k]; known before loading
	kernel := weight[len(weight)-1]
	return size{s.outputs(in.h, kernel), s.outputs(in.w, kernel), weight[0]}
}

func (s stage) outputs(n, kernel int) int {
	if s.double != nil {
		n *= 2
	}
	return (n+s.before+s.after-kernel)/s.conv.Stride + 1
}

func (r *resnet) stages() (first, second stage) {
	first = stage{norm: r.Norm1, conv: r.Conv1, before: 1, after: 1}
	second = stage{norm: r.Norm2, conv: r.Conv2, before: 1, after: 1}
	if conv, ok := r.ConvShortcut.(*nn.Conv2d); ok {
		weight := nn.Parameters(conv)[0].Stored()
		second.residual = weight[0] + 3*weight[1]
	}
	return first, second
}

func (r *resnet) strip(x *mlx.Array, budget int64) *mlx.Array {
	first, second := r.stages()
	h := mlx.Scope(func() *mlx.Array { return first.strip(x, budget) })
	return second.stripThen(h, budget, func(y *mlx.Array, lo, hi int) *mlx.Array {
		shortcut := slice(x, lo, hi)
		if r.ConvShortcut != nil {
			shortcut = r.ConvShortcut.Forward(shortcut)
		}
		return shortcut.Add(y)
	})
}

func (d *downsample) stage() stage { return stage{conv: d.Conv, after: 1} }

func (d *downsample) strip(x *mlx.Array, budget int64) *mlx.Array { return d.stage().strip(x, budget) }

func (u *upsample) stage() stage { return stage{double: u.double, conv: u.Conv, before: 1, after: 1} }

func (u *upsample) strip(x *mlx.Array, budget int64) *mlx.Array { return u.stage().strip(x, budget) }

func (a *attention) strip(x *mlx.Array, budget int64) *mlx.Array {
	return a.forward(x, scores(budget))
}

// scores returns how many scores attention may compute at a time under a budget. A GPU
// keeps three copies of them, in float32.
func scores(budget int64) int { return int(min(maxScores, max(1, budget/12))) }

// SetBudget limits the memory, in bytes, that Encode and Decode take in addition to the
// inputs and outputs of their layers; 0 is no limit.
func (m *coder) SetBudget(bytes int64) { m.strips.budget = max(0, bytes) }
