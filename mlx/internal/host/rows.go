package host

// RowsFit reports whether [Rows] and [RowsBFloat16] can multiply with a matrix [n, k].
func RowsFit(n, k int) bool { return vector && n > 0 && n%4 == 0 && k > 0 && k%16 == 0 }

// Rows multiplies few rows x [m, k] with a matrix w [n, k]: dst [m, n] = x·wᵀ. It reads w once, as fast as
// the memory is.
func Rows(dst, x, w []float32, n, k int) {
	rows(dst, x, n, k, func(dst, x *float32, row int) { dot4AVX2(dst, x, &w[row*k], k, k) })
}

// RowsBFloat16 is Rows for w in bfloat16.
func RowsBFloat16(dst, x []float32, w []uint16, n, k int) {
	rows(dst, x, n, k, func(dst, x *float32, row int) { dot4BFloat16AVX2(dst, x, &w[row*k], k, k) })
}

func rows(dst, x []float32, n, k int, dot4 func(dst, x *float32, row int)) {
	ranges(n/4, max(1, 4*chunk/k), func(lo, hi int) {
		for row := 4 * lo; row < 4*hi; row += 4 {
			for i := range len(x) / k {
				dot4(&dst[i*n+row], &x[i*k], row)
			}
		}
	})
}
