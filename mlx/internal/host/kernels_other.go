//go:build !amd64

package host

// There are no kernels in assembly: the functions below are never called.
var vector = false

func expSumAVX2(dst, src *float32, n int, scale, shift float32) float32               { panic("host") }
func maxAVX2(src *float32, n int) float32                                             { panic("host") }
func siluAVX2(dst, src *float32, n int, scale float32)                                { panic("host") }
func swigluAVX2(dst, gate, x *float32, n int)                                         { panic("host") }
func geluTanhAVX2(dst, src *float32, n int)                                           { panic("host") }
func addRowsAVX2(sum, x *float32, rows, stride, n int)                                { panic("host") }
func addSquaresAVX2(sum, x, mean *float32, rows, stride, n int)                       { panic("host") }
func normalizeAVX2(dst, x, mean, scale, bias *float32, n int)                         { panic("host") }
func gemm6AVX2(c *float32, ldc int, a *float32, lda int, b *float32, k int, add bool) { panic("host") }
func gemm1AVX2(c, a, b *float32, k int, add bool)                                     { panic("host") }
func winogradInputAVX2(dst *float32, stride int, pixels *[16]*float32, n int)         { panic("host") }
func unrotateAVX2(dst *uint16, src *int8, spare *float32, groups int, scale float32)  { panic("host") }
func winogradOutputAVX2(pixels *[4]*float32, src *float32, stride int, bias *float32, n int) {
	panic("host")
}
func dot4AVX2(dst, x, w *float32, stride, n int)                 { panic("host") }
func dot4BFloat16AVX2(dst, x *float32, w *uint16, stride, n int) { panic("host") }
