package rounding

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models"
)

// A parameter is one of a loaded pipeline, whose value may be changed.
type parameter struct {
	nn.Parameter
	module       string
	quantization *mlx.Quantization // nil if it would not be quantized
	original     *mlx.Array
}

// parametersOf lists the parameters of a pipeline, except those that are quantized in the model's
// files, with how each would be quantized to q, which may be nil.
func parametersOf(p *models.Pipeline, q *mlx.Quantization) (all []*parameter) {
	for _, c := range p.Components() {
		quantize := c.LayerQuantizer(q)
		for _, param := range nn.Parameters(c.Model) {
			if param.Array == nil || param.Quantization() != nil || !param.Dtype().IsFloat() {
				continue
			}
			w := &parameter{Parameter: param, module: hooks.Parent(c.Name + "." + param.Name), original: param.Array}
			if quantize != nil {
				w.quantization = quantize(param)
			}
			all = append(all, w)
		}
	}
	return all
}

// notLoaded returns the name of a component of which no parameter is loaded, or "".
func notLoaded(p *models.Pipeline) string {
	for _, c := range p.Components() {
		if !slices.ContainsFunc(nn.Parameters(c.Model), func(param nn.Parameter) bool { return param.Array != nil }) {
			return c.Name
		}
	}
	return ""
}

// set changes the parameter's value.
func (p *parameter) set(a *mlx.Array) { p.Array = a }

// lowered returns the original value cast to a dtype, and quantized and dequantized in it if it
// would be.
func (p *parameter) lowered(dtype mlx.Dtype) *mlx.Array {
	return mlx.Scope(func() *mlx.Array {
		a := p.cast(dtype)
		if p.quantization != nil {
			a = a.Quantize(*p.quantization).Dequantize(dtype)
		}
		mlx.Eval(a)
		return a
	})
}

// cast returns the original value cast to a dtype. In a float32 model it keeps its own, in which it
// is exact.
func (p *parameter) cast(dtype mlx.Dtype) *mlx.Array {
	if dtype == mlx.Float32 {
		return p.original
	}
	return p.original.AsType(dtype)
}
