// The vocabulary of the kernels in C++ on a CPU. Only tests use it: testdata/host.h has what runs the
// threads of a block.
#define GLOBAL
#define SHARED(type, name, size) \
  static Shared<type> name(#name, size); \
  name.enter()
#define LOCAL(type) Shared<type>&
#define DEVICE inline
#define BARRIER barrier(__FILE__, __LINE__)
#define RSQRT(x) (1.0f / __builtin_sqrtf(x))
#define EXP(x) __builtin_expf(x)
#define RECIPROCAL(x) (1.0f / (x))

struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  operator float() const {
    const unsigned u = static_cast<unsigned>(bits) << 16;
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
  }
  explicit bfloat16(float x) {
    unsigned u;
    __builtin_memcpy(&u, &x, 4);
    bits = x != x ? 0x7fff : static_cast<unsigned short>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
};

#ifdef __aarch64__
typedef __fp16 float16;
#else
typedef _Float16 float16;
#endif
