package checkpoint

import "math"

// fromHalf converts an IEEE half to float32, exactly.
func fromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// toHalf rounds to the nearest half, ties to even. Values out of range become
// infinite.
func toHalf(v float32) uint16 {
	b := math.Float32bits(v)
	sign, abs := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // 65520
		return sign | 0x7c00
	case abs < 0x38800000: // subnormal: a multiple of 2^-24
		scaled := math.RoundToEven(float64(math.Float32frombits(abs)) * (1 << 24))
		return sign | uint16(scaled)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16(abs>>13-112<<10)
}

// toBFloat16 rounds to the nearest bfloat16, ties to even.
func toBFloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// EightBits returns the values of an 8-bit float type indexed by their bits, nil
// for any other type.
func EightBits(d Dtype) *[256]float32 { return eightBits[d] }

var eightBits = map[Dtype]*[256]float32{F8E4M3: eightBitValues(4, false), F8E5M2: eightBitValues(5, true)}

// eightBitValues returns the values of an 8-bit float with a number of exponent
// bits, following Micikevicius et al. 2022 (FP8 Formats for Deep Learning). With
// infinities, the top exponent means infinite or NaN. Without them, only its last
// value is NaN.
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

// IsReadable reports whether [Checkpoint.Parts] can read the type as numbers.
func (d Dtype) IsReadable() bool { return d.IsNumeric() || EightBits(d) != nil }
