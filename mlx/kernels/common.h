// What all kernels use. Their functions have block, the number of the block, tid, that of the thread in
// it (thread is a keyword of Metal), and threads, the size of a block.

// N consecutive elements, which a thread reads and writes at once.
template <typename E, int N>
struct alignas(N * sizeof(E)) Pack {
  E e[N];
};

template <int N, typename E>
DEVICE Pack<E, N> load(const GLOBAL E* x) {
  return *reinterpret_cast<const GLOBAL Pack<E, N>*>(x);
}

template <int N, typename E>
DEVICE void store(GLOBAL E* y, Pack<E, N> x) {
  *reinterpret_cast<GLOBAL Pack<E, N>*>(y) = x;
}

// N elements, half of them some elements after the others.
template <int N, typename E>
DEVICE Pack<E, N> load_parts(const GLOBAL E* x, int apart) {
  if (apart == N / 2) return load<N>(x);
  const Pack<E, N / 2> a = load<N / 2>(x), b = load<N / 2>(x + apart);
  Pack<E, N> both;
  for (int i = 0; i < N / 2; i++) {
    both.e[i] = a.e[i];
    both.e[N / 2 + i] = b.e[i];
  }
  return both;
}

template <int N, typename E>
DEVICE void store_parts(GLOBAL E* y, int apart, Pack<E, N> x) {
  if (apart == N / 2) return store<N>(y, x);
  Pack<E, N / 2> a, b;
  for (int i = 0; i < N / 2; i++) {
    a.e[i] = x.e[i];
    b.e[i] = x.e[N / 2 + i];
  }
  store<N / 2>(y, a);
  store<N / 2>(y + apart, b);
}

DEVICE float silu(float x) { return x / (1.0f + EXP(-x)); }

// x times the normal distribution's integral, approximated by tanh: 1 + tanh(u) is 2·sigmoid(2u).
DEVICE float gelu_tanh(float x) {
  return x / (1.0f + EXP(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

// x times the normal distribution's integral, which is erfc(|x|/sqrt(2))/2 for negative x. Metal has no
// erfc; this one (Abramowitz and Stegun 1964, 7.1.26) is off by at most 1.5e-7.
DEVICE float gelu(float x) {
  const float z = 0.7071067811865476f * (x < 0.0f ? -x : x), t = 1.0f / (1.0f + 0.3275911f * z);
  const float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = 0.5f * p * EXP(-z * z);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

DEVICE float warp_sum(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += warp_xor(x, mask);
  return x;
}

// The sum over a block of at most 1024 threads, whole warps. partial has 32 elements.
DEVICE float block_sum(float x, LOCAL(float) partial, int tid, int threads) {
  x = warp_sum(x);
  BARRIER;
  if (tid % 32 == 0) partial[tid / 32] = x;
  BARRIER;
  return warp_sum(tid % 32 < threads / 32 ? partial[tid % 32] : 0.0f);
}

// Mean and sum of squared deviations of a number of values, which merge (Chan, Golub and LeVeque
// 1979).
struct Moments {
  float mean, m2, count;
};

DEVICE Moments merge(Moments a, Moments b) {
  if (b.count == 0.0f) return a;
  const float count = a.count + b.count, d = b.mean - a.mean;
  return Moments{a.mean + d * b.count / count, a.m2 + b.m2 + d * d * a.count * b.count / count, count};
}
