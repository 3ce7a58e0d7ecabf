package lora

import (
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// An update is what one file changes of one parameter.
type update struct {
	piece
	file   *file
	module string // as the file has it, for messages
	// ofLinear says of a bias that it is a linear layer's.
	ofLinear bool
	delta    delta
	scale    float64 // of delta, with the file's strength
	// DoRA: the norms that the changed weight gets, [out] or, along the inputs, [in].
	norms  *tensor
	inputs bool
	// LyCORIS' DoRA is computed at full strength, and then its change is multiplied;
	// PEFT's has only its delta multiplied.
	strength float64
}

// A delta is a change of a weight [out, in], before it is scaled.
type delta interface {
	// tensors are those that it is made of. If one is zero, so is the change.
	tensors() []*tensor
	// dense is the whole of it in float32, scaled, of which pick takes rows.
	dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array
	// beside prepares to compute it of inputs: it returns the arrays that are needed,
	// and what computes with them.
	beside(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product)
}

// A product takes x [..., in] to [..., out] by some arrays, and scales that.
type product func(x *mlx.Array, arrays []*mlx.Array, scale float64) *mlx.Array

// pick takes the update's rows of an array.
func (u *update) pick(x *mlx.Array) *mlx.Array {
	if u.from != 0 || u.to != x.Dim(0) {
		x = x.Slice(0, u.from, u.to)
	}
	if u.swap {
		half := x.Dim(0) / 2
		x = mlx.Concat(0, x.Slice(0, half, 2*half), x.Slice(0, 0, half))
	}
	return x
}

// zero says whether the update is one that changes nothing.
func (u *update) zero() (bool, error) {
	if u.norms != nil {
		return false, nil
	}
	for _, t := range u.delta.tensors() {
		data, err := t.bytes()
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			return true, nil
		}
	}
	return false, nil
}

// fixed says whether the update cannot run beside its layer.
func (u *update) fixed() bool {
	return u.inputs || u.Kind() != nn.LinearWeight && !(strings.HasSuffix(u.Name, ".bias") && u.ofLinear)
}

// bake changes w, float32 in the parameter's shape in memory. Before is what it
// was before all updates.
func (u *update) bake(w, before *mlx.Array) *mlx.Array {
	if u.file.strength == 0 {
		return w
	}
	d := u.delta.dense(u.pick, u.scale).Reshape(w.Shape()...)
	if u.norms == nil {
		return w.Add(d)
	}
	changed := w.Add(d).Mul(u.factors(before.Add(d)))
	if u.strength == 1 {
		return changed
	}
	return w.Add(changed.Sub(w).Times(u.strength))
}

// factors are what takes the rows of w [out, in], or its columns, to DoRA's norms:
// [out, 1] or [1, in] in float32.
func (u *update) factors(w *mlx.Array) *mlx.Array {
	norms := u.norms.wide()
	if u.inputs {
		return norms.Reshape(1, -1).Div(w.Square().Sum(0).Sqrt())
	}
	return u.pick(norms.Reshape(-1)).Reshape(-1, 1).Div(w.Square().Sum(1).Sqrt())
}

// attach makes an adapter of the update.
func (u *update) attach(s *Set, layer *nn.Dense) *adapter {
	a := &adapter{set: s, scale: u.scale, strength: u.strength}
	if u.file.strength == 0 {
		return a
	}
	made := mlx.Scopes(func() []*mlx.Array {
		var arrays []*mlx.Array
		if strings.HasSuffix(u.Name, ".bias") {
			arrays = []*mlx.Array{u.delta.dense(u.pick, 1)}
			a.product = func(_ *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array { return w[0].Times(scale) }
		} else {
			arrays, a.product = u.delta.beside(u.pick)
		}
		for i := range arrays {
			arrays[i] = arrays[i].Contiguous()
		}
		if u.norms != nil {
			w := layer.Weight.As(mlx.Float32).Add(u.delta.dense(u.pick, u.scale))
			arrays = append(arrays, u.factors(w).Reshape(-1))
			a.dora = true
		}
		mlx.Eval(arrays...)
		for _, x := range arrays {
			if !x.AllFinite() {
				throw("LoRA %s: makes values of %s NaN or infinite", u.file.Name, u.Name)
			}
		}
		return arrays
	})
	for _, x := range made {
		mlx.Keep(x)
	}
	a.arrays = made
	return a
}

// An adapter is an update beside a linear layer. It computes in the dtype of the
// layer's input.
type adapter struct {
	set      *Set
	scale    float64
	strength float64
	arrays   []*mlx.Array
	product  product // nil for a scale of 0
	dora     bool    // the last array is its factors
}

// Apply implements nn.Adapter.
func (a *adapter) Apply(x, y *mlx.Array) *mlx.Array {
	if a.product == nil {
		return y
	}
	arrays := a.arrays
	var factors *mlx.Array
	if a.dora {
		arrays, factors = arrays[:len(arrays)-1], arrays[len(arrays)-1]
	}
	cast := make([]*mlx.Array, len(arrays))
	for i, w := range arrays {
		cast[i] = w.AsType(x.Dtype())
	}
	d := a.product(x, cast, a.scale)
	if factors == nil {
		return y.Add(d)
	}
	wide := y.AsType(mlx.Float32) // factors are near 1
	changed := wide.Add(d.AsType(mlx.Float32)).Mul(factors)
	if a.strength != 1 {
		changed = wide.Add(changed.Sub(wide).Times(a.strength))
	}
	return changed.AsType(y.Dtype())
}

// low is up·down: [out, rank] and [rank, in].
type low struct{ down, up *tensor }

func (l low) tensors() []*tensor { return []*tensor{l.up, l.down} }

func (l low) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	return pick(l.up.wide()).Matmul(l.down.wide().Times(scale))
}

func (l low) beside(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{l.down.array(), pick(l.up.array())}, func(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
		return x.Matmul(w[0].T()).Times(scale).Matmul(w[1].T())
	}
}

// full is a change as it is.
type full struct{ diff *tensor }

func (f full) tensors() []*tensor { return []*tensor{f.diff} }

func (f full) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	return pick(f.diff.wide()).Times(scale)
}

func (f full) beside(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{pick(f.diff.array())}, matmulT
}

// matmulT is x·Wᵀ.
func matmulT(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
	return x.Matmul(w[0].T()).Times(scale)
}

// factor is a matrix, or the product of two.
type factor struct{ whole, a, b *tensor }

func (f factor) tensors() []*tensor {
	return slices.DeleteFunc([]*tensor{f.whole, f.a, f.b}, func(t *tensor) bool { return t == nil })
}

func (f factor) shape() []int {
	if f.whole != nil {
		return f.whole.Shape
	}
	return []int{f.a.Shape[0], f.b.Shape[1]}
}

func (f factor) wide() *mlx.Array {
	if f.whole != nil {
		return f.whole.wide()
	}
	return f.a.wide().Matmul(f.b.wide())
}

// kron is LoKr: the Kronecker product of w1 [a, b] and w2 [c, d], [a·c, b·d].
type kron struct{ w1, w2 factor }

func (k kron) tensors() []*tensor { return append(k.w1.tensors(), k.w2.tensors()...) }

func (k kron) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	w1, w2 := k.w1.wide().Times(scale), k.w2.wide()
	a, b, c, d := w1.Dim(0), w1.Dim(1), w2.Dim(0), w2.Dim(1)
	return pick(w1.Reshape(a, 1, b, 1).Mul(w2.Reshape(1, c, 1, d)).Reshape(a*c, b*d))
}

// beside uses that kron(w1, w2)·x is w1·X·w2ᵀ for x as X [b, d].
func (k kron) beside(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	w1, w2 := k.w1.wide(), k.w2.wide()
	a, b, c, d := w1.Dim(0), w1.Dim(1), w2.Dim(0), w2.Dim(1)
	return []*mlx.Array{w1, w2}, func(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
		shape := x.Shape()
		y := w[0].Times(scale).Matmul(x.Reshape(-1, b, d)).Matmul(w[1].T()).Reshape(-1, a*c)
		y = pick(y.T()).T()
		shape[len(shape)-1] = y.Dim(1)
		return y.Reshape(shape...)
	}
}

// hadamard is LoHa: the elements of one matrix by those of another, both products.
type hadamard struct{ w1, w2 factor }

func (h hadamard) tensors() []*tensor { return append(h.w1.tensors(), h.w2.tensors()...) }

func (h hadamard) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	return pick(h.w1.wide()).Mul(pick(h.w2.wide())).Times(scale)
}

func (h hadamard) beside(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{h.dense(pick, 1)}, matmulT
}
