package hints

import (
	"math"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// A tensor has its values on the host, in row-major order.
type tensor struct {
	name  string
	shape []int
	v     []float64
}

func hostTensor(name string, a *mlx.Array) tensor {
	f := a.Floats()
	t := tensor{name, a.Shape(), make([]float64, len(f))}
	for i, x := range f {
		t.v[i] = float64(x)
	}
	return t
}

// last returns the length of the last axis.
func (t tensor) last() int { return t.shape[len(t.shape)-1] }

// around returns the number of indices before and after an axis.
func (t tensor) around(axis int) (outer, inner int) {
	return checkpoint.Len(t.shape[:axis]), checkpoint.Len(t.shape[axis+1:])
}

// apply returns f of every value.
func (t tensor) apply(f func(x float64) float64) tensor {
	out := tensor{t.name, t.shape, make([]float64, len(t.v))}
	for i, x := range t.v {
		out.v[i] = f(x)
	}
	return out
}

// with combines the values of two tensors. Those of u repeat, as a vector's along the rows.
func (t tensor) with(u tensor, f func(x, y float64) float64) tensor {
	out := tensor{t.name, t.shape, make([]float64, len(t.v))}
	for i, x := range t.v {
		out.v[i] = f(x, u.v[i%len(u.v)])
	}
	return out
}

func times(x, y float64) float64 { return x * y }
func plus(x, y float64) float64  { return x + y }
func minus(x, y float64) float64 { return x - y }

func dot(a, b tensor) float64 {
	sum := 0.0
	for i, x := range a.v {
		sum += x * b.v[i]
	}
	return sum
}

func norm(t tensor) float64 { return math.Sqrt(dot(t, t)) }

// distance is the norm of the difference.
func distance(a, b tensor) float64 {
	sum := 0.0
	for i, x := range a.v {
		d := x - b.v[i]
		sum += d * d
	}
	return math.Sqrt(sum)
}

// moments returns mean and standard deviation.
func moments(v []float64) (mean, std float64) {
	s := checkpoint.Summarize(v)
	return float64(s.Mean), float64(s.Std)
}

// row returns a row of the last axis.
func (t tensor) row(i int) tensor {
	d := t.last()
	return tensor{t.name, []int{d}, t.v[i*d : (i+1)*d]}
}

// rows returns the tensor as a matrix of its rows.
func (t tensor) rows() tensor { return t.reshape(len(t.v)/t.last(), t.last()) }

// columns returns a part of the last axis.
func (t tensor) columns(from, to int) tensor {
	d := t.last()
	shape := slices.Clone(t.shape)
	shape[len(shape)-1] = to - from
	out := tensor{t.name, shape, make([]float64, 0, len(t.v)/d*(to-from))}
	for i := 0; i < len(t.v); i += d {
		out.v = append(out.v, t.v[i+from:i+to]...)
	}
	return out
}

// reshape returns the same values in another shape.
func (t tensor) reshape(shape ...int) tensor { return tensor{t.name, shape, t.v} }

// permute returns a copy with the axes in another order.
func (t tensor) permute(axes ...int) tensor {
	out := tensor{t.name, nil, make([]float64, 0, len(t.v))}
	var visit func(axes []int, at int)
	visit = func(axes []int, at int) {
		if len(axes) == 0 {
			out.v = append(out.v, t.v[at])
			return
		}
		_, stride := t.around(axes[0])
		for i := range t.shape[axes[0]] {
			visit(axes[1:], at+i*stride)
		}
	}
	visit(axes, 0)
	for _, a := range axes {
		out.shape = append(out.shape, t.shape[a])
	}
	return out
}

// affine returns x times a factor plus an offset for each index of an axis, fitted to y by
// least squares. Without offset only the factors are fitted.
func affine(x, y tensor, axis int, offset bool) (fitted tensor, slopes, offsets []float64) {
	n := x.shape[axis]
	_, inner := x.around(axis)
	count := float64(len(x.v) / n)
	sx, sy, sxx, sxy := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	for i, v := range x.v {
		c := i / inner % n
		sxx[c] += v * v
		sxy[c] += v * y.v[i]
		if offset {
			sx[c] += v
			sy[c] += y.v[i]
		}
	}
	slopes, offsets = make([]float64, n), make([]float64, n)
	for c := range n {
		if d := count*sxx[c] - sx[c]*sx[c]; d > 0 {
			slopes[c] = (count*sxy[c] - sx[c]*sy[c]) / d
		}
		offsets[c] = (sy[c] - slopes[c]*sx[c]) / count
	}
	return x.affine(axis, slopes, offsets), slopes, offsets
}

// affine applies a factor and an offset for each index of an axis.
func (t tensor) affine(axis int, slopes, offsets []float64) tensor {
	_, inner := t.around(axis)
	out := tensor{t.name, t.shape, make([]float64, len(t.v))}
	for i, v := range t.v {
		c := i / inner % t.shape[axis]
		out.v[i] = slopes[c]*v + offsets[c]
	}
	return out
}
