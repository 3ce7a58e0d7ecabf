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
	// Adapters change what the weight makes, one after the other.
	Adapters []Adapter
}

// An Adapter is a change of a linear layer that is computed beside it, as that
// of a LoRA that is not added to the weight.
type Adapter interface {
	// Apply returns what becomes of y = x·Wᵀ, before the bias is added.
	Apply(x, y *mlx.Array) *mlx.Array
}

// NewLinear declares a Dense.
func NewLinear(in, out int, bias bool) *Dense {
	d := &Dense{Weight: NewParam(out, in).of(LinearWeight)}
	if bias {
		d.Bias = NewParam(out)
	}
	return d
}

// Forward takes [..., in] to [..., out].
func (d *Dense) Forward(x *mlx.Array) *mlx.Array {
	biased := d.Bias.Array != nil
	if biased && len(d.Adapters) == 0 && !packedProduct(&d.Weight, x) {
		return d.Tap(mlx.Addmm(d.Bias.As(x.Dtype()), x, d.Weight.As(x.Dtype()).T()), x)
	}
	y := d.Weight.matmulT(x)
	for _, a := range d.Adapters {
		y = a.Apply(x, y)
	}
	if biased {
		y = y.Add(d.Bias.As(x.Dtype()))
	}
	return d.Tap(y, x)
}

// matmulT is x·Wᵀ.
func (p *Param) matmulT(x *mlx.Array) *mlx.Array {
	if packedProduct(p, x) {
		p.used()
		return p.packed.MatmulT(x)
	}
	return x.Matmul(p.As(x.Dtype()).T())
}

// maxPackedRows is how many rows of x CUDA multiplies with a packed matrix. On an
// H200 that is faster up to 256 rows, 30 microseconds instead of 150 for one row of
// 3072 and 9216 outputs, but MLX compiles a kernel for several seconds for most
// numbers of rows beyond those of a vector. For 4096 rows it takes three times as
// long as to unpack the matrix first.
const maxPackedRows = 8

// packedProduct says whether a product with a quantized matrix is faster than
// unpacking it first. On Linux CPUs it never is.
func packedProduct(p *Param, x *mlx.Array) bool {
	switch {
	case p.packed == nil || mlx.CurrentDevice() == mlx.CPU:
		return false
	case mlx.GPU.Backend() == mlx.BackendMetal:
		return true
	}
	return x.Size()/x.Dim(-1) <= maxPackedRows
}

// Embedding is torch.nn.Embedding: weight [n, dim].
type Embedding struct {
	Module
	Weight Param `w:"weight"`
}

// NewEmbedding declares an Embedding.
func NewEmbedding(n, dim int) *Embedding {
	return &Embedding{Weight: NewParam(n, dim).of(EmbeddingWeight)}
}

// Forward looks up ids and returns [1, len(ids), dim] in dtype.
func (e *Embedding) Forward(ids []int32, dtype mlx.Dtype) *mlx.Array {
	x := e.Weight.TakeRows(ids, dtype).ExpandDims(0)
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
