package nn

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// Memory returns the bytes of a parameter once it is loaded for a dtype, and reports
// whether it is cast or dequantized right before each use, which takes more. q is the
// result of LoadOptions.Quantize for it.
func (p Parameter) Memory(f Found, dtype mlx.Dtype, q *mlx.Quantization) (bytes int64, unpacked bool) {
	n := int64(1)
	for i, d := range p.shape {
		if p.frames == "" || i != 2 {
			n *= int64(d)
		}
	}
	stored := storedDtype(f.Dtype)
	if f.Quantized != nil {
		q = f.Quantized
		if f.Scales != nil {
			stored = storedDtype(f.Scales.Dtype)
		}
	}
	loaded := p.loaded(stored, dtype)
	if q == nil {
		return n * itemSize(loaded), loaded != dtype
	}
	groups := n / int64(q.Group)
	if q.Mode == "affine" {
		return n*int64(q.Bits)/8 + 2*groups*itemSize(loaded), true
	}
	return n*int64(q.Bits)/8 + groups, true
}

// storedDtype returns the dtype that a tensor which is not quantized is read as.
func storedDtype(name checkpoint.Dtype) mlx.Dtype {
	if d, ok := DtypeOf(name); ok && name.IsWeight() {
		return d
	}
	return mlx.BFloat16 // of 8-bit floats too
}

func itemSize(d mlx.Dtype) int64 {
	if d == mlx.Float32 {
		return 4
	}
	return 2
}
