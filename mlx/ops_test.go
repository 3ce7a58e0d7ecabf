package mlx_test

import (
	"math"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// nd is an array computed in plain Go.
type nd struct {
	shape []int
	data  []float64
}

func host(data []float32, shape ...int) nd {
	out := nd{shape, make([]float64, len(data))}
	for i, v := range data {
		out.data[i] = float64(v)
	}
	return out
}

func (a nd) mlx() *mlx.Array {
	f := make([]float32, len(a.data))
	for i, v := range a.data {
		f[i] = float32(v)
	}
	return mlx.FromFloat32(f, a.shape...)
}

func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// build fills a shape with f of every index.
func build(shape []int, f func(at []int) float64) nd {
	out := nd{shape, make([]float64, size(shape))}
	at := make([]int, len(shape))
	for i := range out.data {
		out.data[i] = f(at)
		for axis := len(shape) - 1; axis >= 0; axis-- {
			if at[axis]++; at[axis] < shape[axis] {
				break
			}
			at[axis] = 0
		}
	}
	return out
}

// at returns the element at an index. Missing leading axes and axes of size 1 are broadcast.
func (a nd) at(index ...int) float64 {
	index = index[len(index)-len(a.shape):]
	n := 0
	for axis, d := range a.shape {
		i := index[axis]
		if d == 1 {
			i = 0
		}
		n = n*d + i
	}
	return a.data[n]
}

func each(a nd, f func(float64) float64) nd {
	return build(a.shape, func(at []int) float64 { return f(a.at(at...)) })
}

// both broadcasts b to a's shape or a to b's.
func both(a, b nd, f func(x, y float64) float64) nd {
	shape := a.shape
	if len(b.shape) > len(shape) {
		shape = b.shape
	}
	full := make([]int, len(shape))
	for i := range full {
		full[i] = 1
		for _, s := range [][]int{a.shape, b.shape} {
			if j := i - len(shape) + len(s); j >= 0 {
				full[i] = max(full[i], s[j])
			}
		}
	}
	return build(full, func(at []int) float64 { return f(a.at(at...), b.at(at...)) })
}

// along reduces one axis, which stays as size 1.
func along(a nd, axis int, f func([]float64) float64) nd {
	shape := append([]int{}, a.shape...)
	shape[axis] = 1
	return build(shape, func(at []int) float64 {
		var line []float64
		index := append([]int{}, at...)
		for i := range a.shape[axis] {
			index[axis] = i
			line = append(line, a.at(index...))
		}
		return f(line)
	})
}

// rows maps every row of the last axis.
func rows(a nd, f func(in, out []float64)) nd {
	out := nd{a.shape, make([]float64, len(a.data))}
	n := a.shape[len(a.shape)-1]
	for i := 0; i < len(a.data); i += n {
		f(a.data[i:i+n], out.data[i:i+n])
	}
	return out
}

func sum(line []float64) (s float64) {
	for _, v := range line {
		s += v
	}
	return s
}

func mean(line []float64) float64 { return sum(line) / float64(len(line)) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func softmax(in, out []float64) {
	largest := math.Inf(-1)
	for _, v := range in {
		largest = max(largest, v)
	}
	total := 0.0
	for i, v := range in {
		out[i] = math.Exp(v - largest)
		total += out[i]
	}
	for i := range out {
		out[i] /= total
	}
}

// attend is attention in plain Go; mask may be nil.
func attend(q, k, v nd, scale float64, mask func(b, h, i, j int) float64) nd {
	b, h, lq, d := q.shape[0], q.shape[1], q.shape[2], v.shape[3]
	lk, group := k.shape[2], h/k.shape[1]
	scores := build([]int{b, h, lq, lk}, func(at []int) float64 {
		s := 0.0
		for c := range q.shape[3] {
			s += q.at(at[0], at[1], at[2], c) * k.at(at[0], at[1]/group, at[3], c)
		}
		s *= scale
		if mask != nil {
			s += mask(at[0], at[1], at[2], at[3])
		}
		return s
	})
	p := rows(scores, softmax)
	return build([]int{b, h, lq, d}, func(at []int) float64 {
		s := 0.0
		for j := range lk {
			s += p.at(at[0], at[1], at[2], j) * v.at(at[0], at[1]/group, j, at[3])
		}
		return s
	})
}

func convolve(x, w nd, stride, padding int) nd {
	out := func(n, k int) int { return (n+2*padding-k)/stride + 1 }
	shape := []int{x.shape[0], out(x.shape[1], w.shape[1]), out(x.shape[2], w.shape[2]), w.shape[0]}
	return build(shape, func(at []int) float64 {
		s := 0.0
		for ky := range w.shape[1] {
			for kx := range w.shape[2] {
				y, xx := at[1]*stride+ky-padding, at[2]*stride+kx-padding
				if y < 0 || xx < 0 || y >= x.shape[1] || xx >= x.shape[2] {
					continue
				}
				for c := range w.shape[3] {
					s += x.at(at[0], y, xx, c) * w.at(at[3], ky, kx, c)
				}
			}
		}
		return s
	})
}

// convolve3d is the 3-D convolution of x [N, D, H, W, Cin] with w [Cout, kD, kH, kW, Cin].
func convolve3d(x, w nd) nd {
	shape := []int{x.shape[0], 0, 0, 0, w.shape[0]}
	for i := 1; i < 4; i++ {
		shape[i] = x.shape[i] - w.shape[i] + 1
	}
	return build(shape, func(at []int) float64 {
		s := 0.0
		for kz := range w.shape[1] {
			for ky := range w.shape[2] {
				for kx := range w.shape[3] {
					for c := range w.shape[4] {
						s += x.at(at[0], at[1]+kz, at[2]+ky, at[3]+kx, c) * w.at(at[4], kz, ky, kx, c)
					}
				}
			}
		}
		return s
	})
}

func TestOps(t *testing.T) {
	r := func(seed uint64, shape ...int) nd { return host(mlxtest.Random(seed, size(shape)), shape...) }
	a, b, row, col := r(1, 3, 5, 7), r(2, 3, 5, 7), r(3, 7), r(4, 5, 1)
	positive := each(a, func(v float64) float64 { return float64(float32(math.Abs(v) + 0.1)) })
	wide := each(a, func(v float64) float64 { return float64(float32(v * 8)) })
	special := nd{[]int{6}, []float64{0, -1.5, math.Inf(1), math.Inf(-1), math.NaN(), 1e38}}
	halves := nd{[]int{11}, []float64{-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49999997, -0.75, 7, 8388609}}
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	add := func(x, y float64) float64 { return x + y }
	mul := func(x, y float64) float64 { return x * y }
	x, y, c := r(5, 2, 9, 11), r(6, 2, 11, 13), r(7, 13)
	matmul := func(x, y nd) nd {
		n := len(x.shape)
		shape := append(append([]int{}, x.shape[:n-1]...), y.shape[len(y.shape)-1])
		return build(shape, func(at []int) float64 {
			s := 0.0
			for k := range x.shape[n-1] {
				left := append(append([]int{}, at[:n-1]...), k)
				right := append(append([]int{}, at[:n-2]...), k, at[n-1])
				s += x.at(left...) * y.at(right...)
			}
			return s
		})
	}
	permuted := func(a nd, axes ...int) nd {
		shape := make([]int, len(axes))
		for i, axis := range axes {
			shape[i] = a.shape[axis]
		}
		return build(shape, func(at []int) float64 {
			from := make([]int, len(axes))
			for i, axis := range axes {
				from[axis] = at[i]
			}
			return a.at(from...)
		})
	}
	q, k, v := r(10, 2, 6, 9, 8), r(11, 2, 2, 13, 8), r(12, 2, 2, 13, 8)
	kSame, vSame := r(13, 2, 6, 9, 8), r(14, 2, 6, 9, 8)
	mask := r(15, 2, 1, 9, 13)
	image, kernel := r(16, 2, 9, 11, 3), r(17, 4, 3, 3, 3)
	video, kernel3d := r(40, 2, 4, 5, 6, 3), r(41, 4, 3, 2, 3, 3)
	weight, bias := r(18, 7), r(19, 7)

	layerNorm := func(eps float64, weight, bias func(i int) float64) nd {
		return rows(wide, func(in, out []float64) {
			m, s := mean(in), 0.0
			for _, v := range in {
				s += (v - m) * (v - m)
			}
			for i, v := range in {
				out[i] = (v-m)/math.Sqrt(s/float64(len(in))+eps)*weight(i) + bias(i)
			}
		})
	}
	one, zero := func(int) float64 { return 1 }, func(int) float64 { return 0 }
	rmsNorm := func(eps float64, weight func(i int) float64) nd {
		return rows(wide, func(in, out []float64) {
			s := 0.0
			for _, v := range in {
				s += v * v
			}
			for i, v := range in {
				out[i] = v / math.Sqrt(s/float64(len(in))+eps) * weight(i)
			}
		})
	}

	cases := []struct {
		name      string
		got       func() *mlx.Array
		want      nd
		tolerance float64 // of the largest value; 0 is exact
	}{
		{"Add", func() *mlx.Array { return a.mlx().Add(b.mlx()) }, both(a, b, add), 1e-7},
		{"Add a row", func() *mlx.Array { return a.mlx().Add(row.mlx()) }, both(a, row, add), 1e-7},
		{"Add a column", func() *mlx.Array { return col.mlx().Add(a.mlx()) }, both(col, a, add), 1e-7},
		{"Add outer", func() *mlx.Array { return col.mlx().Add(row.mlx()) }, both(col, row, add), 1e-7},
		{"Sub", func() *mlx.Array { return a.mlx().Sub(col.mlx()) }, both(a, col, func(x, y float64) float64 { return x - y }), 1e-7},
		{"Mul", func() *mlx.Array { return a.mlx().Mul(row.mlx()) }, both(a, row, mul), 1e-7},
		{"Div", func() *mlx.Array { return a.mlx().Div(positive.mlx()) },
			both(a, positive, func(x, y float64) float64 { return x / y }), 1e-7},
		{"Maximum", func() *mlx.Array { return a.mlx().Maximum(row.mlx()) }, both(a, row, math.Max), 0},
		{"Minimum", func() *mlx.Array { return a.mlx().Minimum(row.mlx()) }, both(a, row, math.Min), 0},
		{"Equal", func() *mlx.Array { return a.mlx().Round().Equal(b.mlx().Round()) },
			both(a, b, func(x, y float64) float64 { return truth(math.RoundToEven(x) == math.RoundToEven(y)) }), 0},
		{"Less", func() *mlx.Array { return a.mlx().Less(b.mlx()) }, both(a, b, func(x, y float64) float64 { return truth(x < y) }), 0},
		{"Less of equals", func() *mlx.Array { return a.mlx().Less(a.mlx()) }, each(a, func(float64) float64 { return 0 }), 0},
		{"GreaterEqual", func() *mlx.Array { return a.mlx().GreaterEqual(b.mlx()) },
			both(a, b, func(x, y float64) float64 { return truth(x >= y) }), 0},
		{"GreaterEqual of equals", func() *mlx.Array { return a.mlx().GreaterEqual(a.mlx()) },
			each(a, func(float64) float64 { return 1 }), 0},
		{"Or", func() *mlx.Array {
			return a.mlx().Less(mlx.Scalar(-0.5, mlx.Float32)).Or(b.mlx().Less(mlx.Scalar(-0.5, mlx.Float32)))
		}, both(a, b, func(x, y float64) float64 { return truth(x < -0.5 || y < -0.5) }), 0},
		{"And", func() *mlx.Array {
			return a.mlx().Less(mlx.Scalar(0.5, mlx.Float32)).And(b.mlx().Less(mlx.Scalar(0.5, mlx.Float32)))
		}, both(a, b, func(x, y float64) float64 { return truth(x < 0.5 && y < 0.5) }), 0},
		{"Not", func() *mlx.Array { return a.mlx().Less(b.mlx()).Not() },
			both(a, b, func(x, y float64) float64 { return truth(x >= y) }), 0},
		{"Power", func() *mlx.Array { return positive.mlx().Power(row.mlx()) }, both(positive, row, math.Pow), 1e-6},
		{"FloorDivide", func() *mlx.Array { return wide.mlx().FloorDivide(mlx.Scalar(0.7, mlx.Float32)) },
			each(wide, func(v float64) float64 { return math.Floor(v / 0.7) }), 0},
		{"Remainder", func() *mlx.Array { return wide.mlx().Remainder(mlx.Scalar(0.75, mlx.Float32)) },
			each(wide, func(v float64) float64 { return v - 0.75*math.Floor(v/0.75) }), 1e-6},
		{"Plus", func() *mlx.Array { return a.mlx().Plus(0.3) }, each(a, func(v float64) float64 { return v + 0.3 }), 1e-7},
		{"Times", func() *mlx.Array { return a.mlx().Times(-0.3) }, each(a, func(v float64) float64 { return v * -0.3 }), 2e-7},
		{"Over", func() *mlx.Array { return a.mlx().Over(0.3) }, each(a, func(v float64) float64 { return v / 0.3 }), 2e-7},
		{"Neg", func() *mlx.Array { return a.mlx().Neg() }, each(a, func(v float64) float64 { return -v }), 0},
		{"Abs", func() *mlx.Array { return a.mlx().Abs() }, each(a, math.Abs), 0},
		{"Exp", func() *mlx.Array { return a.mlx().Exp() }, each(a, math.Exp), 1e-6},
		{"Log", func() *mlx.Array { return positive.mlx().Log() }, each(positive, math.Log), 1e-6},
		{"Sin", func() *mlx.Array { return wide.mlx().Sin() }, each(wide, math.Sin), 1e-6},
		{"Cos", func() *mlx.Array { return wide.mlx().Cos() }, each(wide, math.Cos), 1e-6},
		{"Tanh", func() *mlx.Array { return a.mlx().Tanh() }, each(a, math.Tanh), 1e-6},
		{"Sigmoid", func() *mlx.Array { return wide.mlx().Sigmoid() }, each(wide, sigmoid), 1e-6},
		{"Square", func() *mlx.Array { return a.mlx().Square() }, each(a, func(v float64) float64 { return v * v }), 1e-7},
		{"Sqrt", func() *mlx.Array { return positive.mlx().Sqrt() }, each(positive, math.Sqrt), 1e-7},
		{"Rsqrt", func() *mlx.Array { return positive.mlx().Rsqrt() },
			each(positive, func(v float64) float64 { return 1 / math.Sqrt(v) }), 3e-7},
		{"SiLU", func() *mlx.Array { return wide.mlx().SiLU() }, each(wide, func(v float64) float64 { return v * sigmoid(v) }), 1e-6},
		{"Erf", func() *mlx.Array { return a.mlx().Erf() }, each(a, math.Erf), 1e-6},
		{"GELU", func() *mlx.Array { return wide.mlx().GELU() },
			each(wide, func(v float64) float64 { return v * (1 + math.Erf(v/math.Sqrt2)) / 2 }), 1e-6},
		{"GELUTanh", func() *mlx.Array { return wide.mlx().GELUTanh() }, each(wide, func(v float64) float64 {
			return v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))) / 2
		}), 1e-6},
		{"QuickGELU", func() *mlx.Array { return wide.mlx().QuickGELU() },
			each(wide, func(v float64) float64 { return v * sigmoid(1.702*v) }), 1e-6},
		{"IsFinite", func() *mlx.Array { return special.mlx().IsFinite() }, nd{[]int{6}, []float64{1, 1, 0, 0, 0, 1}}, 0},
		{"Round", func() *mlx.Array { return halves.mlx().Round() }, each(halves, math.RoundToEven), 0},
		{"Clip", func() *mlx.Array { return a.mlx().Clip(-0.5, 0.75) },
			each(a, func(v float64) float64 { return min(max(v, -0.5), 0.75) }), 0},
		{"Where", func() *mlx.Array { return mlx.Where(a.mlx().Less(b.mlx()), a.mlx(), row.mlx()) },
			build(a.shape, func(at []int) float64 {
				if a.at(at...) < b.at(at...) {
					return a.at(at...)
				}
				return row.at(at...)
			}), 0},
		{"AsType truncates", func() *mlx.Array { return wide.mlx().AsType(mlx.Int32) }, each(wide, math.Trunc), 0},

		{"Matmul", func() *mlx.Array { return x.mlx().Matmul(y.mlx()) }, matmul(x, y), 1e-6},
		{"Matmul, batch broadcast", func() *mlx.Array { return x.mlx().Matmul(y.mlx().Slice(0, 1, 2).Squeeze(0)) },
			matmul(x, nd{[]int{11, 13}, y.data[11*13:]}), 1e-6},
		{"Matmul, transposed", func() *mlx.Array { return x.mlx().Matmul(permuted(y, 0, 2, 1).mlx().T()) }, matmul(x, y), 1e-6},
		{"Addmm", func() *mlx.Array { return mlx.Addmm(c.mlx(), x.mlx(), y.mlx()) }, both(matmul(x, y), c, add), 1e-6},
		{"Conv2d", func() *mlx.Array { return image.mlx().Conv2d(kernel.mlx(), 1, 1) }, convolve(image, kernel, 1, 1), 1e-6},
		{"Conv2d, no padding", func() *mlx.Array { return image.mlx().Conv2d(kernel.mlx(), 1, 0) }, convolve(image, kernel, 1, 0), 1e-6},
		{"Conv2d, stride 2", func() *mlx.Array { return image.mlx().Conv2d(kernel.mlx(), 2, 1) }, convolve(image, kernel, 2, 1), 1e-6},
		{"Conv2d, stride 3, padding 2", func() *mlx.Array { return image.mlx().Conv2d(kernel.mlx(), 3, 2) },
			convolve(image, kernel, 3, 2), 1e-6},
		{"Conv3d", func() *mlx.Array { return video.mlx().Conv3d(kernel3d.mlx()) }, convolve3d(video, kernel3d), 1e-6},
		{"Conv2d, 1x1", func() *mlx.Array { return image.mlx().Conv2d(kernel.mlx().Slice(1, 1, 2).Slice(2, 2, 3), 1, 0) },
			convolve(image, build([]int{4, 1, 1, 3}, func(at []int) float64 { return kernel.at(at[0], 1, 2, at[3]) }), 1, 0), 1e-6},

		{"Mean", func() *mlx.Array { return a.mlx().Mean(1) }, along(a, 1, mean), 1e-6},
		{"Sum", func() *mlx.Array { return a.mlx().Sum(-1) }, along(a, 2, sum), 1e-6},
		{"Max", func() *mlx.Array { return a.mlx().Max(0) }, along(a, 0, func(l []float64) float64 {
			m := l[0]
			for _, v := range l {
				m = max(m, v)
			}
			return m
		}), 0},
		{"Min", func() *mlx.Array { return a.mlx().Min(-2) }, along(a, 1, func(l []float64) float64 {
			m := l[0]
			for _, v := range l {
				m = min(m, v)
			}
			return m
		}), 0},
		{"Softmax", func() *mlx.Array { return wide.mlx().Softmax() }, rows(wide, softmax), 1e-6},
		{"Softmax of large scores", func() *mlx.Array { return wide.mlx().Times(1e6).Softmax() },
			rows(each(wide, func(v float64) float64 { return float64(float32(v) * 1e6) }), softmax), 1e-6},
		{"RMSNorm", func() *mlx.Array { return wide.mlx().RMSNorm(weight.mlx(), 1e-3) },
			rmsNorm(float64(float32(1e-3)), func(i int) float64 { return weight.data[i] }), 1e-6},
		{"RMSNorm, no weight", func() *mlx.Array { return wide.mlx().RMSNorm(nil, 0.5) }, rmsNorm(0.5, one), 1e-6},
		{"LayerNorm", func() *mlx.Array { return wide.mlx().LayerNorm(weight.mlx(), bias.mlx(), 1e-3) },
			layerNorm(float64(float32(1e-3)), func(i int) float64 { return weight.data[i] },
				func(i int) float64 { return bias.data[i] }), 1e-6},
		{"LayerNorm, no weight", func() *mlx.Array { return wide.mlx().LayerNorm(nil, nil, 0.5) }, layerNorm(0.5, one, zero), 1e-6},
		{"Attention", func() *mlx.Array { return mlx.Attention(q.mlx(), kSame.mlx(), vSame.mlx(), 0.4, nil) },
			attend(q, kSame, vSame, 0.4, nil), 1e-6},
		{"Attention, grouped heads, longer keys", func() *mlx.Array { return mlx.Attention(q.mlx(), k.mlx(), v.mlx(), 0.4, nil) },
			attend(q, k, v, 0.4, nil), 1e-6},
		{"Attention, mask", func() *mlx.Array { return mlx.Attention(q.mlx(), k.mlx(), v.mlx(), 0.4, mask.mlx()) },
			attend(q, k, v, 0.4, func(b, h, i, j int) float64 { return mask.at(b, h, i, j) }), 1e-6},
		{"Attention, mask of infinities", func() *mlx.Array {
			hidden := build([]int{1, 1, 1, 13}, func(at []int) float64 {
				if at[3] > 8 {
					return math.Inf(-1)
				}
				return 0
			})
			return mlx.Attention(q.mlx(), k.mlx(), v.mlx(), 0.4, hidden.mlx())
		}, attend(q, k, v, 0.4, func(b, h, i, j int) float64 {
			if j > 8 {
				return math.Inf(-1)
			}
			return 0
		}), 1e-6},
		{"CausalAttention", func() *mlx.Array {
			return mlx.CausalAttention(q.mlx(), kSame.mlx().Slice(1, 0, 3), vSame.mlx().Slice(1, 0, 3), 0.4)
		},
			attend(q, build([]int{2, 3, 9, 8}, func(at []int) float64 { return kSame.at(at...) }),
				build([]int{2, 3, 9, 8}, func(at []int) float64 { return vSame.at(at...) }), 0.4,
				func(b, h, i, j int) float64 {
					if j > i {
						return math.Inf(-1)
					}
					return 0
				}), 1e-6},

		{"Reshape", func() *mlx.Array { return a.mlx().T().Reshape(5, -1) }, nd{[]int{5, 21}, permuted(a, 0, 2, 1).data}, 0},
		{"Transpose", func() *mlx.Array { return a.mlx().Transpose(2, 0, 1) }, permuted(a, 2, 0, 1), 0},
		{"T", func() *mlx.Array { return a.mlx().T() }, permuted(a, 0, 2, 1), 0},
		{"ExpandDims", func() *mlx.Array { return a.mlx().ExpandDims(-1).ExpandDims(1) }, nd{[]int{3, 1, 5, 7, 1}, a.data}, 0},
		{"Squeeze", func() *mlx.Array { return a.mlx().ExpandDims(1).Squeeze(-3) }, a, 0},
		{"BroadcastTo", func() *mlx.Array { return col.mlx().BroadcastTo(3, 5, 7) },
			build([]int{3, 5, 7}, func(at []int) float64 { return col.at(at...) }), 0},
		{"Contiguous", func() *mlx.Array { return a.mlx().T().Contiguous() }, permuted(a, 0, 2, 1), 0},
		{"Slice", func() *mlx.Array { return a.mlx().Slice(-2, 1, 4) },
			build([]int{3, 3, 7}, func(at []int) float64 { return a.at(at[0], at[1]+1, at[2]) }), 0},
		{"SliceUpdate", func() *mlx.Array { return a.mlx().SliceUpdate(-2, 1, b.mlx().Slice(1, 2, 4)) },
			build([]int{3, 5, 7}, func(at []int) float64 {
				if i := at[1]; i == 1 || i == 2 {
					return b.at(at[0], i+1, at[2])
				}
				return a.at(at...)
			}), 0},
		{"Split", func() *mlx.Array { return a.mlx().Split(7, -1)[5] },
			build([]int{3, 5, 1}, func(at []int) float64 { return a.at(at[0], at[1], 5) }), 0},
		{"Concat", func() *mlx.Array { return mlx.Concat(1, a.mlx(), b.mlx().Slice(1, 0, 2), a.mlx()) },
			build([]int{3, 12, 7}, func(at []int) float64 {
				switch i := at[1]; {
				case i < 5:
					return a.at(at[0], i, at[2])
				case i < 7:
					return b.at(at[0], i-5, at[2])
				default:
					return a.at(at[0], i-7, at[2])
				}
			}), 0},
		{"Concat, last axis", func() *mlx.Array { return mlx.Concat(-1, row.mlx(), c.mlx()) },
			nd{[]int{20}, append(append([]float64{}, row.data...), c.data...)}, 0},
		{"Pad", func() *mlx.Array { return a.mlx().Pad([]int{0, 1, 0}, []int{2, 0, 3}, -1.5) },
			build([]int{5, 6, 10}, func(at []int) float64 {
				if at[0] < 3 && at[1] >= 1 && at[2] < 7 {
					return a.at(at[0], at[1]-1, at[2])
				}
				return -1.5
			}), 0},
		{"TakeRows", func() *mlx.Array { return a.mlx().TakeRows([]int32{2, 0, 2, 1}) }, build([]int{4, 5, 7}, func(at []int) float64 {
			return a.at([]int{2, 0, 2, 1}[at[0]], at[1], at[2])
		}), 0},
		{"TakeRows, none", func() *mlx.Array { return a.mlx().TakeRows(nil) }, nd{[]int{0, 5, 7}, nil}, 0},

		{"Full", func() *mlx.Array { return mlx.Full(0.1, mlx.Float32, 2, 3) },
			nd{[]int{2, 3}, []float64{f32(0.1), f32(0.1), f32(0.1), f32(0.1), f32(0.1), f32(0.1)}}, 0},
		{"Zeros", func() *mlx.Array { return mlx.Zeros(mlx.Float32, 3) }, nd{[]int{3}, []float64{0, 0, 0}}, 0},
		{"Arange", func() *mlx.Array { return mlx.Arange(-1, 1, 0.25, mlx.Float32) },
			nd{[]int{8}, []float64{-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75}}, 0},
		{"Arange down", func() *mlx.Array { return mlx.Arange(3, 0, -1, mlx.Int32) }, nd{[]int{3}, []float64{3, 2, 1}}, 0},
		{"Arange of nothing", func() *mlx.Array { return mlx.Arange(3, 3, 1, mlx.Float32) }, nd{[]int{0}, nil}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				got := c.got()
				mlxtest.Same(t, "shape", got.Shape(), c.want.shape)
				near(t, c.name, got.Floats(), c.want.data, c.tolerance)
			})
		})
	}
}

func f32(v float64) float64 { return float64(float32(v)) }

// TestShapeQueries checks the methods that return sizes.
func TestShapeQueries(t *testing.T) {
	mlxtest.Do(t, func() {
		x := mlx.Zeros(mlx.BFloat16, 3, 5, 7)
		if x.Ndim() != 3 || x.Size() != 105 || x.Nbytes() != 210 || x.Dim(-1) != 7 || x.Dim(0) != 3 || x.String() != "bfloat16[3 5 7]" {
			t.Errorf("found %v: %d axes, %d elements, %d bytes", x, x.Ndim(), x.Size(), x.Nbytes())
		}
		s := mlx.Scalar(2, mlx.Float32)
		if s.Ndim() != 0 || s.Size() != 1 || len(s.Shape()) != 0 {
			t.Errorf("found %v for a scalar", s)
		}
		parts := mlx.Arange(0, 6, 1, mlx.Float32).Split(3, 0)
		if len(parts) != 3 {
			t.Fatalf("found %d parts", len(parts))
		}
		for i, p := range parts {
			mlxtest.Same(t, "part", p.Floats(), []float32{float32(2 * i), float32(2*i + 1)})
		}
		mlxtest.Same(t, "Argmax", mlx.FromFloat32([]float32{1, 5, 2, 7, 0, 3}, 2, 3).Argmax(1).Int32s(), []int32{1, 0})
		if !mlx.Full(1, mlx.Bool, 2, 2).All() || mlx.FromInt32([]int32{1, 0}).All() {
			t.Error("All is wrong")
		}
	})
}

// TestDtypes checks that operations keep small dtypes: a constant or a norm must not promote
// them.
func TestDtypes(t *testing.T) {
	ops := map[string]func(x *mlx.Array) *mlx.Array{
		"Plus":        func(x *mlx.Array) *mlx.Array { return x.Plus(0.1) },
		"Times":       func(x *mlx.Array) *mlx.Array { return x.Times(0.1) },
		"Over":        func(x *mlx.Array) *mlx.Array { return x.Over(0.1) },
		"Clip":        func(x *mlx.Array) *mlx.Array { return x.Clip(0, 1) },
		"Pad":         func(x *mlx.Array) *mlx.Array { return x.Pad([]int{0, 1}, []int{1, 0}, 2) },
		"SiLU":        func(x *mlx.Array) *mlx.Array { return x.SiLU() },
		"GELU":        func(x *mlx.Array) *mlx.Array { return x.GELU() },
		"GELUTanh":    func(x *mlx.Array) *mlx.Array { return x.GELUTanh() },
		"QuickGELU":   func(x *mlx.Array) *mlx.Array { return x.QuickGELU() },
		"Exp":         func(x *mlx.Array) *mlx.Array { return x.Exp() },
		"Mean":        func(x *mlx.Array) *mlx.Array { return x.Mean(0) },
		"Sum":         func(x *mlx.Array) *mlx.Array { return x.Sum(1) },
		"Softmax":     func(x *mlx.Array) *mlx.Array { return x.Softmax() },
		"RMSNorm":     func(x *mlx.Array) *mlx.Array { return x.RMSNorm(nil, 1e-6) },
		"LayerNorm":   func(x *mlx.Array) *mlx.Array { return x.LayerNorm(nil, nil, 1e-6) },
		"Matmul":      func(x *mlx.Array) *mlx.Array { return x.Matmul(x.T()) },
		"Addmm":       func(x *mlx.Array) *mlx.Array { return mlx.Addmm(x.Sum(0), x, x.T().Matmul(x)) },
		"Attention":   func(x *mlx.Array) *mlx.Array { x = x.Reshape(1, 1, 4, 4); return mlx.Attention(x, x, x, 1, nil) },
		"Reshape":     func(x *mlx.Array) *mlx.Array { return x.Reshape(16) },
		"TakeRows":    func(x *mlx.Array) *mlx.Array { return x.TakeRows([]int32{1}) },
		"Where":       func(x *mlx.Array) *mlx.Array { return mlx.Where(x.Less(x.T()), x, mlx.Scalar(0, x.Dtype())) },
		"BroadcastTo": func(x *mlx.Array) *mlx.Array { return x.BroadcastTo(2, 4, 4) },
	}
	for _, dtype := range []mlx.Dtype{mlx.BFloat16, mlx.Float16, mlx.Float32} {
		for name, op := range ops {
			t.Run(name+" of "+dtype.String(), func(t *testing.T) {
				mlxtest.Do(t, func() {
					x := mlx.Arange(0, 16, 1, mlx.Float32).Over(8).AsType(dtype).Reshape(4, 4)
					y := op(x)
					if y.Dtype() != dtype {
						t.Errorf("found %v, expected %v", y, dtype)
					}
					// the values are those in float32, rounded
					want := op(x.AsType(mlx.Float32)).Floats()
					wide := make([]float64, len(want))
					for i, v := range want {
						wide[i] = float64(v)
					}
					tolerance := map[mlx.Dtype]float64{mlx.BFloat16: 0.02, mlx.Float16: 0.003, mlx.Float32: 1e-7}[dtype]
					near(t, name, y.Floats(), wide, tolerance)
				})
			})
		}
	}
	mlxtest.Do(t, func() {
		// mixed dtypes promote as in PyTorch: the caller has to cast
		if got := mlx.Zeros(mlx.BFloat16, 2).Add(mlx.Zeros(mlx.Float32, 2)).Dtype(); got != mlx.Float32 {
			t.Errorf("bfloat16 + float32 is %v", got)
		}
		// an array that has the dtype already is not copied
		x := mlx.Zeros(mlx.BFloat16, 2)
		if x.AsType(mlx.BFloat16) != x {
			t.Error("AsType to the same dtype made another array")
		}
	})
}

// TestScalars checks that constants are exact, also if float32 cannot represent them.
func TestScalars(t *testing.T) {
	mlxtest.Do(t, func() {
		if err := mlx.Use(mlx.CPU); err != nil { // GPUs have no float64
			t.Fatal(err)
		}
		mlxtest.Same(t, "int32", mlx.Scalar(1<<24+1, mlx.Int32).Int32s(), []int32{1<<24 + 1})
		mlxtest.Same(t, "negative", mlx.Scalar(-7, mlx.Int64).Int32s(), []int32{-7})
		mlxtest.Same(t, "plus", mlx.FromInt32([]int32{5}).Plus(1<<24+1).Int32s(), []int32{1<<24 + 6})
		mlxtest.Same(t, "uint8", mlx.Scalar(255, mlx.Uint8).Uint8s(), []uint8{255})
		mlxtest.Same(t, "bool", mlx.Scalar(1, mlx.Bool).Uint8s(), []uint8{1})
		mlxtest.Same(t, "float32", mlx.Scalar(0.1, mlx.Float32).Floats(), []float32{0.1})
		mlxtest.Same(t, "bfloat16", mlx.Scalar(1.00390625, mlx.BFloat16).Floats(), []float32{1}) // half to even
		tenth := mlx.Scalar(0.1, mlx.Float64).Sub(mlx.Scalar(f32(0.1), mlx.Float64))
		if d := float64(tenth.Item()); math.Abs(d-(0.1-f32(0.1))) > 1e-15 {
			t.Errorf("a float64 scalar is off by %g", d)
		}
	})
}

// TestNormal checks that random numbers depend only on the key.
func TestNormal(t *testing.T) {
	draw := func(seed uint64, dtype mlx.Dtype) (out []float32) {
		mlxtest.Do(t, func() { out = mlx.Normal(mlx.Key(seed), dtype, 100, 1000).Floats() })
		return out
	}
	x := draw(1, mlx.Float32)
	mlxtest.Same(t, "again", draw(1, mlx.Float32), x)
	if y := draw(2, mlx.Float32); y[0] == x[0] && y[1] == x[1] {
		t.Error("two seeds give the same numbers")
	}
	if y := draw(1<<32+1, mlx.Float32); y[0] == x[0] && y[1] == x[1] {
		t.Error("the upper half of a seed is not used")
	}
	var m, s float64
	for _, v := range x {
		m += float64(v) / 1e5
		s += float64(v) * float64(v) / 1e5
	}
	if math.Abs(m) > 0.02 || math.Abs(s-1) > 0.02 {
		t.Errorf("found mean %.3f and variance %.3f, expected 0 and 1", m, s)
	}
}

// TestAccuracy checks the accuracy of sums over lengths that occur in models.
func TestAccuracy(t *testing.T) {
	mlxtest.Do(t, func() {
		a, b := mlxtest.Random(1, 64*4096), mlxtest.Random(2, 4096)
		want := make([]float64, 64)
		for i := range want {
			for k := range b {
				want[i] += float64(a[i*4096+k]) * float64(b[k])
			}
		}
		near(t, "Matmul over 4096", mlx.FromFloat32(a, 64, 4096).Matmul(mlx.FromFloat32(b, 4096, 1)).Floats(), want, 2e-6)
		x := host(mlxtest.Random(3, 8*4608), 8, 4608)
		near(t, "Softmax over 4608", x.mlx().Softmax().Floats(), rows(x, softmax).data, 7e-6)
	})
}

func TestAllFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	mlxtest.Do(t, func() {
		for _, test := range []struct {
			of   *mlx.Array
			want bool
		}{
			{mlx.FromFloat32([]float32{0, -1, math.MaxFloat32}, 3), true},
			{mlx.FromFloat32([]float32{0, nan, 1}, 3), false},
			{mlx.FromFloat32([]float32{0, 1, inf}, 3), false},
			{mlx.FromFloat32([]float32{65536}, 1).AsType(mlx.Float16), false},
			{mlx.FromFloat32([]float32{65536}, 1).AsType(mlx.BFloat16), true},
			{mlx.FromFloat32([]float32{7}, 1).AsType(mlx.Int32), true},
		} {
			if got := test.of.AllFinite(); got != test.want {
				t.Errorf("%v: found %v, expected %v", test.of, got, test.want)
			}
		}
	})
}
