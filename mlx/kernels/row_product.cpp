// A warp computes the product of a row x of C elements with a row of the matrix, or if GATED with two, and
// SwiGLU of both. With NORM x is first divided by the root of its mean square, with MORE its sum with more,
// which the first block returns as well. Each block does that for itself, while the first elements of the
// matrix are on their way.
typedef Pack<T, 16 / sizeof(T)> Elements;
const int V = 16 / sizeof(T), ROWS = GATED ? 2 : 1, AT_ONCE = 4 / ROWS, STEP = 32 * V;
SHARED(float, partial, 32);
SHARED(Elements, normed, NORM ? C / V : 1);
const int lane = tid % 32, mine = block * (threads / 32) + tid / 32;
const int row = mine < outputs ? mine : outputs - 1; // all threads wait at the barriers
const GLOBAL T* of[ROWS];
for (int r = 0; r < ROWS; r++) of[r] = weight + (long(r) * outputs + row) * C;
Elements next[AT_ONCE][ROWS];
for (int u = 0; u < AT_ONCE; u++) {
  const int at = u * STEP + lane * V;
  for (int r = 0; r < ROWS; r++)
    if (at < C) next[u][r] = load<V>(of[r] + at);
}

#if NORM
float squares = 0;
for (int k = tid; k < C / V; k += threads) {
  Elements p = load<V>(x + k * V);
#if MORE
  const Elements q = load<V>(more + k * V);
  for (int i = 0; i < V; i++) p.e[i] = T(float(p.e[i]) + float(q.e[i]));
  if (block == 0) store<V>(sum + k * V, p);
#endif
  for (int i = 0; i < V; i++) squares += float(p.e[i]) * float(p.e[i]);
  normed[k] = p;
}
const float root = RSQRT(block_sum(squares, partial, tid, threads) / C + eps);
for (int k = tid; k < C / V; k += threads) {
  Elements p = normed[k];
  const Elements w = load<V>(norm + k * V);
  for (int i = 0; i < V; i++) p.e[i] = T(float(p.e[i]) * root * float(w.e[i]));
  normed[k] = p;
}
BARRIER;
#endif

float products[ROWS];
for (int r = 0; r < ROWS; r++) products[r] = 0;
for (int from = lane * V; from < C; from += AT_ONCE * STEP) {
  Elements now[AT_ONCE][ROWS];
  for (int u = 0; u < AT_ONCE; u++) {
    const int after = from + (AT_ONCE + u) * STEP;
    for (int r = 0; r < ROWS; r++) {
      now[u][r] = next[u][r];
      if (after < C) next[u][r] = load<V>(of[r] + after);
    }
  }
  for (int u = 0; u < AT_ONCE; u++) {
    const int at = from + u * STEP;
    if (at >= C) break;
#if NORM
    const Elements p = normed[at / V];
#else
    const Elements p = load<V>(x + at);
#endif
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < V; i++) products[r] += float(p.e[i]) * float(now[u][r].e[i]);
  }
}
for (int r = 0; r < ROWS; r++) products[r] = warp_sum(products[r]);
if (lane == 0 && mine < outputs) {
#if GATED
  y[mine] = T(silu(products[0]) * products[1]);
#elif BIAS
  y[mine] = T(products[0] + float(bias[mine]));
#else
  y[mine] = T(products[0]);
#endif
}
