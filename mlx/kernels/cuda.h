// The vocabulary of the kernels in CUDA C++. NVRTC compiles it without any header, in some
// milliseconds; with those of the toolkit it takes more than a second.
#define GLOBAL
#define SHARED(type, name, size) __shared__ type name[size]
#define LOCAL(type) type*
#define DEVICE __device__ inline
#define BARRIER __syncthreads()
#define RSQRT(x) rsqrtf(x)
#define EXP(x) expf(x)
#define RECIPROCAL(x) __frcp_rn(x)

struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  __device__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
  __device__ explicit bfloat16(float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    const unsigned u = __float_as_uint(x);
    bits = x != x ? 0x7fff : static_cast<unsigned short>((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
  }
};

struct float16 {
  unsigned short bits;
  float16() = default;
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
  __device__ explicit float16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
};

DEVICE float warp_xor(float x, int mask) { return __shfl_xor_sync(0xffffffff, x, mask); }
