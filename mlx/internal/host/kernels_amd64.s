#include "textflag.h"

// Kernels for AVX2 and FMA. In Go's assembler the operands are in the reverse order of Intel's
// manual: VFMADD231PS a, b, c is c += a·b.

// CONST defines a vector of eight equal float32 or int32; v is the element, twice.
#define CONST(name, v) \
	DATA name<>+0(SB)/8, $v; \
	DATA name<>+8(SB)/8, $v; \
	DATA name<>+16(SB)/8, $v; \
	DATA name<>+24(SB)/8, $v; \
	GLOBL name<>(SB), RODATA|NOPTR, $32

CONST(expLow, 0xc2d00000c2d00000)    // -104: exp of less is 0
CONST(expHigh, 0x42b2000042b20000)   // 89: exp of more is +Inf
CONST(log2e, 0x3fb8aa3b3fb8aa3b)     // 1.4426950
CONST(ln2High, 0x3f3180003f318000)   // 0.693359375
CONST(ln2Low, 0xb95e8083b95e8083)    // ln 2 - ln2High = -2.1219444e-4
CONST(exp6, 0x3950696739506967)      // 1.9875691500e-4
CONST(exp5, 0x3ab743ce3ab743ce)      // 1.3981999507e-3
CONST(exp4, 0x3c0889083c088908)      // 8.3334519073e-3
CONST(exp3, 0x3d2aa9c13d2aa9c1)      // 4.1665795894e-2
CONST(exp2, 0x3e2aaaaa3e2aaaaa)      // 1.6666665459e-1
CONST(exp1, 0x3f0000003f000000)      // 0.5
CONST(one, 0x3f8000003f800000)       // 1
CONST(bias, 0x0000007f0000007f)      // of the exponent
CONST(geluCubic, 0x3d3727133d372713) // 0.044715
CONST(geluScale, 0xbfcc422abfcc422a) // -2·√(2/π)

// EXP computes x = exp(x); n and t are temporaries, and low and high hold the limits. It
// is exact to about one unit in the last place: n = round(x/ln 2), a polynomial of
// x - n·ln 2, and the product by 2^n in two factors, for results that are denormal.
// The order of the operands of VMAXPS and VMINPS passes NaN on.
#define EXP(x, n, t, low, high) \
	VMAXPS       x, low, x; \
	VMINPS       x, high, x; \
	VMULPS       log2e<>(SB), x, n; \
	VROUNDPS     $0, n, n; \
	VFNMADD231PS ln2High<>(SB), n, x; \
	VFNMADD231PS ln2Low<>(SB), n, x; \
	VMOVUPS      exp6<>(SB), t; \
	VFMADD213PS  exp5<>(SB), x, t; \
	VFMADD213PS  exp4<>(SB), x, t; \
	VFMADD213PS  exp3<>(SB), x, t; \
	VFMADD213PS  exp2<>(SB), x, t; \
	VFMADD213PS  exp1<>(SB), x, t; \
	VFMADD213PS  one<>(SB), x, t; \
	VFMADD213PS  one<>(SB), x, t; \
	VCVTPS2DQ    n, n; \
	VPSRAD       $1, n, x; \
	VPSUBD       x, n, n; \
	VPADDD       bias<>(SB), x, x; \
	VPSLLD       $23, x, x; \
	VPADDD       bias<>(SB), n, n; \
	VPSLLD       $23, n, n; \
	VMULPS       x, t, t; \
	VMULPS       n, t, x

// SUM adds the eight elements of y; x is its lower half.
#define SUM(y, x, t) \
	VEXTRACTF128 $1, y, t; \
	VADDPS       t, x, x; \
	VHADDPS      x, x, x; \
	VHADDPS      x, x, x

// func expSumAVX2(dst, src *float32, n int, scale, shift float32) float32
TEXT ·expSumAVX2(SB), NOSPLIT, $0-36
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y10
	VBROADCASTSS shift+28(FP), Y11
	VMOVUPS      expLow<>(SB), Y14
	VMOVUPS      expHigh<>(SB), Y15
	VXORPS       Y12, Y12, Y12
	VXORPS       Y13, Y13, Y13
	SUBQ         $16, CX
	JLT          last

loop:
	VMOVUPS     (SI), Y0
	VMOVUPS     32(SI), Y3
	VFMADD213PS Y11, Y10, Y0
	VFMADD213PS Y11, Y10, Y3
	EXP(Y0, Y1, Y2, Y14, Y15)
	EXP(Y3, Y4, Y5, Y14, Y15)
	VMOVUPS     Y0, (DI)
	VMOVUPS     Y3, 32(DI)
	VADDPS      Y0, Y12, Y12
	VADDPS      Y3, Y13, Y13
	ADDQ        $64, SI
	ADDQ        $64, DI
	SUBQ        $16, CX
	JGE         loop

last:
	ADDQ        $16, CX
	JZ          done
	VMOVUPS     (SI), Y0
	VFMADD213PS Y11, Y10, Y0
	EXP(Y0, Y1, Y2, Y14, Y15)
	VMOVUPS     Y0, (DI)
	VADDPS      Y0, Y12, Y12

done:
	VADDPS Y13, Y12, Y12
	SUM(Y12, X12, X13)
	VMOVSS X12, ret+32(FP)
	VZEROUPPER
	RET

// func maxAVX2(src *float32, n int) float32
TEXT ·maxAVX2(SB), NOSPLIT, $0-20
	MOVQ    src+0(FP), SI
	MOVQ    n+8(FP), CX
	VMOVUPS (SI), Y0

loop:
	VMAXPS (SI), Y0, Y0
	ADDQ   $32, SI
	SUBQ   $8, CX
	JNZ    loop
	VEXTRACTF128 $1, Y0, X1
	VMAXPS       X1, X0, X0
	VPERMILPS    $0x4e, X0, X1
	VMAXPS       X1, X0, X0
	VPERMILPS    $0xb1, X0, X1
	VMAXPS       X1, X0, X0
	VMOVSS       X0, ret+16(FP)
	VZEROUPPER
	RET

// func siluAVX2(dst, src *float32, n int, scale float32)
TEXT ·siluAVX2(SB), NOSPLIT, $0-28
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y10
	VMOVUPS      expLow<>(SB), Y14
	VMOVUPS      expHigh<>(SB), Y15
	VMOVUPS      one<>(SB), Y13

loop:
	VMOVUPS (SI), Y3
	VMULPS  Y3, Y10, Y0
	EXP(Y0, Y1, Y2, Y14, Y15)
	VADDPS  Y13, Y0, Y0
	VDIVPS  Y0, Y3, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func swigluAVX2(dst, gate, x *float32, n int)
TEXT ·swigluAVX2(SB), NOSPLIT, $0-32
	MOVQ    dst+0(FP), DI
	MOVQ    gate+8(FP), SI
	MOVQ    x+16(FP), DX
	MOVQ    n+24(FP), CX
	VMOVUPS expLow<>(SB), Y14
	VMOVUPS expHigh<>(SB), Y15
	VMOVUPS one<>(SB), Y13
	VXORPS  Y12, Y12, Y12

loop:
	VMOVUPS (SI), Y3
	VSUBPS  Y3, Y12, Y0
	EXP(Y0, Y1, Y2, Y14, Y15)
	VADDPS  Y13, Y0, Y0
	VDIVPS  Y0, Y3, Y0
	VMULPS  (DX), Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DX
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     loop
	VZEROUPPER
	RET

// func geluTanhAVX2(dst, src *float32, n int)
TEXT ·geluTanhAVX2(SB), NOSPLIT, $0-24
	MOVQ    dst+0(FP), DI
	MOVQ    src+8(FP), SI
	MOVQ    n+16(FP), CX
	VMOVUPS expLow<>(SB), Y14
	VMOVUPS expHigh<>(SB), Y15
	VMOVUPS one<>(SB), Y13

loop:
	VMOVUPS     (SI), Y3
	VMULPS      Y3, Y3, Y0
	VMULPS      geluCubic<>(SB), Y3, Y1
	VFMADD213PS Y3, Y1, Y0
	VMULPS      geluScale<>(SB), Y0, Y0
	EXP(Y0, Y1, Y2, Y14, Y15)
	VADDPS      Y13, Y0, Y0
	VDIVPS      Y0, Y3, Y0
	VMOVUPS     Y0, (DI)
	ADDQ        $32, SI
	ADDQ        $32, DI
	SUBQ        $8, CX
	JNZ         loop
	VZEROUPPER
	RET

// func addRowsAVX2(sum, x *float32, rows, stride, n int)
TEXT ·addRowsAVX2(SB), NOSPLIT, $0-40
	MOVQ sum+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ stride+24(FP), DX
	MOVQ n+32(FP), CX
	SHLQ $2, DX

columns:
	MOVQ    rows+16(FP), AX
	MOVQ    SI, BX
	VMOVUPS (DI), Y0

loop:
	VADDPS  (BX), Y0, Y0
	ADDQ    DX, BX
	DECQ    AX
	JNZ     loop
	VMOVUPS Y0, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $8, CX
	JNZ     columns
	VZEROUPPER
	RET

// func addSquaresAVX2(sum, x, mean *float32, rows, stride, n int)
TEXT ·addSquaresAVX2(SB), NOSPLIT, $0-48
	MOVQ sum+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ mean+16(FP), R8
	MOVQ stride+32(FP), DX
	MOVQ n+40(FP), CX
	SHLQ $2, DX

columns:
	MOVQ    rows+24(FP), AX
	MOVQ    SI, BX
	VMOVUPS (DI), Y0
	VMOVUPS (R8), Y1

loop:
	VMOVUPS     (BX), Y2
	VSUBPS      Y1, Y2, Y2
	VFMADD231PS Y2, Y2, Y0
	ADDQ        DX, BX
	DECQ        AX
	JNZ         loop
	VMOVUPS     Y0, (DI)
	ADDQ        $32, SI
	ADDQ        $32, R8
	ADDQ        $32, DI
	SUBQ        $8, CX
	JNZ         columns
	VZEROUPPER
	RET

// func normalizeAVX2(dst, x, mean, scale, bias *float32, n int)
TEXT ·normalizeAVX2(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ mean+16(FP), R8
	MOVQ scale+24(FP), R9
	MOVQ bias+32(FP), R10
	MOVQ n+40(FP), CX
	XORQ AX, AX

loop:
	VMOVUPS     (SI)(AX*4), Y0
	VSUBPS      (R8)(AX*4), Y0, Y0
	VMOVUPS     (R9)(AX*4), Y1
	VFMADD213PS (R10)(AX*4), Y1, Y0
	VMOVUPS     Y0, (DI)(AX*4)
	ADDQ        $8, AX
	CMPQ        AX, CX
	JLT         loop
	VZEROUPPER
	RET

// ROW multiplies the row of a at address p by the two vectors of b in Y12 and Y13.
#define ROW(p, t, c0, c1) \
	VBROADCASTSS p, t; \
	VFMADD231PS  Y12, t, c0; \
	VFMADD231PS  Y13, t, c1

#define STEP(offset) \
	ROW(offset(SI), Y14, Y0, Y1); \
	ROW(offset(SI)(R8*1), Y15, Y2, Y3); \
	ROW(offset(SI)(R8*2), Y14, Y4, Y5); \
	ROW(offset(R10), Y15, Y6, Y7); \
	ROW(offset(R10)(R8*1), Y14, Y8, Y9); \
	ROW(offset(R10)(R8*2), Y15, Y10, Y11)

// func gemm6AVX2(c *float32, ldc int, a *float32, lda int, b *float32, k int, add bool)
TEXT ·gemm6AVX2(SB), NOSPLIT, $0-49
	MOVQ    c+0(FP), DI
	MOVQ    ldc+8(FP), DX
	MOVQ    a+16(FP), SI
	MOVQ    lda+24(FP), R8
	MOVQ    b+32(FP), BX
	MOVQ    k+40(FP), CX
	MOVBLZX add+48(FP), AX
	SHLQ    $2, DX
	SHLQ    $2, R8
	LEAQ    (SI)(R8*2), R10
	ADDQ    R8, R10
	LEAQ    (DI)(DX*2), R11
	ADDQ    DX, R11
	TESTL   AX, AX
	JZ      zero
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS (DI)(DX*1), Y2
	VMOVUPS 32(DI)(DX*1), Y3
	VMOVUPS (DI)(DX*2), Y4
	VMOVUPS 32(DI)(DX*2), Y5
	VMOVUPS (R11), Y6
	VMOVUPS 32(R11), Y7
	VMOVUPS (R11)(DX*1), Y8
	VMOVUPS 32(R11)(DX*1), Y9
	VMOVUPS (R11)(DX*2), Y10
	VMOVUPS 32(R11)(DX*2), Y11
	JMP     pairs

zero:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11

pairs:
	SUBQ $2, CX
	JLT  last

loop:
	VMOVUPS (BX), Y12
	VMOVUPS 32(BX), Y13
	STEP(0)
	VMOVUPS 64(BX), Y12
	VMOVUPS 96(BX), Y13
	STEP(4)
	ADDQ    $128, BX
	ADDQ    $8, SI
	ADDQ    $8, R10
	SUBQ    $2, CX
	JGE     loop

last:
	ADDQ    $2, CX
	JZ      store
	VMOVUPS (BX), Y12
	VMOVUPS 32(BX), Y13
	STEP(0)

store:
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, (DI)(DX*1)
	VMOVUPS Y3, 32(DI)(DX*1)
	VMOVUPS Y4, (DI)(DX*2)
	VMOVUPS Y5, 32(DI)(DX*2)
	VMOVUPS Y6, (R11)
	VMOVUPS Y7, 32(R11)
	VMOVUPS Y8, (R11)(DX*1)
	VMOVUPS Y9, 32(R11)(DX*1)
	VMOVUPS Y10, (R11)(DX*2)
	VMOVUPS Y11, 32(R11)(DX*2)
	VZEROUPPER
	RET

// func gemm1AVX2(c, a, b *float32, k int, add bool)
TEXT ·gemm1AVX2(SB), NOSPLIT, $0-33
	MOVQ    c+0(FP), DI
	MOVQ    a+8(FP), SI
	MOVQ    b+16(FP), BX
	MOVQ    k+24(FP), CX
	MOVBLZX add+32(FP), AX
	VXORPS  Y0, Y0, Y0
	VXORPS  Y1, Y1, Y1
	TESTL   AX, AX
	JZ      loop
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1

loop:
	VMOVUPS (BX), Y12
	VMOVUPS 32(BX), Y13
	ROW((SI), Y14, Y0, Y1)
	ADDQ    $64, BX
	ADDQ    $4, SI
	DECQ    CX
	JNZ     loop
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VZEROUPPER
	RET

// INPUT is one column of the input transform of Winograd's F(2×2, 3×3), Bᵀ·d, in place.
#define INPUT(d0, d1, d2, d3, t) \
	VSUBPS d2, d0, d0; \
	VSUBPS d3, d1, d3; \
	VSUBPS d1, d2, t; \
	VADDPS d2, d1, d1; \
	VMOVAPS t, d2

// LOAD4 loads four of the sixteen pixels.
#define LOAD4(i, d0, d1, d2, d3) \
	MOVQ (i*8)(SI), R8; \
	MOVQ (i*8+32)(SI), R9; \
	MOVQ (i*8+64)(SI), R10; \
	MOVQ (i*8+96)(SI), R11; \
	VMOVUPS (R8)(AX*4), d0; \
	VMOVUPS (R9)(AX*4), d1; \
	VMOVUPS (R10)(AX*4), d2; \
	VMOVUPS (R11)(AX*4), d3

#define STORE4(d0, d1, d2, d3) \
	VMOVUPS d0, (BX); \
	VMOVUPS d1, (BX)(DX*1); \
	VMOVUPS d2, (BX)(DX*2); \
	ADDQ    R12, BX; \
	VMOVUPS d3, (BX); \
	ADDQ    DX, BX

// func winogradInputAVX2(dst *float32, stride int, pixels *[16]*float32, n int)
//
// The frame has the first column of Bᵀ·d; the other three stay in registers.
TEXT ·winogradInputAVX2(SB), NOSPLIT, $128-32
	MOVQ dst+0(FP), DI
	MOVQ stride+8(FP), DX
	MOVQ pixels+16(FP), SI
	MOVQ n+24(FP), CX
	SHLQ $2, DX
	LEAQ (DX)(DX*2), R12
	XORQ AX, AX

loop:
	LOAD4(0, Y0, Y1, Y2, Y3)
	INPUT(Y0, Y1, Y2, Y3, Y12)
	VMOVUPS Y0, 0(SP)
	VMOVUPS Y1, 32(SP)
	VMOVUPS Y2, 64(SP)
	VMOVUPS Y3, 96(SP)
	LOAD4(1, Y0, Y1, Y2, Y3)
	INPUT(Y0, Y1, Y2, Y3, Y12)
	LOAD4(2, Y4, Y5, Y6, Y7)
	INPUT(Y4, Y5, Y6, Y7, Y12)
	LOAD4(3, Y8, Y9, Y10, Y11)
	INPUT(Y8, Y9, Y10, Y11, Y12)

	LEAQ    (DI)(AX*4), BX
	VMOVUPS 0(SP), Y13
	INPUT(Y13, Y0, Y4, Y8, Y12)
	STORE4(Y13, Y0, Y4, Y8)
	VMOVUPS 32(SP), Y13
	INPUT(Y13, Y1, Y5, Y9, Y12)
	STORE4(Y13, Y1, Y5, Y9)
	VMOVUPS 64(SP), Y13
	INPUT(Y13, Y2, Y6, Y10, Y12)
	STORE4(Y13, Y2, Y6, Y10)
	VMOVUPS 96(SP), Y13
	INPUT(Y13, Y3, Y7, Y11, Y12)
	STORE4(Y13, Y3, Y7, Y11)
	ADDQ    $8, AX
	CMPQ    AX, CX
	JLT     loop
	VZEROUPPER
	RET

// OUTPUT is one row of the output transform, Aᵀ·m: c0 = m0+m1+m2, c1 = m1-m2-m3, of the
// four products from BX on.
#define OUTPUT(c0, c1) \
	VMOVUPS (BX), Y8; \
	VMOVUPS (BX)(DX*1), Y9; \
	VMOVUPS (BX)(DX*2), Y10; \
	ADDQ    R12, BX; \
	VMOVUPS (BX), Y11; \
	ADDQ    DX, BX; \
	VADDPS  Y10, Y9, Y12; \
	VADDPS  Y8, Y12, c0; \
	VSUBPS  Y10, Y9, Y12; \
	VSUBPS  Y11, Y12, c1

// func winogradOutputAVX2(pixels *[4]*float32, src *float32, stride int, bias *float32, n int)
TEXT ·winogradOutputAVX2(SB), NOSPLIT, $0-40
	MOVQ pixels+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ stride+16(FP), DX
	MOVQ bias+24(FP), R13
	MOVQ n+32(FP), CX
	MOVQ 0(DI), R8
	MOVQ 8(DI), R9
	MOVQ 16(DI), R10
	MOVQ 24(DI), R11
	SHLQ $2, DX
	LEAQ (DX)(DX*2), R12
	XORQ AX, AX

loop:
	LEAQ    (SI)(AX*4), BX
	VMOVUPS (R13)(AX*4), Y13
	OUTPUT(Y0, Y1)
	OUTPUT(Y2, Y3)
	OUTPUT(Y4, Y5)
	OUTPUT(Y6, Y7)
	VADDPS  Y4, Y2, Y8
	VADDPS  Y0, Y8, Y8
	VADDPS  Y13, Y8, Y8
	VMOVUPS Y8, (R8)(AX*4)
	VADDPS  Y5, Y3, Y9
	VADDPS  Y1, Y9, Y9
	VADDPS  Y13, Y9, Y9
	VMOVUPS Y9, (R9)(AX*4)
	VSUBPS  Y4, Y2, Y10
	VSUBPS  Y6, Y10, Y10
	VADDPS  Y13, Y10, Y10
	VMOVUPS Y10, (R10)(AX*4)
	VSUBPS  Y5, Y3, Y11
	VSUBPS  Y7, Y11, Y11
	VADDPS  Y13, Y11, Y11
	VMOVUPS Y11, (R11)(AX*4)
	ADDQ    $8, AX
	CMPQ    AX, CX
	JLT     loop
	VZEROUPPER
	RET

CONST(half, 0x3f0000003f000000)     // 0.5
CONST(bit, 0x0000000100000001)      // 1, as an integer
CONST(rounding, 0x00007fff00007fff) // half of the last bit of bfloat16, less 1

// FOURS multiplies the groups of four elements of x by the matrix: each becomes half the sum of its
// group less the element opposite to it. s and t are temporaries, and Y14 has 0.5.
#define FOURS(x, s, t) \
	VPERMILPS   $0x4e, x, s; \
	VADDPS      s, x, s; \
	VPERMILPS   $0xb1, s, t; \
	VADDPS      t, s, s; \
	VPERMILPS   $0x1b, x, t; \
	VFMSUB213PS t, Y14, s; \
	VMOVAPS     s, x

// VECTORS is FOURS for four vectors; h is a temporary.
#define VECTORS(a, b, c, d, h, t) \
	VADDPS a, c, h; \
	VADDPS b, d, t; \
	VADDPS t, h, h; \
	VMULPS Y14, h, h; \
	VSUBPS a, h, t; \
	VSUBPS d, h, a; \
	VMOVAPS t, d; \
	VSUBPS b, h, t; \
	VSUBPS c, h, b; \
	VMOVAPS t, c

// BF16 stores a vector as bfloat16; t is a temporary.
#define BF16(x, xlow, t, to) \
	VPSRLD    $16, x, t; \
	VPAND     Y13, t, t; \
	VPADDD    Y12, x, x; \
	VPADDD    t, x, x; \
	VPSRLD    $16, x, x; \
	VPACKUSDW x, x, x; \
	VPERMQ    $8, x, x; \
	VMOVDQU   xlow, to

// func unrotateAVX2(dst *uint16, src *int8, spare *float32, groups int, scale float32)
//
// A group has 16 rows of 16 elements, so that the matrix has a factor for the elements of two
// vectors, in the first pass, and one for the rows, in the other two.
TEXT ·unrotateAVX2(SB), NOSPLIT, $0-36
	MOVQ         dst+0(FP), DI
	MOVQ         src+8(FP), SI
	MOVQ         spare+16(FP), BX
	MOVQ         groups+24(FP), CX
	VBROADCASTSS scale+32(FP), Y15
	VMOVUPS      half<>(SB), Y14
	VMOVDQU      bit<>(SB), Y13
	VMOVDQU      rounding<>(SB), Y12

group:
	XORQ AX, AX

row:
	VPMOVSXBD   (SI)(AX*1), Y0
	VPMOVSXBD   8(SI)(AX*1), Y1
	VCVTDQ2PS   Y0, Y0
	VCVTDQ2PS   Y1, Y1
	VMULPS      Y15, Y0, Y0
	VMULPS      Y15, Y1, Y1
	FOURS(Y0, Y2, Y3)
	FOURS(Y1, Y4, Y5)
	VADDPS      Y0, Y1, Y2
	VPERM2F128  $1, Y2, Y2, Y3
	VADDPS      Y3, Y2, Y2
	VMULPS      Y14, Y2, Y2
	VPERM2F128  $1, Y0, Y0, Y0
	VPERM2F128  $1, Y1, Y1, Y1
	VSUBPS      Y1, Y2, Y3
	VSUBPS      Y0, Y2, Y4
	VMOVUPS     Y3, (BX)(AX*4)
	VMOVUPS     Y4, 32(BX)(AX*4)
	ADDQ        $16, AX
	CMPQ        AX, $256
	JLT         row

	XORQ AX, AX // bytes from the start of spare: four rows at a time

rows4:
	MOVQ $2, DX

half4:
	VMOVUPS 0(BX)(AX*1), Y0
	VMOVUPS 64(BX)(AX*1), Y1
	VMOVUPS 128(BX)(AX*1), Y2
	VMOVUPS 192(BX)(AX*1), Y3
	VECTORS(Y0, Y1, Y2, Y3, Y4, Y5)
	VMOVUPS Y0, 0(BX)(AX*1)
	VMOVUPS Y1, 64(BX)(AX*1)
	VMOVUPS Y2, 128(BX)(AX*1)
	VMOVUPS Y3, 192(BX)(AX*1)
	ADDQ    $32, AX
	DECQ    DX
	JNZ     half4
	ADDQ    $192, AX
	CMPQ    AX, $1024
	JLT     rows4

	XORQ AX, AX // elements from the start of the first four rows

rows16:
	VMOVUPS 0(BX)(AX*4), Y0
	VMOVUPS 256(BX)(AX*4), Y1
	VMOVUPS 512(BX)(AX*4), Y2
	VMOVUPS 768(BX)(AX*4), Y3
	VECTORS(Y0, Y1, Y2, Y3, Y4, Y5)
	BF16(Y0, X0, Y4, 0(DI)(AX*2))
	BF16(Y1, X1, Y4, 128(DI)(AX*2))
	BF16(Y2, X2, Y4, 256(DI)(AX*2))
	BF16(Y3, X3, Y4, 384(DI)(AX*2))
	ADDQ    $8, AX
	CMPQ    AX, $64
	JLT     rows16

	ADDQ $256, SI
	ADDQ $512, DI
	DECQ CX
	JNZ  group
	VZEROUPPER
	RET

// CLEAR8 sets Y0 to Y7 to zero. SUM4 stores the sums of Y0+Y4, Y1+Y5, Y2+Y6 and Y3+Y7 in dst.
#define CLEAR8 \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VXORPS Y4, Y4, Y4; \
	VXORPS Y5, Y5, Y5; \
	VXORPS Y6, Y6, Y6; \
	VXORPS Y7, Y7, Y7

#define SUM4 \
	VADDPS      Y4, Y0, Y0; \
	VADDPS      Y5, Y1, Y1; \
	VADDPS      Y6, Y2, Y2; \
	VADDPS      Y7, Y3, Y3; \
	VHADDPS     Y1, Y0, Y0; \
	VHADDPS     Y3, Y2, Y2; \
	VHADDPS     Y2, Y0, Y0; \
	VEXTRACTF128 $1, Y0, X1; \
	VADDPS      X1, X0, X0; \
	VMOVUPS     X0, (DI)

// func dot4AVX2(dst, x, w *float32, stride, n int)
TEXT ·dot4AVX2(SB), NOSPLIT, $0-40
	MOVQ   dst+0(FP), DI
	MOVQ   x+8(FP), SI
	MOVQ   w+16(FP), R8
	MOVQ   stride+24(FP), R12
	MOVQ   n+32(FP), CX
	LEAQ   (R8)(R12*4), R9
	LEAQ   (R9)(R12*4), R10
	LEAQ   (R10)(R12*4), R11
	CLEAR8

loop:
	VMOVUPS     (SI), Y8
	VMOVUPS     32(SI), Y9
	VFMADD231PS (R8), Y8, Y0
	VFMADD231PS 32(R8), Y9, Y4
	VFMADD231PS (R9), Y8, Y1
	VFMADD231PS 32(R9), Y9, Y5
	VFMADD231PS (R10), Y8, Y2
	VFMADD231PS 32(R10), Y9, Y6
	VFMADD231PS (R11), Y8, Y3
	VFMADD231PS 32(R11), Y9, Y7
	ADDQ        $64, SI
	ADDQ        $64, R8
	ADDQ        $64, R9
	ADDQ        $64, R10
	ADDQ        $64, R11
	SUBQ        $16, CX
	JNZ         loop
	SUM4
	VZEROUPPER
	RET

// func dot4BFloat16AVX2(dst, x *float32, w *uint16, stride, n int)
TEXT ·dot4BFloat16AVX2(SB), NOSPLIT, $0-40
	MOVQ   dst+0(FP), DI
	MOVQ   x+8(FP), SI
	MOVQ   w+16(FP), R8
	MOVQ   stride+24(FP), R12
	MOVQ   n+32(FP), CX
	LEAQ   (R8)(R12*2), R9
	LEAQ   (R9)(R12*2), R10
	LEAQ   (R10)(R12*2), R11
	CLEAR8

loop:
	VMOVUPS     (SI), Y8
	VMOVUPS     32(SI), Y9
	VPMOVZXWD   (R8), Y10
	VPMOVZXWD   16(R8), Y11
	VPMOVZXWD   (R9), Y12
	VPMOVZXWD   16(R9), Y13
	VPSLLD      $16, Y10, Y10
	VPSLLD      $16, Y11, Y11
	VPSLLD      $16, Y12, Y12
	VPSLLD      $16, Y13, Y13
	VFMADD231PS Y10, Y8, Y0
	VFMADD231PS Y11, Y9, Y4
	VFMADD231PS Y12, Y8, Y1
	VFMADD231PS Y13, Y9, Y5
	VPMOVZXWD   (R10), Y10
	VPMOVZXWD   16(R10), Y11
	VPMOVZXWD   (R11), Y12
	VPMOVZXWD   16(R11), Y13
	VPSLLD      $16, Y10, Y10
	VPSLLD      $16, Y11, Y11
	VPSLLD      $16, Y12, Y12
	VPSLLD      $16, Y13, Y13
	VFMADD231PS Y10, Y8, Y2
	VFMADD231PS Y11, Y9, Y6
	VFMADD231PS Y12, Y8, Y3
	VFMADD231PS Y13, Y9, Y7
	ADDQ        $64, SI
	ADDQ        $32, R8
	ADDQ        $32, R9
	ADDQ        $32, R10
	ADDQ        $32, R11
	SUBQ        $16, CX
	JNZ         loop
	SUM4
	VZEROUPPER
	RET
