package nn

import "github.com/gomflux/gomflux/mlx"

// A Layer takes one array to another.
type Layer interface {
	Forward(x *mlx.Array) *mlx.Array
}

// A Linear is x·Wᵀ (+ b) in whatever form W is stored.
type Linear interface {
	Layer
}

// Dense is torch.nn.Linear: weight [out, in], bias [out] if it has one.
type Dense struct {
	Module
	Weight Param `w:"weight"`
	Bias   Param `w:"bias"`
}

// NewLinear declares a Dense.
func NewLinear(in, out int, bias bool) *Dense {
	d := &Dense{Weight: NewParam(out, in)}
	if bias {
		d.Bias = NewParam(out)
	}
	return d
}

// Forward takes [..., in] to [..., out].
func (d *Dense) Forward(x *mlx.Array) *mlx.Array {
	w := d.Weight.As(x.Dtype()).T()
	if d.Bias.Array == nil {
		return d.Tap(x.Matmul(w), x)
	}
	return d.Tap(mlx.Addmm(d.Bias.As(x.Dtype()), x, w), x)
}

// Embedding is torch.nn.Embedding: weight [n, dim].
type Embedding struct {
	Module
	Weight Param `w:"weight"`
}

// NewEmbedding declares an Embedding.
func NewEmbedding(n, dim int) *Embedding { return &Embedding{Weight: NewParam(n, dim)} }

// Forward looks up ids and returns [1, len(ids), dim] in dtype.
func (e *Embedding) Forward(ids []int32, dtype mlx.Dtype) *mlx.Array {
	x := e.Weight.TakeRows(ids).AsType(dtype).ExpandDims(0)
	if !e.points.Active() {
		return x
	}
	return e.Tap(x, mlx.FromInt32(ids, 1, len(ids)))
}

// SiLU is torch.nn.SiLU. It computes in float32 inside, as torch does, except for
// images, where that would take much memory.
type SiLU struct {
	Module
	ChannelsLast bool // its arrays are [N, H, W, C]
}

func (s *SiLU) Forward(x *mlx.Array) *mlx.Array {
	if s.ChannelsLast {
		return s.TapImage(x.SiLU(), x)
	}
	return s.Tap(x.AsType(mlx.Float32).SiLU().AsType(x.Dtype()), x)
}

// An Activation is a function of single elements that the reference has as a
// module.
type Activation struct {
	Module
	Func func(*mlx.Array) *mlx.Array
}

func (a *Activation) Forward(x *mlx.Array) *mlx.Array { return a.Tap(a.Func(x), x) }

// Sequential is torch.nn.Sequential: its layers are named by their number.
type Sequential struct {
	Module
	Layers []Layer `w:"."`
}

// NewSequential puts layers one after the other.
func NewSequential(layers ...Layer) *Sequential { return &Sequential{Layers: layers} }

func (s *Sequential) Forward(x *mlx.Array) *mlx.Array {
	y := x
	for _, layer := range s.Layers {
		y = layer.Forward(y)
	}
	return s.Tap(y, x)
}

// Conv2d is torch.nn.Conv2d on [N, H, W, C] with square kernels: weight
// [out, in, k, k] in the checkpoint.
type Conv2d struct {
	Module
	Weight Param `w:"weight,oihw"`
	Bias   Param `w:"bias"`

	Stride, Padding int
}

// NewConv2d declares a convolution.
func NewConv2d(in, out, kernel, stride, padding int) *Conv2d {
	return &Conv2d{Weight: NewParam(out, in, kernel, kernel), Bias: NewParam(out), Stride: stride, Padding: padding}
}

// NewCausalConv3d declares a causal 3-D convolution as it acts on a single frame:
// weight [out, in, k, k, k] in the checkpoint. The frames before are zeros then, so
// only the last slice of the weight in time counts, and no other is kept.
func NewCausalConv3d(in, out, kernel, padding int) *Conv2d {
	return &Conv2d{Weight: NewParam(out, in, kernel, kernel, kernel).Last(), Bias: NewParam(out), Stride: 1, Padding: padding}
}

func (c *Conv2d) Forward(x *mlx.Array) *mlx.Array {
	y := x.Conv2d(c.Weight.As(x.Dtype()), c.Stride, c.Padding)
	return c.TapImage(y.Add(c.Bias.As(x.Dtype())), x)
}

// Widen takes float16 to float32, and leaves other dtypes. It is for residual
// streams that grow beyond 65504, which bfloat16 has no trouble with, and for what
// is added to them.
func Widen(x *mlx.Array) *mlx.Array { return x.AsType(Wide(x.Dtype())) }

// Wide is the dtype that [Widen] takes arrays of dtype to.
func Wide(dtype mlx.Dtype) mlx.Dtype {
	if dtype == mlx.Float16 {
		return mlx.Float32
	}
	return dtype
}
