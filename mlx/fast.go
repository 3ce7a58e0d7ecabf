package mlx

import (
	"math"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// The fused operations of mlx.core.fast: kernels on a GPU, plain graphs on the
// CPU. All compute their statistics in float32.

// handleOrNil is the handle of an optional array.
func handleOrNil(a *Array) uintptr {
	if a == nil {
		return 0
	}
	return a.h()
}

// RMSNorm is x·rsqrt(mean(x²)+eps)·weight over the last axis; weight may be nil.
func (a *Array) RMSNorm(weight *Array, eps float32) *Array {
	if y := a.rmsNormOnHost(weight, eps); y != nil {
		return y
	}
	return result(func(r *uintptr) int32 { return mlxc.FastRmsNorm(r, a.h(), handleOrNil(weight), eps, stream) })
}

// LayerNorm is (x-mean)·rsqrt(var+eps)·weight+bias over the last axis, with the
// biased variance; weight and bias may be nil.
func (a *Array) LayerNorm(weight, bias *Array, eps float32) *Array {
	if y := a.layerNormOnHost(weight, bias, eps); y != nil {
		return y
	}
	return result(func(r *uintptr) int32 {
		return mlxc.FastLayerNorm(r, a.h(), handleOrNil(weight), handleOrNil(bias), eps, stream)
	})
}

// Attention is softmax(q·kᵀ·scale + mask)·v for q [B, H, Lq, D] and k, v
// [B, Hkv, Lk, D], where Hkv divides H: query head h uses head h/(H/Hkv) of k
// and v. The optional mask is added to the scores or, if it is boolean,
// true where a query sees a key.
func Attention(q, k, v *Array, scale float32, mask *Array) *Array {
	if y := attentionOnHost(q, k, v, scale, mask, false); y != nil {
		return y
	}
	mode := ""
	if mask != nil {
		mode = "array"
	}
	rows := queriesAtOnce(q, k)
	if rows == math.MaxInt || rows >= q.Dim(2) {
		return attention(q, k, v, scale, mode, mask)
	}
	var parts []*Array
	for from := 0; from < q.Dim(2); from += rows {
		until, part := min(from+rows, q.Dim(2)), mask
		if mask != nil && mask.Ndim() > 1 && mask.Dim(-2) > 1 {
			part = mask.Slice(mask.Ndim()-2, from, until)
		}
		parts = append(parts, attention(q.Slice(2, from, until), k, v, scale, mode, part))
	}
	return Concat(2, parts...)
}

// maxScores is the largest number of attention scores that the CPU computes at once: MLX 0.32
// counts the elements of a matrix product in 32 bits there, and crashes with more.
var maxScores = math.MaxInt32

// queriesAtOnce returns how many queries of attention are computed at once: all of them, except if
// there are too many scores, on the CPU, or operations, on Metal.
func queriesAtOnce(q, k *Array) int {
	if q.Ndim() != 4 || k.Ndim() != 4 || q.Size() == 0 || k.Size() == 0 {
		return math.MaxInt
	}
	scores := q.Dim(0) * q.Dim(1) * k.Dim(2) // of a query
	rows := device.RowsAtOnce(q.Dim(2), 4*float64(scores)*float64(q.Dim(3)))
	if device == CPU {
		rows = min(rows, max(1, maxScores/scores))
	}
	return rows
}

// CausalAttention is [Attention] in which a query sees no later key.
func CausalAttention(q, k, v *Array, scale float32) *Array {
	if y := attentionOnHost(q, k, v, scale, nil, true); y != nil {
		return y
	}
	return attention(q, k, v, scale, "causal", nil)
}

func attention(q, k, v *Array, scale float32, mode string, mask *Array) *Array {
	if k.Ndim() == 4 && k.Dim(1) == 0 {
		raise("attention over keys with shape %v, which has no heads", k.Shape()) // MLX divides by them
	}
	return result(func(r *uintptr) int32 {
		return mlxc.FastScaledDotProductAttention(r, q.h(), k.h(), v.h(), scale, mode, handleOrNil(mask), 0, false, stream)
	})
}
