// What the text for Metal calls, once clang has compiled it for this machine.
namespace metal {
enum class mem_flags;
void threadgroup_barrier(mem_flags) { barrier("", 0); }
float simd_shuffle_xor(float x, unsigned short mask) { return warp_xor(x, mask); }
namespace precise {
float exp(float x) { return EXP(x); }
float rsqrt(float x) { return RSQRT(x); }
} // namespace precise
} // namespace metal

// by which clang converts half without instructions for it
extern "C" float __gnu_h2f_ieee(unsigned short bits) {
  float16 x;
  __builtin_memcpy(&x, &bits, 2);
  return x;
}

extern "C" unsigned short __gnu_f2h_ieee(float x) {
  const float16 half = x;
  unsigned short bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
}

typedef unsigned uint3 __attribute__((vector_size(16))); // as clang passes Metal's

inline uint3 position(int x) { return uint3{static_cast<unsigned>(x), 0, 0, 0}; }
