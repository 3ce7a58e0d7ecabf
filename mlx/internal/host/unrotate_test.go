package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gomflux/gomflux/internal/hadamard"
)

// TestUnrotate compares numbers of 4 and 8 bits, with scales of rows and of a whole matrix, with
// products by the whole Hadamard matrix in float64, rounded to bfloat16.
func TestUnrotate(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, c := range []struct{ rows, n, bits, group, scales int }{
			{5, 768, 8, 256, 5}, {70, 256, 8, 256, 1}, {3, 512, 4, 256, 3}, {6, 32, 8, 16, 6}, {2, 8, 4, 4, 1}, {1, 1024, 8, 1024, 1},
		} {
			t.Run(fmt.Sprint(c), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 2))
				src, scales := make([]byte, c.rows*c.n*c.bits/8), random(c.scales, 0.1)
				for i := range src {
					src[i] = byte(r.IntN(256))
				}
				dst := make([]uint16, c.rows*c.n)
				Unrotate(dst, src, scales, c.n, c.bits, c.group)
				matrix := hadamard.Matrix(c.group)
				for i := range dst {
					row, begin := i/c.n, i/c.group*c.group
					want, largest := 0.0, 0.0
					for j := range c.group {
						at := begin + j
						v := int8(src[at*c.bits/8])
						if c.bits == 4 {
							v = v << (4 * (1 - at%2)) >> 4
						}
						x := float64(v) * float64(scales[min(row, c.scales-1)])
						want += x * float64(matrix[j*c.group+i%c.group])
						largest = max(largest, math.Abs(x))
					}
					got := float64(math.Float32frombits(uint32(dst[i]) << 16))
					if off := math.Abs(got - want); off > math.Abs(want)/256*(1+1e-4)+largest*1e-5 {
						t.Fatalf("number %d of row %d is %g, expected %g", i%c.n, row, got, want)
					}
				}
			})
		}
	})
}

// TestUnrotateEqual checks that the kernel and the code in Go compute the same bits, of scales that
// are not finite too.
func TestUnrotateEqual(t *testing.T) {
	if !vector {
		t.Skip("there are no kernels in assembly for this CPU")
	}
	const n = 1024
	src, scales := make([]byte, n*4*7), random(28, 1)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range src {
		src[i] = byte(r.IntN(256))
	}
	scales[3], scales[4], scales[5] = float32(inf), math.Float32frombits(0x7fffffff), 1e-44
	var found [2][]uint16
	for i := range found {
		found[i] = make([]uint16, len(src))
		vector = i == 0
		Unrotate(found[i], src, scales, n, 8, 256)
	}
	vector = true
	for i, v := range found[0] {
		x := math.Float32frombits(uint32(v) << 16)
		if scale := scales[i/n]; math.IsNaN(float64(scale)) && x == x {
			t.Fatalf("a scale that is NaN gives %g", x)
		}
		if other := math.Float32frombits(uint32(found[1][i]) << 16); v != found[1][i] && (x == x || other == other) {
			t.Fatalf("number %d is %g, in Go %g", i, x, other)
		}
	}
}
