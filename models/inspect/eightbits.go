package models

import (
	"math"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/tensors"
)

// readable says whether a dtype can be read as numbers.
func readable(d checkpoint.Dtype) bool { return tensors.Dtype(d).Size() > 0 || eightBits[d] != nil }

// eightBits are the values of the eight-bit floats that weights are stored in.
var eightBits = map[checkpoint.Dtype]*[256]float32{"F8_E4M3": eightBitValues(4, false), "F8_E5M2": eightBitValues(5, true)}

// eightBitValues are those of a float with so many bits of exponent, as Micikevicius
// et al. 2022 (FP8 Formats for Deep Learning) have them. The top exponent is NaN
// or infinite, or without infinities only the last of its values is NaN.
func eightBitValues(exponentBits int, infinities bool) *[256]float32 {
	fractionBits := 7 - exponentBits
	bias := 1<<(exponentBits-1) - 1
	var values [256]float32
	for i := range values {
		exponent, fraction := i&0x7f>>fractionBits, i&(1<<fractionBits-1)
		v := math.Ldexp(float64(fraction), 1-bias-fractionBits)
		if exponent > 0 {
			v = math.Ldexp(float64(fraction+1<<fractionBits), exponent-bias-fractionBits)
		}
		top := 1<<exponentBits - 1
		switch {
		case infinities && exponent == top && fraction == 0:
			v = math.Inf(1)
		case exponent == top && (infinities || fraction == 1<<fractionBits-1):
			v = math.NaN()
		}
		if i > 0x7f {
			v = -v
		}
		values[i] = float32(v)
	}
	return &values
}
