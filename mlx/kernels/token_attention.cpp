// A block computes the attention of one query, of which group consecutive ones share keys and values, to the
// keys of its sequence: first those before, then recent ones in the tail, then the new one. A warp has
// AT_ONCE keys at a time and the softmax of those so far (Milakov and Gimelshein 2018); the warps' results are
// merged at the end. The blocks of a group copy the tail, each some rows, with the new key and value in it. With
// PROJECTED all heads of the new token are in one row as projected: their queries and keys are normed here, if NORM
// is set, and their pairs (i, i+D/2), which are 16 lanes apart, are rotated.
const int V = D / 32, AT_ONCE = D > 128 ? 2 : 4;
SHARED(float, largest, WARPS);
SHARED(float, sums, WARPS);
SHARED(float, parts, WARPS * D);
const int lane = tid % 32, warp = tid / 32, row = block / group;
const int before = position[0], recent = position[1], keys = before + recent + 1;
const float never = -3e38f;

#if PROJECTED
const int head = block % heads, all_keys = heads / group;
const GLOBAL T* token = projected + long(block / heads) * (heads + 2 * all_keys) * D + lane * V;
const Pack<float, V> c = load<V>(cosines + lane % 16 * V), s = load<V>(sines + lane % 16 * V);
Pack<T, V> rotated[2]; // the query and the key
for (int n = 0; n < 2; n++) {
  const Pack<T, V> in = load<V>(token + (n == 0 ? head : heads + head / group) * D);
  float e[V];
  for (int i = 0; i < V; i++) e[i] = float(in.e[i]);
#if NORM
  const Pack<T, V> w = load<V>((n == 0 ? norm_q : norm_k) + lane * V);
  float squares = 0;
  for (int i = 0; i < V; i++) squares += e[i] * e[i];
  const float root = RSQRT(warp_sum(squares) / D + eps);
  for (int i = 0; i < V; i++) e[i] *= root * float(w.e[i]);
#endif
  for (int i = 0; i < V; i++) {
    const float other = warp_xor(e[i], 16);
    rotated[n].e[i] = T(e[i] * c.e[i] + (lane < 16 ? -other : other) * s.e[i]);
  }
}
const Pack<T, V> q = rotated[0], new_key = rotated[1], new_value = load<V>(token + (heads + all_keys + head / group) * D);
#else
const Pack<T, V> q = load<V>(queries + long(block) * D + lane * V);
const Pack<T, V> new_key = load<V>(new_keys + long(row) * D + lane * V);
const Pack<T, V> new_value = load<V>(new_values + long(row) * D + lane * V);
#endif
float x[V], y[V], most = never, sum = 0;
for (int i = 0; i < V; i++) {
  x[i] = float(q.e[i]) * scale;
  y[i] = 0;
}
for (int from = warp * AT_ONCE; from < keys; from += WARPS * AT_ONCE) {
  Pack<T, V> k[AT_ONCE], v[AT_ONCE];
  float scores[AT_ONCE], top = most;
  for (int u = 0; u < AT_ONCE; u++) {
    const int at = from + u;
    k[u] = new_key;
    v[u] = new_value;
    if (at < before) {
      const long from = (long(row) * capacity + at) * D + lane * V;
      k[u] = load<V>(past_keys + from);
      v[u] = load<V>(past_values + from);
    } else if (at < before + recent) {
      const long from = (long(row) * TAIL + at - before) * D + lane * V;
      k[u] = load<V>(tail + from);
      v[u] = load<V>(tail + long(rows) * TAIL * D + from);
    }
  }
  for (int u = 0; u < AT_ONCE; u++) {
    float dot = 0;
    for (int i = 0; i < V; i++) dot += x[i] * float(k[u].e[i]);
    dot = warp_sum(dot);
    scores[u] = from + u < keys ? dot : never;
    top = scores[u] > top ? scores[u] : top;
  }
  const float shrink = EXP(most - top);
  sum *= shrink;
  for (int i = 0; i < V; i++) y[i] *= shrink;
  for (int u = 0; u < AT_ONCE; u++) {
    const float p = EXP(scores[u] - top);
    sum += p;
    for (int i = 0; i < V; i++) y[i] += p * float(v[u].e[i]);
  }
  most = top;
}

if (lane == 0) {
  largest[warp] = most;
  sums[warp] = sum;
}
for (int i = 0; i < V; i++) parts[warp * D + lane * V + i] = y[i];
BARRIER;
for (int c = tid; c < D; c += threads) {
  float top = never, total = 0, all = 0;
  for (int w = 0; w < WARPS; w++) {
    const float l = largest[w];
    top = l > top ? l : top;
  }
  for (int w = 0; w < WARPS; w++) {
    const float factor = EXP(largest[w] - top);
    total += factor * sums[w];
    all += factor * parts[w * D + c];
  }
  out[long(block) * D + c] = T(all / total);
}

const int P = 16 / sizeof(T), LANES = D / P;
for (int at = tid; at < 2 * TAIL * LANES; at += threads) {
  const int r = at / LANES % TAIL, column = at % LANES * P;
  if (r % group != block % group || r == recent) continue;
  const bool values = at >= TAIL * LANES;
  const long to = (((values ? long(rows) : 0L) + row) * TAIL + r) * D + column;
  store<P>(next + to, load<P>(tail + to));
}
if (warp == 0 && recent % group == block % group) {
  store<V>(next + (long(row) * TAIL + recent) * D + lane * V, new_key);
  store<V>(next + ((long(rows) + row) * TAIL + recent) * D + lane * V, new_value);
}
