package nn

import (
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
)

// dtypes has MLX's dtypes by their names in files.
var dtypes = map[checkpoint.Dtype]mlx.Dtype{
	checkpoint.F64: mlx.Float64, checkpoint.F32: mlx.Float32, checkpoint.F16: mlx.Float16, checkpoint.BF16: mlx.BFloat16,
	checkpoint.I64: mlx.Int64, checkpoint.I32: mlx.Int32, checkpoint.I16: mlx.Int16, checkpoint.I8: mlx.Int8,
	checkpoint.U64: mlx.Uint64, checkpoint.U32: mlx.Uint32, checkpoint.U16: mlx.Uint16, checkpoint.U8: mlx.Uint8,
	checkpoint.Bool: mlx.Bool,
}

// DtypeOf returns MLX's dtype for the elements of a file, and reports whether MLX
// has one.
func DtypeOf(d checkpoint.Dtype) (mlx.Dtype, bool) {
	own, ok := dtypes[d]
	return own, ok
}

// FileDtype returns the name of one of MLX's dtypes in files, and reports whether it
// has one.
func FileDtype(d mlx.Dtype) (checkpoint.Dtype, bool) {
	for name, own := range dtypes {
		if own == d {
			return name, true
		}
	}
	return "", false
}

// RangeHint returns a hint for errors about values that are not finite, if the range
// of the dtype may be the reason, or "".
func RangeHint(d mlx.Dtype) string {
	if d == mlx.Float16 {
		return " (float16 ends at 65504: try --dtype bfloat16 or float32)"
	}
	return ""
}
