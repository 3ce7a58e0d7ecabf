package nn

import "github.com/gomflux/gomflux/mlx"

// RMSNorm is x·rsqrt(mean(x²)+eps)·weight over the last axis, with statistics
// in float32 (diffusers.models.normalization.RMSNorm, Qwen3RMSNorm).
type RMSNorm struct {
	Module
	Weight Param `w:"weight"`
	Eps    float64
}

// NewRMSNorm declares a norm over dim features.
func NewRMSNorm(dim int, eps float64) *RMSNorm {
	return &RMSNorm{Weight: NewParam(dim), Eps: eps}
}

func (n *RMSNorm) Forward(x *mlx.Array) *mlx.Array {
	return n.Tap(x.RMSNorm(n.Weight.As(x.Dtype()), float32(n.Eps)), x)
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

// Forward normalises [N, H, W, C].
func (n *GroupNorm) Forward(x *mlx.Array) *mlx.Array {
	return n.TapImage(n.normalise(x), x)
}

// ForwardTokens normalises [N, H·W, C].
func (n *GroupNorm) ForwardTokens(x *mlx.Array, h, w int) *mlx.Array {
	y := n.normalise(x.Reshape(x.Dim(0), h, w, x.Dim(2)))
	return n.TapImage(y.Reshape(x.Shape()...), x)
}

// normalise computes mean and then variance about it, each one axis after the
// other: a group of a large picture holds millions of elements, over which a
// single float32 reduction on the CPU is off by 1e-4 and more.
func (n *GroupNorm) normalise(x *mlx.Array) *mlx.Array {
	s := x.Shape()
	g := x.AsType(mlx.Float32).Reshape(s[0], s[1], s[2], n.Groups, s[3]/n.Groups)
	mean := func(x *mlx.Array) *mlx.Array { return x.Mean(4).Mean(2).Mean(1) }
	g = g.Sub(mean(g))
	g = g.Mul(mean(g.Square()).Plus(n.Eps).Rsqrt())
	y := g.Reshape(s...).Mul(n.Weight.As(mlx.Float32)).Add(n.Bias.As(mlx.Float32))
	return y.AsType(x.Dtype())
}
