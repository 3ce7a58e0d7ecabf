package host

import (
	"math"

	"github.com/gomflux/gomflux/internal/hadamard"
)

// vectorGroup is the size of the Hadamard matrices that the kernel multiplies by, which is
// the usual one of ConvRot.
const vectorGroup = 256

// Unrotate computes rows of n numbers from integers of 8 or of 4 bits, of which two are in a byte,
// the first in its lower half: each row is multiplied by its scale, and each group of its numbers by
// the Hadamard matrix of the group's size (see package hadamard). scales has an element for each row
// or one for all. dst gets the numbers as bfloat16, rounded to nearest, ties to even.
func Unrotate(dst []uint16, src []byte, scales []float32, n, bits, group int) {
	width := n * bits / 8
	ranges(len(src)/width, chunk/n, func(lo, hi int) {
		row, values := make([]int8, n), make([]float32, n)
		for i := lo; i < hi; i++ {
			integers(row, src[i*width:(i+1)*width], bits)
			scale := scales[min(i, len(scales)-1)]
			if scale != scale {
				scale = float32(math.NaN()) // no other NaN, which rounding could make finite
			}
			unrotate(dst[i*n:(i+1)*n], row, values, scale, group)
		}
	})
}

// integers unpacks the integers of a row.
func integers(dst []int8, src []byte, bits int) {
	if bits == 8 {
		for i, b := range src {
			dst[i] = int8(b)
		}
		return
	}
	for i, b := range src {
		dst[2*i], dst[2*i+1] = int8(b<<4)>>4, int8(b)>>4
	}
}

// unrotate is [Unrotate] for a row. values are as many numbers as there are integers, and overwritten.
func unrotate(dst []uint16, row []int8, values []float32, scale float32, group int) {
	if vector && group == vectorGroup {
		unrotateAVX2(&dst[0], &row[0], &values[0], len(row)/group, scale)
		return
	}
	for i, v := range row {
		values[i] = float32(v) * scale
	}
	hadamard.Multiply(values, group)
	for i, v := range values {
		b := math.Float32bits(v)
		dst[i] = uint16((b + 0x7fff + b>>16&1) >> 16)
	}
}
