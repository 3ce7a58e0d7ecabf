// A block computes ROWS elements of the product of a row x of C elements with a matrix, or if GATED SwiGLU of as
// many pairs. Each thread has the same columns of x and of all these rows, and reads them before it uses any. With
// NORM x is divided by the root of its mean square, with MORE it is its sum with more, which the first block returns
// as well. The root is the same for all columns, so no element waits for it: it multiplies the products.
typedef Pack<T, 16 / sizeof(T)> Elements;
const int V = 16 / sizeof(T), N = GATED ? 2 * ROWS : ROWS, PACKS = (C / V + THREADS - 1) / THREADS, WARPS = THREADS / 32;
SHARED(float, products, WARPS * (N + 1)); // of each warp, and its sum of squares
Elements w[PACKS][N];
for (int u = 0; u < PACKS; u++) {
  const int at = (u * THREADS + tid) * V;
  const bool whole = (u + 1) * THREADS * V <= C; // known when it is compiled, so that there is no branch
  for (int r = 0; r < N; r++) {
    const int wanted = block * ROWS + r % ROWS, row = wanted < outputs ? wanted : outputs - 1;
    if (whole || at < C) w[u][r] = load<V>(weight + (long(r / ROWS) * outputs + row) * C + at);
  }
}
float s[N + 1];
for (int r = 0; r <= N; r++) s[r] = 0;
for (int u = 0; u < PACKS; u++) {
  const int at = (u * THREADS + tid) * V;
  if ((u + 1) * THREADS * V > C && at >= C) break;
  Elements p = load<V>(x + at);
#if MORE
  const Elements q = load<V>(more + at);
#endif
#if NORM
  const Elements f = load<V>(norm + at);
#endif
#if MORE
  for (int i = 0; i < V; i++) p.e[i] = T(float(p.e[i]) + float(q.e[i]));
  if (block == 0) store<V>(sum + at, p);
#endif
  for (int i = 0; i < V; i++) {
    float e = float(p.e[i]);
#if NORM
    s[N] += e * e;
    e *= float(f.e[i]);
#endif
    for (int r = 0; r < N; r++) s[r] += e * float(w[u][r].e[i]);
  }
}
for (int r = 0; r < N + NORM; r++) {
  s[r] = warp_sum(s[r]);
  if (tid % 32 == 0) products[tid / 32 * (N + 1) + r] = s[r];
}
BARRIER;
const int mine = block * ROWS + tid;
if (tid < ROWS && mine < outputs) {
  float total = 0, factor = 1;
  for (int i = 0; i < WARPS; i++) total += products[i * (N + 1) + tid];
#if NORM
  float squares = 0;
  for (int i = 0; i < WARPS; i++) squares += products[i * (N + 1) + N];
  factor = RSQRT(squares / C + eps);
#endif
#if GATED
  float other = 0;
  for (int i = 0; i < WARPS; i++) other += products[i * (N + 1) + ROWS + tid];
  y[mine] = T(silu(total * factor) * (other * factor));
#elif BIAS
  y[mine] = T(total * factor + float(bias[mine]));
#else
  y[mine] = T(total * factor);
#endif
}
