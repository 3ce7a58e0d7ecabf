package hadamard

import (
	"slices"
	"testing"
)

// TestMatrix checks that each row of the matrix is the Kronecker product of its factors' rows, and
// that the matrix is regular and its own inverse.
func TestMatrix(t *testing.T) {
	four := []float32{0.5, 0.5, 0.5, -0.5, 0.5, 0.5, -0.5, 0.5, 0.5, -0.5, 0.5, 0.5, -0.5, 0.5, 0.5, 0.5}
	want := []float32{1}
	for n := 1; n <= 256; n *= 4 {
		m := Matrix(n)
		if !slices.Equal(m, want) {
			t.Fatalf("the matrix of %d is not the Kronecker power", n)
		}
		var next []float32
		for i := range 4 * n {
			for j := range 4 * n {
				next = append(next, four[i/n*4+j/n]*want[i%n*n+j%n])
			}
		}
		want = next

		for i := range n {
			row, sum := m[i*n:(i+1)*n], float32(0)
			for _, v := range row {
				sum += v
			}
			if sum != 1 {
				t.Errorf("row %d of %d has the sum %g", i, n, sum)
			}
		}
		Multiply(m, n)
		for i, v := range m {
			if diagonal := i%(n+1) == 0; diagonal && v != 1 || !diagonal && v != 0 {
				t.Fatalf("element %d of the square of the matrix of %d is %g", i, n, v)
			}
		}
	}
}
