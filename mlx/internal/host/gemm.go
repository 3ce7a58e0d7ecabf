package host

// A panels is a matrix [k, n], packed for products: panels of 16 columns, each row after row. The
// columns of the last one are padded with zeros.
type panels struct {
	data []float32
	k, n int
}

const (
	width  = 16  // columns of a panel
	height = 6   // rows that the kernel computes at a time
	depth  = 256 // elements of the inner axis that are multiplied at a time, so that a part of a panel stays in the first cache
)

func newPanels(k, n int) panels {
	p := panels{scratch(k * roundUp(n, width)), k, n}
	if n%width != 0 {
		clear(p.panel(n / width))
	}
	return p
}

func (p panels) free() { release(p.data) }

// panel returns panel j.
func (p panels) panel(j int) []float32 { return p.data[j*p.k*width : (j+1)*p.k*width] }

// packRows packs the matrix whose rows are stride elements apart.
func (p panels) packRows(src []float32, stride int) {
	for j := range roundUp(p.n, width) / width {
		panel, n := p.panel(j), min(width, p.n-j*width)
		for i := range p.k {
			copy(panel[i*width:(i+1)*width], src[i*stride+j*width:][:n])
		}
	}
}

// packColumns packs the matrix whose columns are stride elements apart.
func (p panels) packColumns(src []float32, stride int) {
	for j := range roundUp(p.n, width) / width {
		panel := p.panel(j)
		for c := range min(width, p.n-j*width) {
			for i, v := range src[(j*width+c)*stride:][:p.k] {
				panel[i*width+c] = v
			}
		}
	}
}

// multiply computes c = a·b for m rows of a, which are lda elements apart. The rows of c are ldc
// elements apart, at least n rounded up to 16: columns from n on become zero. Inner axes
// beyond 256 are added in parts.
func (b panels) multiply(c []float32, ldc int, a []float32, lda, m int) {
	for from := 0; from < b.k || from == 0; from += depth {
		k, add := min(depth, b.k-from), from > 0
		for j := range roundUp(b.n, width) / width {
			panel := b.panel(j)[from*width:]
			i := 0
			for ; i+height <= m; i += height {
				gemm6(c[i*ldc+j*width:], ldc, a[i*lda+from:], lda, panel, k, add)
			}
			for ; i < m; i++ {
				gemm1(c[i*ldc+j*width:], a[i*lda+from:], panel, k, add)
			}
		}
	}
}

// gemm6 computes 6 rows and 16 columns of a product, and adds them to c if add is set.
func gemm6(c []float32, ldc int, a []float32, lda int, b []float32, k int, add bool) {
	if vector {
		_, _, _ = c[5*ldc+width-1], a[5*lda+k-1], b[k*width-1]
		gemm6AVX2(&c[0], ldc, &a[0], lda, &b[0], k, add)
		return
	}
	for i := range height {
		gemm1(c[i*ldc:], a[i*lda:], b, k, add)
	}
}

// gemm1 is gemm6 for one row.
func gemm1(c, a, b []float32, k int, add bool) {
	if vector {
		_, _, _ = c[width-1], a[k-1], b[k*width-1]
		gemm1AVX2(&c[0], &a[0], &b[0], k, add)
		return
	}
	c = c[:width]
	if !add {
		clear(c)
	}
	for i, x := range a[:k] {
		for j, y := range b[i*width:][:width] {
			c[j] += x * y
		}
	}
}
