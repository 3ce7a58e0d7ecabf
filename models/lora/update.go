package lora

import (
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// An update is the change of one parameter by one file.
type update struct {
	piece
	file       *file
	module     string // the module's name in the file, for messages
	linearBias bool   // whether the parameter is the bias of a linear layer
	delta      delta
	scale      float64 // the factor of delta, including the file's strength
	// norms are the norms of the weight that DoRA sets: [out] or, along the inputs, [in].
	// It is nil without DoRA.
	norms       *tensor
	alongInputs bool
	// strength multiplies the whole change of LyCORIS' DoRA. It is 1 for PEFT's DoRA,
	// where scale contains the strength.
	strength float64
}

// A delta is a change of a weight [out, in], before scaling.
type delta interface {
	// tensors returns the tensors of the change. If one of them is zero, so is the change.
	tensors() []*tensor
	// dense computes the scaled change in float32. pick selects its rows.
	dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array
	// runtime returns a function that applies the change to the inputs of a layer, and
	// the arrays that this function needs. pick selects the rows of the change.
	runtime(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product)
}

// A product multiplies x [..., in] with a change, given as arrays, and scales the
// result [..., out].
type product func(x *mlx.Array, arrays []*mlx.Array, scale float64) *mlx.Array

// pick selects the update's rows of an array.
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

// zero reports whether the update changes nothing.
func (u *update) zero() (bool, error) {
	if u.norms != nil {
		return false, nil
	}
	for _, t := range u.delta.tensors() {
		data, err := t.read(t.Tensor)
		if err != nil {
			return false, err
		}
		if !slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			return true, nil
		}
	}
	return false, nil
}

// mustBake reports whether the update cannot be computed at run time.
func (u *update) mustBake() bool {
	return u.alongInputs || u.Kind() != nn.LinearWeight && !(strings.HasSuffix(u.Name, ".bias") && u.linearBias)
}

// bake returns w with the update. w is float32 and has the parameter's shape in memory;
// before is its value before all updates.
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

// factors returns the factors that scale the rows of w [out, in], or its columns, to
// DoRA's norms: [out, 1] or [1, in] in float32.
func (u *update) factors(w *mlx.Array) *mlx.Array {
	norms := u.norms.asFloat32()
	if u.alongInputs {
		return norms.Reshape(1, -1).Div(w.Square().Sum(0).Sqrt())
	}
	return u.pick(norms.Reshape(-1)).Reshape(-1, 1).Div(w.Square().Sum(1).Sqrt())
}

// attach returns an adapter that computes the update at run time.
func (u *update) attach(s *Set, layer *nn.Linear) *adapter {
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
			arrays, a.product = u.delta.runtime(u.pick)
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

// An adapter is an update that is computed next to a linear layer, in the dtype of the
// layer's input.
type adapter struct {
	set      *Set
	scale    float64
	strength float64
	arrays   []*mlx.Array
	product  product // nil for a scale of 0
	dora     bool    // the last array holds DoRA's factors
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
	wide := y.AsType(mlx.Float32) // because factors are near 1
	changed := wide.Add(d.AsType(mlx.Float32)).Mul(factors)
	if a.strength != 1 {
		changed = wide.Add(changed.Sub(wide).Times(a.strength))
	}
	return changed.AsType(y.Dtype())
}

// lowRank is the product of lora_B [out, rank] and lora_A [rank, in]. It leaves the last inputs as they are.
type lowRank struct {
	factor
	padding int // number of the last inputs
}

func (l lowRank) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	change := pick(l.a.asFloat32()).Matmul(l.b.asFloat32().Times(scale))
	if l.padding == 0 {
		return change
	}
	return change.Pad([]int{0, 0}, []int{0, l.padding}, 0)
}

func (l lowRank) runtime(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{l.b.array(), pick(l.a.array())}, func(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
		if last := x.Ndim() - 1; l.padding > 0 {
			x = x.Slice(last, 0, x.Dim(last)-l.padding)
		}
		return x.Matmul(w[0].T()).Times(scale).Matmul(w[1].T())
	}
}

// difference is a change that is stored as it is.
type difference struct{ diff *tensor }

func (f difference) tensors() []*tensor { return []*tensor{f.diff} }

func (f difference) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	return pick(f.diff.asFloat32()).Times(scale)
}

func (f difference) runtime(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{pick(f.diff.array())}, matmulT
}

// matmulT computes x·Wᵀ.
func matmulT(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
	return x.Matmul(w[0].T()).Times(scale)
}

// factor is a matrix, or the product of two.
type factor struct{ whole, a, b *tensor }

func (f factor) tensors() []*tensor {
	return slices.DeleteFunc([]*tensor{f.whole, f.a, f.b}, func(t *tensor) bool { return t == nil })
}

// rank returns the rank of a product, 0 for a matrix.
func (f factor) rank() int {
	if f.b == nil {
		return 0
	}
	return f.b.Shape[0]
}

func (f factor) shape() []int {
	if f.whole != nil {
		return f.whole.Shape
	}
	return []int{f.a.Shape[0], f.b.Shape[1]}
}

func (f factor) asFloat32() *mlx.Array {
	if f.whole != nil {
		return f.whole.asFloat32()
	}
	return f.a.asFloat32().Matmul(f.b.asFloat32())
}

// kron is LoKr: the Kronecker product [a·c, b·d] of w1 [a, b] and w2 [c, d].
type kron struct{ w1, w2 factor }

func (k kron) tensors() []*tensor { return append(k.w1.tensors(), k.w2.tensors()...) }

func (k kron) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	w1, w2 := k.w1.asFloat32().Times(scale), k.w2.asFloat32()
	a, b, c, d := w1.Dim(0), w1.Dim(1), w2.Dim(0), w2.Dim(1)
	return pick(w1.Reshape(a, 1, b, 1).Mul(w2.Reshape(1, c, 1, d)).Reshape(a*c, b*d))
}

// runtime uses the identity kron(w1, w2)·x = w1·X·w2ᵀ for x reshaped to X [b, d].
func (k kron) runtime(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	w1, w2 := k.w1.asFloat32(), k.w2.asFloat32()
	a, b, c, d := w1.Dim(0), w1.Dim(1), w2.Dim(0), w2.Dim(1)
	return []*mlx.Array{w1, w2}, func(x *mlx.Array, w []*mlx.Array, scale float64) *mlx.Array {
		shape := x.Shape()
		y := w[0].Times(scale).Matmul(x.Reshape(-1, b, d)).Matmul(w[1].T()).Reshape(-1, a*c)
		y = pick(y.T()).T()
		shape[len(shape)-1] = y.Dim(1)
		return y.Reshape(shape...)
	}
}

// hadamard is LoHa: the element-wise product of two low-rank matrices.
type hadamard struct{ w1, w2 factor }

func (h hadamard) tensors() []*tensor { return append(h.w1.tensors(), h.w2.tensors()...) }

func (h hadamard) dense(pick func(*mlx.Array) *mlx.Array, scale float64) *mlx.Array {
	return pick(h.w1.asFloat32()).Mul(pick(h.w2.asFloat32())).Times(scale)
}

func (h hadamard) runtime(pick func(*mlx.Array) *mlx.Array) ([]*mlx.Array, product) {
	return []*mlx.Array{h.dense(pick, 1)}, matmulT
}
