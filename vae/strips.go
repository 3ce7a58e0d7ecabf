package vae

import (
	"cmp"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// strips runs the layers of an autoencoder within a memory budget.
//
// Encoding or decoding an image in tiles would show seams, since each tile would be
// normalised by its own statistics. Instead, each layer is computed for the whole image
// before the next one: first the statistics of its norm, then its output in strips of
// rows, each from the input rows that its convolution covers.
//
// The members of a group divide the rows in the same way: each computes those of its rows of latents in
// every layer. For that it gets the row above and the row below its own, and what all add to the
// statistics. Attention gets all rows, and computes its own.
type strips struct {
	budget int64      // bytes in addition to the layers' inputs and outputs; 0 is no limit
	group  *mlx.Group // divides the rows, unless there are fewer rows of latents than members; nil: this process is alone

	rows *nn.Shares // in layers: the rows of latents that this process has; nil for all
	of   int        // the number of rows of latents, if rows is not nil
}

// allRows is the budget of strips of all rows.
const allRows = noBudget - 1

// limit is the budget, or noBudget.
func (s *strips) limit() int64 { return cmp.Or(s.budget, noBudget) }

// use reports whether m is computed in strips. A hook sees whole layers.
func (s *strips) use(m *nn.Module) bool { return (s.budget > 0 || s.group != nil) && !m.Observed() }

// run returns what layers compute, all rows of it in every process.
func (s *strips) run(x *mlx.Array, layers []layer) *mlx.Array {
	own := s.divide(x, layers)
	return own.whole(mlx.EvalChain(own.own(1, x), layers, func(l layer, x *mlx.Array) *mlx.Array {
		if s.budget > 0 {
			mlx.ClearCache() // its arrays have the sizes of the previous layer
		}
		return l.strip(x, own)
	}))
}

// divide returns the strips of this process's rows.
func (s *strips) divide(x *mlx.Array, layers []layer) *strips {
	in := size{x.Dim(1), x.Dim(2), x.Dim(3)}
	_, out := s.memoryModel(mlx.CurrentDevice(), x.Dtype()).peak(layers, in)
	own := &strips{budget: cmp.Or(s.budget, allRows)}
	if of := min(in.h, out.h); s.divides(of) {
		own.group, own.rows, own.of = s.group, nn.NewShares(s.group, of), of
	}
	return own
}

// divides reports whether several processes divide so many rows of latents.
func (s *strips) divides(rows int) bool {
	return s.group != nil && s.group.Size() > 1 && rows >= s.group.Size()
}

// own returns this process's part of an axis that has all rows.
func (s *strips) own(axis int, x *mlx.Array) *mlx.Array {
	if s.rows == nil {
		return x
	}
	first, end := s.rows.Range(0)
	each := x.Dim(axis) / s.of
	return x.Slice(axis, each*first, each*end)
}

// whole returns all rows for this process's x [N, H, W, C].
func (s *strips) whole(x *mlx.Array) *mlx.Array {
	if s.rows == nil {
		return x
	}
	shape, n := x.Shape(), s.rows.Count(0)
	y := s.rows.Whole(x.Reshape(shape[0], n, -1))
	shape[1] = shape[1] / n * s.of
	mlx.Eval(y) // now, so that all processes exchange in the same order
	return y.Reshape(shape...)
}

// statistics returns a norm's statistics of whole images of which this process has x. It computes so many rows at a time.
func (s *strips) statistics(n norm, x *mlx.Array, rows int) nn.Statistics {
	if g, ok := n.(*nn.GroupNorm); ok && s.rows != nil {
		return g.StatisticsOver(s.group, float64(s.rows.Count(0))/float64(s.of), x, rows)
	}
	return n.Statistics(x, rows)
}

// A part is what a process has of images of a height: rows from first, [N, H, W, C], and the rows next
// to them, [N, 1, W, C], nil at the edges of the images.
type part struct {
	x, above, below *mlx.Array
	first, height   int
}

// part returns the part of x with the rows next to it, which it gets from the neighbours.
func (s *strips) part(x *mlx.Array) part {
	h := x.Dim(1)
	if s.rows == nil {
		return part{x: x, height: h}
	}
	first, _ := s.rows.Range(0)
	each := h / s.rows.Count(0)
	edges := s.group.AllGather(mlx.Concat(1, x.Slice(1, 0, 1), x.Slice(1, h-1, h)).ExpandDims(0)) // [members, N, 2, W, C]
	edge := func(rank, i int) *mlx.Array { return edges.Slice(0, rank, rank+1).Squeeze(0).Slice(1, i, i+1) }
	p := part{x: x, first: each * first, height: each * s.of}
	if rank := s.group.Rank(); rank > 0 {
		p.above = edge(rank-1, 1)
	}
	if rank := s.group.Rank(); rank < s.group.Size()-1 {
		p.below = edge(rank+1, 0)
	}
	mlx.Eval(edges)
	return p
}

// slice returns rows [lo, hi) of the images, of which the process has all but one on each side.
func (p part) slice(lo, hi int) *mlx.Array {
	lo, hi = lo-p.first, hi-p.first
	var rows []*mlx.Array
	if lo < 0 {
		rows = append(rows, p.above)
	}
	n := p.x.Dim(1)
	rows = append(rows, slice(p.x, max(0, lo), min(hi, n)))
	if hi > n {
		rows = append(rows, p.below)
	}
	if len(rows) == 1 {
		return rows[0]
	}
	return mlx.Concat(1, rows...)
}

// A layer computes its output from [N, H, W, C] in strips of rows.
type layer interface {
	strip(x *mlx.Array, s *strips) *mlx.Array
	// memory estimates the memory that the layer takes for one image, without the
	// weights, and returns the size of its output.
	memory(in size, m memoryModel) (bytes int64, out size)
}

// appendBlocks appends blocks, or the layers that they consist of.
func appendBlocks[B nn.Layer](layers []layer, blocks []B) []layer {
	for _, b := range blocks {
		switch b := nn.Layer(b).(type) {
		case network:
			layers = append(layers, b.layers()...)
		case resampler:
			layers = append(layers, b.stage())
		default:
			layers = append(layers, b.(layer))
		}
	}
	return layers
}

// A resampler is a block that doubles or halves the size of images.
type resampler interface{ stage() stage }

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

func (s stage) strip(x *mlx.Array, by *strips) *mlx.Array {
	return s.stripThen(x, by, func(y *mlx.Array, lo, hi int) *mlx.Array { return y })
}

// stripThen computes the stage in strips. It calls then for each strip, rows [lo, hi) of
// the process's output y of the convolution, and uses its result instead of y.
func (s stage) stripThen(x *mlx.Array, by *strips, then func(y *mlx.Array, lo, hi int) *mlx.Array) *mlx.Array {
	in := size{x.Dim(1), x.Dim(2), x.Dim(3)}
	out := s.size(in)
	m := by.memoryModel(mlx.CurrentDevice(), x.Dtype())
	if m.budget != noBudget {
		m.budget /= int64(max(1, x.Dim(0)))
	}
	weight, bias := s.conv.As(x.Dtype())
	kernel, stride := weight.Dim(1), s.conv.Stride
	var stats nn.Statistics
	if s.norm != nil {
		stats = by.statistics(s.norm, x, m.statisticsRows(in))
		stats.Eval()
	}
	p := by.part(x)
	inputRows := p.height // of the convolution, without padding
	if s.double != nil {
		inputRows *= 2
	}
	first := p.first * out.h / in.h // of the output
	mlx.Eval(weight)
	if bias != nil {
		mlx.Eval(bias)
	}
	rows := func(lo, hi int) *mlx.Array {
		from, to := (first+lo)*stride-s.before, (first+hi-1)*stride+kernel-s.before
		top, bottom := max(0, -from), max(0, to-inputRows)
		y := mlx.Scope(func() *mlx.Array { return s.input(p, stats, from+top, to-bottom) })
		mlx.Eval(y) // frees the temporaries of the norm before the convolution allocates its own
		y = y.Pad([]int{0, top, s.before, 0}, []int{0, bottom, s.after, 0}, 0).BiasedConv2d(weight, bias, stride, 0)
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
func (s stage) input(p part, stats nn.Statistics, lo, hi int) *mlx.Array {
	if s.double == nil {
		y := p.slice(lo, hi)
		if s.norm != nil {
			y = s.norm.ApplySiLU(y, stats)
		}
		return y
	}
	first := lo / 2
	return slice(s.double(p.slice(first, (hi+1)/2)), lo-2*first, hi-2*first)
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

func (r *resnet) strip(x *mlx.Array, s *strips) *mlx.Array {
	first, second := r.stages()
	h := mlx.Scope(func() *mlx.Array { return first.strip(x, s) })
	return second.stripThen(h, s, func(y *mlx.Array, lo, hi int) *mlx.Array {
		shortcut := slice(x, lo, hi)
		if r.ConvShortcut != nil {
			shortcut = r.ConvShortcut.Forward(shortcut)
		}
		return shortcut.Add(y)
	})
}

func (d *downsample) stage() stage { return stage{conv: d.Conv, after: 1} }

func (u *upsample) stage() stage { return stage{double: u.double, conv: u.Conv, before: 1, after: 1} }

// scores returns how many scores attention may compute at a time under a budget. A GPU
// keeps three copies of them, in float32.
func scores(budget int64) int { return int(min(maxScores, max(1, budget/12))) }

// SetBudget limits the memory, in bytes, that Encode and Decode take in addition to the
// inputs and outputs of their layers; 0 is no limit.
func (m *coder) SetBudget(bytes int64) { m.strips.budget = max(0, bytes) }

// SetGroup makes Encode and Decode divide the rows of an image over the members of a group.
func (m *coder) SetGroup(g *mlx.Group) { m.strips.group = g }
