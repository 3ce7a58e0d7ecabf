package host

import "golang.org/x/sys/cpu"

// vector reports whether the kernels in assembly can be used. Tests clear it to compare them with
// those in Go.
var vector = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// In all of these, n is a positive multiple of 8.

//go:noescape
func expSumAVX2(dst, src *float32, n int, scale, shift float32) float32

//go:noescape
func maxAVX2(src *float32, n int) float32

//go:noescape
func siluAVX2(dst, src *float32, n int, scale float32)

//go:noescape
func swigluAVX2(dst, gate, x *float32, n int)

//go:noescape
func geluTanhAVX2(dst, src *float32, n int)

//go:noescape
func addRowsAVX2(sum, x *float32, rows, stride, n int)

//go:noescape
func addSquaresAVX2(sum, x, mean *float32, rows, stride, n int)

//go:noescape
func normalizeAVX2(dst, x, mean, scale, bias *float32, n int)

//go:noescape
func gemm6AVX2(c *float32, ldc int, a *float32, lda int, b *float32, k int, add bool)

//go:noescape
func gemm1AVX2(c, a, b *float32, k int, add bool)

//go:noescape
func winogradInputAVX2(dst *float32, stride int, pixels *[16]*float32, n int)

//go:noescape
func winogradOutputAVX2(pixels *[4]*float32, src *float32, stride int, bias *float32, n int)

// It has groups of vectorGroup elements, and spare has room for one of them.
//
//go:noescape
func unrotateAVX2(dst *uint16, src *int8, spare *float32, groups int, scale float32)

// The dot products of x [n] with four rows of w, stride elements apart; n is a multiple of 16.
//
//go:noescape
func dot4AVX2(dst, x, w *float32, stride, n int)

//go:noescape
func dot4BFloat16AVX2(dst, x *float32, w *uint16, stride, n int)
