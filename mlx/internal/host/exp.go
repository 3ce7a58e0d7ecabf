package host

import "math"

// exp is e^x, exact to a unit in the last place of float32. It is three times as fast as math.Exp.
func exp(x float32) float32 {
	switch {
	case x > 89:
		return float32(math.Inf(1))
	case x < -104:
		return 0
	case x != x:
		return x
	}
	n := math.RoundToEven(float64(x) * math.Log2E)
	r := float64(x) - n*math.Ln2
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120+r*(1.0/720+r*(1.0/5040)))))))
	return float32(p * math.Float64frombits(uint64(int(n)+1023)<<52))
}

// expSum computes dst = exp(scale·src + shift), and returns its sum.
func expSum(dst, src []float32, scale, shift float32) float32 {
	if vector && len(src)%lanes == 0 && len(src) > 0 {
		return expSumAVX2(&dst[0], &src[0], len(src), scale, shift)
	}
	sum := 0.0
	for i, x := range src {
		y := exp(scale*x + shift)
		dst[i] = y
		sum += float64(y)
	}
	return float32(sum)
}

// maximum returns the largest element. If one is NaN, it returns any of them or NaN.
func maximum(x []float32) float32 {
	if vector && len(x)%lanes == 0 && len(x) > 0 {
		return maxAVX2(&x[0], len(x))
	}
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

// softmax replaces the scores in x, of which there is a multiple of 8, by exponentials, and returns
// their sum. Scores are first multiplied by scale, which must be positive.
func softmax(dst, src []float32, scale float32) float32 {
	return expSum(dst, src, scale, -maximum(src)*scale)
}

// Softmax normalises rows of n elements.
func Softmax(dst, src []float32, n int) {
	if n == 0 {
		return
	}
	padded := roundUp(n, lanes)
	ranges(len(src)/n, chunk/n, func(lo, hi int) {
		row := make([]float32, padded)
		for i := n; i < padded; i++ {
			row[i] = float32(math.Inf(-1))
		}
		for r := lo; r < hi; r++ {
			copy(row, src[r*n:(r+1)*n])
			sum := expSumOf(row[:padded], n)
			out := dst[r*n : (r+1)*n]
			for i := range out {
				out[i] = row[i] * (1 / sum)
			}
		}
	})
}

// expSumOf is softmax in place on a padded row of n scores.
func expSumOf(row []float32, n int) float32 {
	for i := n; i < len(row); i++ {
		row[i] = float32(math.Inf(-1))
	}
	return softmax(row, row, 1)
}

// SiLU is x/(1+exp(-factor·x)): SiLU itself with a factor of 1, and its approximation of GELU
// with 1.702.
func SiLU(dst, src []float32, factor float32) {
	elementwise(dst, src, func(dst, src *float32, n int) { siluAVX2(dst, src, n, -factor) },
		func(x float32) float32 { return x / (1 + exp(-factor*x)) })
}

// GELUTanh is x·Φ(x) with the approximation of Φ by tanh. Since (1+tanh u)/2 is 1/(1+exp(-2u)), it
// needs one exponential.
func GELUTanh(dst, src []float32) {
	elementwise(dst, src, geluTanhAVX2, func(x float32) float32 {
		u := x*x*(0.044715*x) + x
		return x / (1 + exp(-2*float32(math.Sqrt(2/math.Pi))*u))
	})
}

// elementwise computes dst from src. The vector kernel computes 8 elements at a time; the elements
// after the last 8 go through it as a copy, so that all are computed alike.
func elementwise(dst, src []float32, kernel func(dst, src *float32, n int), f func(float32) float32) {
	ranges(len(src), chunk, func(lo, hi int) {
		if !vector {
			for i := lo; i < hi; i++ {
				dst[i] = f(src[i])
			}
			return
		}
		n := (hi - lo) / lanes * lanes
		if n > 0 {
			kernel(&dst[lo], &src[lo], n)
		}
		if lo+n < hi {
			var rest [lanes]float32
			copy(rest[:], src[lo+n:hi])
			kernel(&rest[0], &rest[0], lanes)
			copy(dst[lo+n:hi], rest[:])
		}
	})
}

// SwiGLU is SiLU(gate)·x.
func SwiGLU(dst, gate, x []float32) {
	ranges(len(x), chunk, func(lo, hi int) {
		n := 0
		if vector {
			n = (hi - lo) / lanes * lanes
		}
		if n > 0 {
			swigluAVX2(&dst[lo], &gate[lo], &x[lo], n)
		}
		for i := lo + n; i < hi; i++ {
			dst[i] = gate[i] / (1 + exp(-gate[i])) * x[i]
		}
	})
}
