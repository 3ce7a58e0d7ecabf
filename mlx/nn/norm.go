package nn

import "github.com/gomflux/gomflux/mlx"

// RMSNorm is x·rsqrt(mean(x²)+eps)·weight over the last axis, with statistics in
// float32 (diffusers.models.normalization.RMSNorm, Qwen3RMSNorm).
type RMSNorm struct {
	Module
	Weight Param `w:"weight"`
	Eps    float64
	// Offset is added to the weight in float32 (1 for models that store the weight minus one).
	Offset float64
}

// NewRMSNorm declares a norm over dim features.
func NewRMSNorm(dim int, eps float64) *RMSNorm {
	return &RMSNorm{Weight: NewParam(dim), Eps: eps}
}

// NewRMSNormMinusOne declares a norm whose weight is stored minus one (Krea2RMSNorm,
// QwenImage21ZeroCenterRMSNorm).
func NewRMSNormMinusOne(dim int, eps float64) *RMSNorm {
	return &RMSNorm{Weight: NewParam(dim), Eps: eps, Offset: 1}
}

// NewPlainRMSNorm declares a norm without a weight (elementwise_affine=False).
func NewPlainRMSNorm(eps float64) *RMSNorm { return &RMSNorm{Eps: eps} }

// Forward normalizes x [..., dim], in its dtype.
func (n *RMSNorm) Forward(x *mlx.Array) *mlx.Array {
	if n.Weight.Array == nil {
		return n.Tap(x.RMSNorm(nil, float32(n.Eps)), x)
	}
	if n.Offset != 0 { // the sum would be rounded in x's dtype
		return n.Tap(x.RMSNorm(n.factor(mlx.Float32), float32(n.Eps)).AsType(x.Dtype()), x)
	}
	return n.Tap(x.RMSNorm(n.Weight.As(x.Dtype()), float32(n.Eps)), x)
}

// factor returns what each feature is multiplied by, nil without a weight.
func (n *RMSNorm) factor(dtype mlx.Dtype) *mlx.Array {
	if n.Weight.Array == nil {
		return nil
	}
	if n.Offset == 0 {
		return n.Weight.As(dtype)
	}
	return n.Weight.As(mlx.Float32).Plus(n.Offset).AsType(dtype)
}

// Plain describes the norm for fused operations in a dtype, which hooks do not see. scale and shift
// are those of adaptive layer norm, and may be nil.
func (n *RMSNorm) Plain(dtype mlx.Dtype, scale, shift *mlx.Array) mlx.Norm {
	if n.Offset != 0 && scale != nil { // 1+scale and the weight are rounded once, as one factor
		both := scale.AsType(mlx.Float32).Plus(1).Mul(n.factor(mlx.Float32))
		return mlx.Norm{Eps: float32(n.Eps), Scale: both.Plus(-1).AsType(dtype), Shift: shift}
	}
	return mlx.Norm{Weight: n.factor(dtype), Eps: float32(n.Eps), Scale: scale, Shift: shift}
}

// Plain is [RMSNorm.Plain] for a norm without weight and bias.
func (n *LayerNorm) Plain(_ mlx.Dtype, scale, shift *mlx.Array) mlx.Norm {
	return mlx.Norm{Center: true, Eps: float32(n.Eps), Scale: scale, Shift: shift}
}

// LayerNorm is torch.nn.LayerNorm over the last axis.
type LayerNorm struct {
	Module
	Weight Param `w:"weight"`
	Bias   Param `w:"bias"`
	Eps    float64
}

// NewLayerNorm declares a norm without weight and bias
// (elementwise_affine=False), as the diffusion transformers have it.
func NewLayerNorm(eps float64) *LayerNorm { return &LayerNorm{Eps: eps} }

// NewAffineLayerNorm declares a norm of dim features with weight and bias.
func NewAffineLayerNorm(dim int, eps float64) *LayerNorm {
	return &LayerNorm{Weight: NewParam(dim), Bias: NewParam(dim), Eps: eps}
}

func (n *LayerNorm) Forward(x *mlx.Array) *mlx.Array {
	if n.Weight.Array == nil {
		return n.Tap(x.LayerNorm(nil, nil, float32(n.Eps)), x)
	}
	return n.Tap(x.LayerNorm(n.Weight.As(x.Dtype()), n.Bias.As(x.Dtype()), float32(n.Eps)), x)
}

// GroupNorm is torch.nn.GroupNorm on [N, H, W, C].
type GroupNorm struct {
	Module
	Weight Param `w:"weight"`
	Bias   Param `w:"bias"`

	Groups int
	Eps    float64
}

// NewGroupNorm declares a norm of channels in groups.
func NewGroupNorm(groups, channels int, eps float64) *GroupNorm {
	return &GroupNorm{Weight: NewParam(channels), Bias: NewParam(channels), Groups: groups, Eps: eps}
}

// Forward normalizes [N, H, W, C].
func (n *GroupNorm) Forward(x *mlx.Array) *mlx.Array {
	return n.TapImage(n.normalize(x), x)
}

// ForwardTokens normalizes [N, H·W, C].
func (n *GroupNorm) ForwardTokens(x *mlx.Array, h, w int) *mlx.Array {
	y := n.normalize(x.Reshape(x.Dim(0), h, w, x.Dim(2)))
	return n.TapImage(y.Reshape(x.Shape()...), x)
}

func (n *GroupNorm) normalize(x *mlx.Array) *mlx.Array {
	return n.Apply(x, n.Statistics(x, x.Dim(1)))
}

// Statistics are the mean of each channel's group and the reciprocal of its standard
// deviation, [N, 1, 1, C] in float32, or what a kernel needs instead.
type Statistics struct {
	Mean, Rstd *mlx.Array
	factors    mlx.GroupFactors
}

// Eval evaluates the statistics, if there are any.
func (s Statistics) Eval() {
	switch {
	case s.factors.Array != nil:
		mlx.Eval(s.factors.Array)
	case s.Mean != nil:
		mlx.Eval(s.Mean, s.Rstd)
	}
}

// plain describes the norm of x + before for a kernel. before is nil or [C].
func (n *GroupNorm) plain(dtype mlx.Dtype, before *mlx.Array) mlx.GroupNorm {
	return mlx.GroupNorm{Groups: n.Groups, Eps: float32(n.Eps), Weight: n.Weight.As(dtype), Bias: n.Bias.As(dtype), Before: before}
}

// SiLU returns silu(norm(x + before)) of [N, H, W, C]. before is nil or [C]. Hooks do not see it.
func (n *GroupNorm) SiLU(x, before *mlx.Array) *mlx.Array {
	if g := n.plain(x.Dtype(), before); g.Usable(x) {
		return g.Factors(x).Apply(x, true)
	}
	if before != nil {
		x = x.Add(before)
	}
	return n.normalize(x).SiLU()
}

// Statistics computes the mean and then the variance about it, each one axis after the
// other: a group of a large image has millions of elements, over which a single
// float32 reduction on the CPU is off by 1e-4 and more. It reduces the given number of
// rows of x [N, H, W, C] at a time, and evaluates after each part unless there is only
// one. The result does not depend on rows.
func (n *GroupNorm) Statistics(x *mlx.Array, rows int) Statistics {
	if g := n.plain(x.Dtype(), nil); g.Usable(x) {
		return Statistics{factors: g.Factors(x)}
	}
	if mean, rstd := x.GroupStatisticsOnHost(n.Groups, n.Eps); mean != nil {
		return Statistics{Mean: mean, Rstd: rstd}
	}
	c := x.Dim(3)
	channels := func(groups *mlx.Array) *mlx.Array {
		return groups.BroadcastTo(x.Dim(0), 1, 1, n.Groups, c/n.Groups).Reshape(x.Dim(0), 1, 1, c)
	}
	out := mlx.Scopes(func() []*mlx.Array {
		mean := channels(n.mean(x, rows, func(x *mlx.Array) *mlx.Array { return x }))
		variance := n.mean(x, rows, func(x *mlx.Array) *mlx.Array { return x.Sub(mean).Square() })
		return []*mlx.Array{mean, channels(variance.Plus(n.Eps).Rsqrt())}
	})
	return Statistics{Mean: out[0], Rstd: out[1]}
}

// StatisticsOver is [GroupNorm.Statistics] of images whose pixels the members of a group divide. This process has
// x, a part of so much of them.
func (n *GroupNorm) StatisticsOver(g *mlx.Group, part float64, x *mlx.Array, rows int) Statistics {
	channels := []int{x.Dim(0), 1, 1, x.Dim(3)}
	kernel := n.plain(x.Dtype(), nil)
	var own Statistics
	fused := kernel.Usable(x)
	if fused { // with weights 1 and biases 0 its factors are rstd, and -mean·rstd
		kernel.Weight, kernel.Bias = mlx.Full(1, x.Dtype(), x.Dim(3)), mlx.Zeros(x.Dtype(), x.Dim(3))
		f := kernel.Factors(x).Split(2, 1)
		rstd := f[0].Reshape(channels...)
		own = Statistics{Mean: f[1].Reshape(channels...).Neg().Div(rstd), Rstd: rstd}
	} else {
		own = n.Statistics(x, rows)
	}
	mean := g.AllSum(own.Mean.Times(part))
	variance := mlx.Scalar(1, mlx.Float32).Div(own.Rstd.Square()).Add(own.Mean.Sub(mean).Square()) // about the mean of all, plus Eps
	all := Statistics{Mean: mean, Rstd: g.AllSum(variance.Times(part)).Rsqrt()}
	if fused {
		factor := all.Rstd.Mul(n.Weight.As(mlx.Float32))
		summand := n.Bias.As(mlx.Float32).Sub(mean.Mul(factor))
		all.factors = mlx.GroupFactors{Array: mlx.Concat(1, factor, summand).Reshape(x.Dim(0), 2, x.Dim(3))}
	}
	return all
}

// mean returns the mean of f(x) over each group, [N, 1, 1, groups, 1].
func (n *GroupNorm) mean(x *mlx.Array, rows int, f func(*mlx.Array) *mlx.Array) *mlx.Array {
	s := x.Shape()
	means := func(x *mlx.Array) *mlx.Array { // of each row
		y := f(x.AsType(mlx.Float32))
		return y.Reshape(s[0], x.Dim(1), s[2], n.Groups, s[3]/n.Groups).Mean(4).Mean(2)
	}
	if rows >= s[1] {
		return means(x).Mean(1)
	}
	var parts []*mlx.Array
	for i := 0; i < s[1]; i += rows {
		part := mlx.Scope(func() *mlx.Array { return means(x.Slice(1, i, min(i+rows, s[1]))) })
		mlx.Eval(part)
		parts = append(parts, part)
	}
	return mlx.Concat(1, parts...).Mean(1)
}

// Apply normalizes any rows of the x with these statistics. Hooks do not see it.
func (n *GroupNorm) Apply(x *mlx.Array, s Statistics) *mlx.Array {
	if s.factors.Array != nil {
		return s.factors.Apply(x, false)
	}
	if y := x.NormalizeOnHost(s.Mean, s.Rstd, n.Weight.As(mlx.Float32), n.Bias.As(mlx.Float32)); y != nil {
		return y
	}
	y := x.AsType(mlx.Float32).Sub(s.Mean).Mul(s.Rstd)
	return y.Mul(n.Weight.As(mlx.Float32)).Add(n.Bias.As(mlx.Float32)).AsType(x.Dtype())
}

// ApplySiLU is [GroupNorm.Apply] followed by SiLU.
func (n *GroupNorm) ApplySiLU(x *mlx.Array, s Statistics) *mlx.Array {
	if s.factors.Array != nil {
		return s.factors.Apply(x, true)
	}
	return n.Apply(x, s).SiLU()
}
