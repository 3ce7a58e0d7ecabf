package nn

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
)

// A Layer is a module with one input and one output.
type Layer interface {
	Forward(x *mlx.Array) *mlx.Array
}

// A Linear is torch.nn.Linear, x·Wᵀ (+ b): weight [out, in], plain or quantized,
// and bias [out] if it has one.
type Linear struct {
	Module
	Weight Param `w:"weight"`
	Bias   Param `w:"bias"`
	// Adapters change x·Wᵀ, one after the other.
	Adapters []Adapter
}

// An Adapter changes the output of a linear layer at run time, such as a LoRA that is
// not baked into the weight.
type Adapter interface {
	// Apply returns the new y for y = x·Wᵀ, to which the bias is not added yet.
	Apply(x, y *mlx.Array) *mlx.Array
}

// NewLinear declares a Linear.
func NewLinear(in, out int, bias bool) *Linear {
	d := &Linear{Weight: NewParam(out, in).of(LinearWeight)}
	if bias {
		d.Bias = NewParam(out)
	}
	return d
}

// Out returns the number of outputs.
func (d *Linear) Out() int { return d.Weight.shape[0] }

// Forward takes [..., in] to [..., out].
func (d *Linear) Forward(x *mlx.Array) *mlx.Array {
	if len(d.Adapters) == 0 {
		return d.Tap(project(&d.Weight, &d.Bias, x), x)
	}
	y := d.product(x)
	if d.Bias.Array != nil {
		y = y.Add(d.Bias.As(x.Dtype()))
	}
	return d.Tap(y, x)
}

// ForwardWide is Forward for a layer whose output, or input x, may be beyond the range of
// float16 if the model computes in that dtype. The output is float32 then. The product is
// still one of float16 matrices: each row of x is divided by a power of two, which rounds
// nothing, so that its largest value is about 4, and the row of the output is multiplied by
// it. So values keep float16's 11 bits down to 2^-16 of the row's largest, and outputs may
// be 8000 times as large as that. In other dtypes ForwardWide is Forward in dtype.
func (d *Linear) ForwardWide(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	if dtype != mlx.Float16 {
		return d.Forward(x.AsType(dtype))
	}
	const largest, least = 4, 1e-30 // of a row, which may be all zeros
	wide := x.AsType(mlx.Float32)
	scale := wide.Abs().Max(-1).Maximum(mlx.Scalar(least, mlx.Float32)).Over(largest)
	one, two := mlx.Scalar(1, mlx.Float32), mlx.Scalar(2, mlx.Float32)
	scale = two.Power(scale.Log().Over(math.Ln2).FloorDivide(one))
	y := d.product(wide.Div(scale).AsType(dtype)).AsType(mlx.Float32).Mul(scale)
	if d.Bias.Array != nil {
		y = y.Add(d.Bias.As(mlx.Float32))
	}
	return d.Tap(y, x)
}

// product is x·Wᵀ with the adapters.
func (d *Linear) product(x *mlx.Array) *mlx.Array {
	y := inParts(&d.Weight, x, d.Weight.matmulT)
	for _, a := range d.Adapters {
		y = a.Apply(x, y)
	}
	return y
}

// inParts returns f(x), a product with the weight, for some tokens of x [..., T, in] at a time where the
// whole product would take too long for one kernel.
func inParts(weight *Param, x *mlx.Array, f func(*mlx.Array) *mlx.Array) *mlx.Array {
	if x.Ndim() < 2 || x.Dim(-2) == 0 {
		return f(x)
	}
	rows := weight.Arrays()[0].Dim(0)
	return x.InParts(x.Ndim()-2, 2*float64(x.Size()/x.Dim(-2))*float64(rows), f)
}

// project is x·Wᵀ + b. The bias may not be loaded.
func project(weight, bias *Param, x *mlx.Array) *mlx.Array {
	return inParts(weight, x, func(x *mlx.Array) *mlx.Array { return projectRows(weight, bias, x) })
}

func projectRows(weight, bias *Param, x *mlx.Array) *mlx.Array {
	switch {
	case bias.Array == nil:
		return weight.matmulT(x)
	case packedProduct(weight, x):
		return weight.matmulT(x).Add(bias.As(x.Dtype()))
	}
	if y := weight.rows(x); y != nil {
		return y.Add(bias.As(x.Dtype()))
	}
	return mlx.Addmm(bias.As(x.Dtype()), x, weight.As(x.Dtype()).T())
}

// matmulT is x·Wᵀ.
func (p *Param) matmulT(x *mlx.Array) *mlx.Array {
	if packedProduct(p, x) {
		p.used()
		return p.packed.MatmulT(x)
	}
	if y := p.rows(x); y != nil {
		return y
	}
	return x.Matmul(p.As(x.Dtype()).T())
}

// rows is x·Wᵀ for few rows on a Linux CPU, or one with CUDA, if the model decodes, and nil elsewhere.
func (p *Param) rows(x *mlx.Array) *mlx.Array {
	if p.packed != nil || !p.decodes {
		return nil
	}
	y := x.RowsOnHost(p.Array)
	if y == nil && mlx.CurrentDevice().Backend() == mlx.BackendCUDA {
		_, y = mlx.RowProduct{Weight: p.Array}.Apply(x, nil)
	}
	if y != nil {
		p.used()
	}
	return y
}

// maxPackedRowsCUDA is the largest number of rows of x that CUDA multiplies with a
// quantized matrix as it is. On an H200 that is faster up to 256 rows (30
// microseconds instead of 150 for one row of 3072 inputs and 9216 outputs), but from 8
// rows on MLX compiles a kernel for most numbers of rows, which takes several seconds,
// and took 54 s in the first of 8 steps of Qwen-Image. With 4096 rows it takes three
// times as long as dequantizing the matrix first.
const maxPackedRowsCUDA = 7

// maxPackedRowsCPU is that number on Linux CPUs for models that decode, which have one row. On two cores a
// product of a row and 3072x1024 elements takes 2.8 ms with 4 or 8 bits, and 8 ms if the matrix is dequantized
// first; with two rows 5.6 ms and 7 to 9.5, with four 15 to 37 ms and 8 to 10. It is measured for affine
// matrices only. Other models dequantize the matrix: with bfloat16 a timestep embedder would have a rounding
// error 9 times the reference's.
const maxPackedRowsCPU = 2

// tunedPackedRows replaces the default of [PackedRows] on a device. It belongs to the MLX thread.
var tunedPackedRows struct {
	device mlx.Device
	rows   map[mlx.Quantization]int
}

// SetPackedRows replaces the defaults of [PackedRows] for some quantizations on a device, and
// restores those of all others. It must be called on the MLX thread.
func SetPackedRows(device mlx.Device, rows map[mlx.Quantization]int) {
	tunedPackedRows.device, tunedPackedRows.rows = device, rows
}

// PackedRows returns the largest number of rows of x for which a [Linear] multiplies with a quantized
// matrix as it is, because that is faster than dequantizing it first: all on Metal, few on CUDA, and none on
// Linux CPUs, unless the model decodes (see [Decodes]).
func PackedRows(q mlx.Quantization) int { return packedRows(q, false) }

func packedRows(q mlx.Quantization, decodes bool) int {
	device := mlx.CurrentDevice()
	if rows, ok := tunedPackedRows.rows[q]; ok && tunedPackedRows.device == device {
		return rows
	}
	switch device.Backend() {
	case mlx.BackendMetal:
		return math.MaxInt
	case mlx.BackendCUDA:
		return maxPackedRowsCUDA
	}
	if !decodes || q.Mode != "affine" {
		return 0
	}
	return maxPackedRowsCPU
}

// Decodes declares that a model is a language model, which computes one token after the other: on Linux CPUs
// its products of few rows are computed without a copy of the matrix. Other models have MLX's products, which
// are the same with quantized weights and with what they are unpacked to.
func Decodes(model any) {
	for _, p := range Parameters(model) {
		p.decodes = true
	}
}

// packedProduct reports whether a product with the quantized matrix is faster than
// dequantizing it first.
func packedProduct(p *Param, x *mlx.Array) bool {
	return p.packed != nil && x.Size()/x.Dim(-1) <= packedRows(p.packed.Quantization, p.decodes)
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

// Len returns the number of rows, and Dim their size.
func (e *Embedding) Len() int { return e.Weight.shape[0] }
func (e *Embedding) Dim() int { return e.Weight.shape[1] }

// Forward looks up ids and returns [1, len(ids), dim] in dtype.
func (e *Embedding) Forward(ids []int32, dtype mlx.Dtype) *mlx.Array {
	x := e.Weight.TakeRows(ids, dtype).ExpandDims(0)
	if !e.points.Active() {
		return x
	}
	return e.Tap(x, mlx.FromInt32(ids, 1, len(ids)))
}

// Gather is Forward for ids [B, T] on the device, which are not checked: [B, T, dim].
func (e *Embedding) Gather(ids *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return e.Tap(e.Weight.Gather(ids, dtype), ids)
}

// ForwardWide is that of a [Linear] with the embedding's weight: the scores of all rows for x.
func (e *Embedding) ForwardWide(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return (&Linear{Weight: e.Weight}).ForwardWide(x, dtype)
}

// SiLU is torch.nn.SiLU. It computes in float32, as torch does, except for images,
// where that would take much memory.
type SiLU struct {
	Module
	ChannelsLast bool // its arrays are [N, H, W, C]
}

func (s *SiLU) Forward(x *mlx.Array) *mlx.Array {
	if s.ChannelsLast {
		return s.TapImage(x.SiLU(), x)
	}
	return s.Tap(mlx.WideSiLU(x), x)
}

// An Activation is an elementwise function that is a module of the reference.
type Activation struct {
	Module
	Func func(*mlx.Array) *mlx.Array
}

func (a *Activation) Forward(x *mlx.Array) *mlx.Array { return a.Tap(a.Func(x), x) }

// Sequential is torch.nn.Sequential: the names of its layers are their indexes.
type Sequential struct {
	Module
	Layers []Layer `w:"."`
}

// NewSequential returns layers that are applied one after the other.
func NewSequential(layers ...Layer) *Sequential { return &Sequential{Layers: layers} }

func (s *Sequential) Forward(x *mlx.Array) *mlx.Array {
	y := x
	for _, layer := range s.Layers {
		y = layer.Forward(y)
	}
	return s.Tap(y, x)
}

// Conv2d is torch.nn.Conv2d on [N, H, W, C] with square kernels: weight
// [out, in, k, k] in the checkpoint, and bias [out] if it has one.
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

// NewCausalConv3d declares a causal 3-D convolution of a single frame: weight
// [out, in, k, k, k] in the checkpoint. The earlier frames are zeros, so only the last
// slice of the weight in time is used and loaded.
func NewCausalConv3d(in, out, kernel, padding int) *Conv2d {
	return &Conv2d{Weight: NewParam(out, in, kernel, kernel, kernel).Last(), Bias: NewParam(out), Stride: 1, Padding: padding}
}

// WithoutBias removes the bias of a declared convolution, and returns it.
func (c *Conv2d) WithoutBias() *Conv2d {
	c.Bias = Param{}
	return c
}

func (c *Conv2d) Forward(x *mlx.Array) *mlx.Array {
	weight, bias := c.As(x.Dtype())
	return c.TapImage(x.BiasedConv2d(weight, bias, c.Stride, c.Padding), x)
}

// As returns weight and bias in another dtype. The bias is nil if there is no such parameter.
func (c *Conv2d) As(dtype mlx.Dtype) (weight, bias *mlx.Array) {
	if c.Bias.Array != nil {
		bias = c.Bias.As(dtype)
	}
	return c.Weight.As(dtype), bias
}

// Plain convolves without the bias. Hooks do not see it.
func (c *Conv2d) Plain(x *mlx.Array) *mlx.Array {
	return x.Conv2d(c.Weight.As(x.Dtype()), c.Stride, c.Padding)
}

// WidenFP16 converts float16 to float32, and returns other dtypes unchanged. It is for
// residual streams that grow beyond 65504, the largest float16, and for what is added
// to them. bfloat16 has the range of float32.
func WidenFP16(x *mlx.Array) *mlx.Array { return x.AsType(WideDtype(x.Dtype())) }

// WideSwiGLU is [mlx.SwiGLU] with a result in float32 for float16, whose range products of two
// activations leave first.
func WideSwiGLU(first *mlx.Array, a, b mlx.Columns) *mlx.Array {
	if first != nil {
		first = WidenFP16(first)
	}
	return mlx.SwiGLU(first, WideColumns(a), WideColumns(b))
}

// WideColumns is [WidenFP16] for columns of an array.
func WideColumns(c mlx.Columns) mlx.Columns {
	return mlx.Columns{X: WidenFP16(c.X), From: c.From, Size: c.Size}
}

// WideDtype returns the dtype of the results of [WidenFP16].
func WideDtype(dtype mlx.Dtype) mlx.Dtype {
	if dtype == mlx.Float16 {
		return mlx.Float32
	}
	return dtype
}
