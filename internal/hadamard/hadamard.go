// Package hadamard multiplies vectors by regular Hadamard matrices.
package hadamard

// Multiply multiplies each group of n elements of x, a multiple of n, by the normalized regular
// Hadamard matrix of n, a power of 4: the Kronecker power of
//
//	½ ½ ½ -½
//	½ ½ -½ ½
//	½ -½ ½ ½
//	-½ ½ ½ ½
//
// It is symmetric and its own inverse. The matrix is multiplied factor by factor, which takes
// 4·log₄(n) operations for each element instead of n.
func Multiply(x []float32, n int) {
	for stride := 1; stride < n; stride *= 4 {
		for begin := 0; begin < len(x); begin += 4 * stride {
			for i := begin; i < begin+stride; i++ {
				a, b, c, d := x[i], x[i+stride], x[i+2*stride], x[i+3*stride]
				half := ((a + c) + (b + d)) / 2 // in the order of package host
				x[i], x[i+stride], x[i+2*stride], x[i+3*stride] = half-d, half-c, half-b, half-a
			}
		}
	}
}

// Matrix returns the matrix [n, n] of [Multiply].
func Matrix(n int) []float32 {
	m := make([]float32, n*n)
	for i := range n {
		m[i*n+i] = 1
	}
	Multiply(m, n)
	return m
}
