package host

import "math"

// RMSNorm is x·rsqrt(mean(x²)+eps)·weight over rows of n elements, with sums in float64; weight may
// be nil.
func RMSNorm(dst, x, weight []float32, n int, eps float64) {
	ranges(len(x)/n, chunk/n, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			in, out := x[r*n:(r+1)*n], dst[r*n:(r+1)*n]
			scaleRow(out, in, weight, nil, 0, float32(1/math.Sqrt(squares(in, 0)/float64(n)+eps)))
		}
	})
}

// LayerNorm is (x-mean)·rsqrt(var+eps)·weight+bias over rows of n elements; weight and bias may be
// nil.
func LayerNorm(dst, x, weight, bias []float32, n int, eps float64) {
	ranges(len(x)/n, chunk/n, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			in, out := x[r*n:(r+1)*n], dst[r*n:(r+1)*n]
			mean := float32(total(in) / float64(n))
			scaleRow(out, in, weight, bias, mean, float32(1/math.Sqrt(squares(in, mean)/float64(n)+eps)))
		}
	})
}

// total returns the sum of x. Four sums keep the additions independent of each other.
func total(x []float32) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0])
		b += float64(x[1])
		c += float64(x[2])
		d += float64(x[3])
	}
	for _, v := range x {
		a += float64(v)
	}
	return (a + b) + (c + d)
}

// squares returns the sum of (x-mean)².
func squares(x []float32, mean float32) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := float64(x[0]-mean), float64(x[1]-mean), float64(x[2]-mean), float64(x[3]-mean)
		a += p * p
		b += q * q
		c += r * r
		d += s * s
	}
	for _, v := range x {
		a += float64(v-mean) * float64(v-mean)
	}
	return (a + b) + (c + d)
}

// scaleRow is (x-mean)·factor·weight+bias.
func scaleRow(dst, x, weight, bias []float32, mean, factor float32) {
	dst = dst[:len(x)]
	switch {
	case weight == nil:
		for i, v := range x {
			dst[i] = (v - mean) * factor
		}
	case bias == nil:
		weight = weight[:len(x)]
		for i, v := range x {
			dst[i] = (v - mean) * factor * weight[i]
		}
	default:
		weight, bias = weight[:len(x)], bias[:len(x)]
		for i, v := range x {
			dst[i] = (v-mean)*factor*weight[i] + bias[i]
		}
	}
}

// rowsAtOnce is how many rows GroupNorm's statistics add in float32. Sums of these are added in
// float64, since a group of a large image has millions of elements.
const rowsAtOnce = 64

// GroupStatistics returns the mean of each channel's group, and the reciprocal of its standard
// deviation, of an image of rows of channels. All rows of x belong to the same image.
func GroupStatistics(mean, rstd, x []float32, channels, groups int, eps float64) {
	rows := len(x) / channels
	each := float64(rows * (channels / groups))
	spread(mean, groups, channelSums(x, channels, nil), func(sum float64) float64 { return sum / each })
	spread(rstd, groups, channelSums(x, channels, mean), func(sum float64) float64 { return 1 / math.Sqrt(sum/each+eps) })
}

// spread sets the channels of each group of dst to f of the group's sum.
func spread(dst []float32, groups int, sums []float64, f func(float64) float64) {
	size := len(dst) / groups
	for g := range groups {
		sum := 0.0
		for _, s := range sums[g*size : (g+1)*size] {
			sum += s
		}
		for c := range size {
			dst[g*size+c] = float32(f(sum))
		}
	}
}

// channelSums returns the sum over the rows of x, or of (x-mean)² if mean is not nil.
func channelSums(x []float32, channels int, mean []float32) []float64 {
	rows := len(x) / channels
	tasks := (rows + rowsAtOnce - 1) / rowsAtOnce
	parts := make([]float32, tasks*channels)
	ranges(tasks, 16, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			from, to := i*rowsAtOnce, min(rows, (i+1)*rowsAtOnce)
			addRows(parts[i*channels:(i+1)*channels], x[from*channels:to*channels], mean)
		}
	})
	sums := make([]float64, channels)
	for i := range tasks {
		for c, s := range parts[i*channels : (i+1)*channels] {
			sums[c] += float64(s)
		}
	}
	return sums
}

// addRows adds the rows of x, or the squares of their differences from mean, to sum.
func addRows(sum, x, mean []float32) {
	channels, n := len(sum), 0
	rows := len(x) / channels
	if vector {
		n = channels / lanes * lanes
	}
	switch {
	case n > 0 && mean == nil:
		addRowsAVX2(&sum[0], &x[0], rows, channels, n)
	case n > 0:
		addSquaresAVX2(&sum[0], &x[0], &mean[0], rows, channels, n)
	}
	for r := range rows {
		for c := n; c < channels; c++ {
			v := x[r*channels+c]
			if mean != nil {
				v = (v - mean[c]) * (v - mean[c])
			}
			sum[c] += v
		}
	}
}

// Normalize is (x-mean)·scale+bias for rows of channels.
func Normalize(dst, x, mean, scale, bias []float32) {
	channels, n := len(mean), 0
	if vector {
		n = channels / lanes * lanes
	}
	ranges(len(x)/channels, chunk/channels, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			out, in := dst[r*channels:(r+1)*channels], x[r*channels:(r+1)*channels]
			if n > 0 {
				normalizeAVX2(&out[0], &in[0], &mean[0], &scale[0], &bias[0], n)
			}
			for c := n; c < channels; c++ {
				out[c] = (in[c]-mean[c])*scale[c] + bias[c]
			}
		}
	})
}

// Rotate applies a rotary embedding to the pairs (2i, 2i+1) of x [batch, length, heads, dim]. cos and
// sin are [length, dim/2].
func Rotate(dst, x, cos, sin []float32, length, heads, dim int) {
	half := dim / 2
	ranges(len(x)/(heads*dim), chunk/(heads*dim), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			at := row % length * half
			c, s := cos[at:at+half], sin[at:at+half]
			for h := range heads {
				from := (row*heads + h) * dim
				in, out := x[from:from+dim], dst[from:from+dim]
				for i := range half {
					a, b := in[2*i], in[2*i+1]
					out[2*i], out[2*i+1] = a*c[i]-b*s[i], a*s[i]+b*c[i]
				}
			}
		}
	})
}
