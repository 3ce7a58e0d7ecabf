// The vocabulary of the kernels in Metal's shading language.
#define GLOBAL device
#define SHARED(type, name, size) threadgroup type name[size]
#define LOCAL(type) threadgroup type*
#define DEVICE inline
#define BARRIER threadgroup_barrier(mem_flags::mem_threadgroup)
#define RSQRT(x) metal::precise::rsqrt(x)
#define EXP(x) metal::precise::exp(x)
#define RECIPROCAL(x) (1.0f / (x))

typedef bfloat16_t bfloat16;
typedef half float16;

DEVICE float warp_xor(float x, int mask) { return simd_shuffle_xor(x, mask); }
