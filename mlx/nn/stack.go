package nn

import (
	"reflect"
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// A Stack is several linear layers with the same input. On a GPU, [Load] makes their weights views
// of one matrix, so that one product computes all of them: the larger product is faster.
type Stack struct {
	layers []*Linear

	weight, bias Param        // of all layers, one after the other; not loaded if they are not joined
	views        []*mlx.Array // the layers' weights as views of weight
}

// NewStack declares a stack. Its layers are fields of the module too, which name their weights.
func NewStack(layers ...*Linear) Stack { return Stack{layers: layers} }

// Forward returns the outputs of the layers for x [B, L, in].
func (s *Stack) Forward(x *mlx.Array) []mlx.Columns {
	if !s.joined() {
		out := make([]mlx.Columns, len(s.layers))
		for i, l := range s.layers {
			out[i] = mlx.AllColumns(l.Forward(x))
		}
		return out
	}
	all := s.layers[0].Fused("nn.Stack.Forward", func() *mlx.Array {
		for _, l := range s.layers {
			l.Weight.used()
			l.Bias.used()
		}
		return project(&s.weight, &s.bias, x)
	}, func() *mlx.Array {
		each := make([]*mlx.Array, len(s.layers))
		for i, l := range s.layers {
			each[i] = l.Forward(x)
		}
		return mlx.Concat(-1, each...)
	})
	return s.columns(all)
}

// columns returns the layers' outputs in those of all.
func (s *Stack) columns(all *mlx.Array) (out []mlx.Columns) {
	from := 0
	for _, l := range s.layers {
		out = append(out, mlx.Columns{X: all, From: from, Size: l.Out()})
		from += l.Out()
	}
	return out
}

// Row returns the layers' outputs for the norm of one row, x or if more is not nil the sum of both, and this row. If
// gated is set the output is SwiGLU of the two layers'. It returns nil if the kernel cannot compute that, and where it has not
// been measured: it is for CUDA. Hooks see nothing.
func (s *Stack) Row(norm *RMSNorm, x, more *mlx.Array, gated bool) (sum *mlx.Array, out []mlx.Columns) {
	w, b := &s.weight, &s.bias
	plainNorm := norm.Offset == 0 && norm.Weight.Array != nil
	if mlx.CurrentDevice().Backend() != mlx.BackendCUDA || !s.joined() || w.packed != nil || gated && b.Array != nil || !plainNorm {
		return nil, nil
	}
	plain := norm.Plain(x.Dtype(), nil, nil)
	p := mlx.RowProduct{Weight: w.Array, Bias: b.Array, Norm: &plain, Gated: gated}
	sum, y := p.Apply(x, more)
	if y == nil {
		return nil, nil
	}
	if gated {
		return sum, []mlx.Columns{mlx.AllColumns(y)}
	}
	return sum, s.columns(y)
}

// joined reports whether one matrix serves all layers: none has an adapter or another weight.
func (s *Stack) joined() bool {
	if s.weight.Array == nil {
		return false
	}
	for i, l := range s.layers {
		if len(l.Adapters) > 0 || l.Weight.Array != s.views[i] {
			return false
		}
	}
	return true
}

// join joins the layers' weights if they have the same form.
func (s *Stack) join() {
	if len(s.layers) == 0 || s.layers[0].Weight.Array == nil {
		return
	}
	weights, biases := make([]*Param, len(s.layers)), make([]*Param, len(s.layers))
	for i, l := range s.layers {
		weights[i], biases[i] = &l.Weight, &l.Bias
	}
	if !alike(weights) || !alike(biases) {
		return
	}
	s.weight = joinParams(weights)
	s.weight.decodes = weights[0].decodes
	if biases[0].Array != nil {
		s.bias = joinParams(biases)
	}
	s.views = nil
	for _, w := range weights {
		s.views = append(s.views, w.Array)
	}
}

// alike reports whether parameters are all loaded in the same form, or all not.
func alike(params []*Param) bool {
	for _, p := range params {
		q, first := p.Arrays(), params[0].Arrays()
		if len(q) != len(first) || !reflect.DeepEqual(p.Quantization(), params[0].Quantization()) {
			return false
		}
		for i := range q {
			if q[i].Dtype() != first[i].Dtype() || !slices.Equal(q[i].Shape()[1:], first[i].Shape()[1:]) {
				return false
			}
		}
	}
	return true
}

// joinParams concatenates the rows of parameters, which become views of the result.
func joinParams(params []*Param) (all Param) {
	parts := len(params[0].Arrays())
	arrays := make([]*mlx.Array, parts)
	views := make([][]*mlx.Array, len(params))
	for part := range parts {
		rows := make([]*mlx.Array, len(params))
		for i, p := range params {
			rows[i] = p.Arrays()[part]
		}
		made := mlx.Scopes(func() []*mlx.Array {
			joined := mlx.Concat(0, rows...)
			out, from := []*mlx.Array{joined}, 0
			for _, r := range rows {
				out = append(out, joined.Slice(0, from, from+r.Dim(0)))
				from += r.Dim(0)
			}
			mlx.Eval(out...)
			return out
		})
		arrays[part] = made[0]
		for i := range params {
			views[i] = append(views[i], made[1+i])
		}
	}
	quantization := params[0].Quantization()
	mlx.Keep(arrays...)
	for i, p := range params {
		mlx.Keep(views[i]...)
		p.Free()
		p.set(views[i], quantization)
	}
	all.set(arrays, quantization)
	return all
}

// set sets the arrays of a parameter, in the order of [Param.Arrays].
func (p *Param) set(arrays []*mlx.Array, q *mlx.Quantization) {
	p.Array = arrays[0]
	if q != nil {
		p.packed = q.Of(arrays)
	}
}

// joinStacks joins the weights of the model's stacks.
func joinStacks(model any) {
	walk(reflect.ValueOf(model), at{}, visitor{stack: (*Stack).join})
}

// Free frees the parameters of a model, and by its method Forget, if it has one, what it keeps of them in another form. It can be
// loaded again.
func Free(model any) {
	if m, ok := model.(interface{ Forget() }); ok {
		m.Forget()
	}
	for _, p := range Parameters(model) {
		p.Free()
	}
	walk(reflect.ValueOf(model), at{}, visitor{stack: func(s *Stack) {
		s.weight.Free()
		s.bias.Free()
	}})
}
