// A block computes the attention of one query, of which group consecutive ones share keys and values, to the
// keys of its sequence: those before, recent ones in the tail, and the new one. LANES lanes of a warp have a key
// together, so that a warp has KEYS of them, AT_ONCE times, and each group of lanes the softmax of its own
// (Milakov and Gimelshein 2018); those of a warp, then those of all warps, are merged at the end. The blocks of a
// group copy the tail, each some rows, with the new key and value in it. With PROJECTED all heads of the new token
// are in one row as projected: their queries and keys are normed here, if NORM is set, and their pairs (i, i+D/2),
// which are LANES/2 lanes apart, are rotated.
const int V = D / 32 > 16 / int(sizeof(T)) ? D / 32 : 16 / int(sizeof(T)), LANES = D / V, KEYS = 32 / LANES, AT_ONCE = 4;
SHARED(float, largest, WARPS);
SHARED(float, sums, WARPS);
SHARED(float, parts, WARPS * D);
const int lane = tid % 32, warp = tid / 32, row = block / group, column = lane % LANES * V, key = lane / LANES;
const int before = position[0], recent = position[1], old = before + recent;
const float never = -3e38f;
const long values = long(rows) * TAIL * D; // where those of the tail begin
const long past = long(row) * capacity * D + column, last = long(row) * TAIL * D + column;

// the rows of the tail that this block copies, before anything waits
const int COPIES = (2 * TAIL * LANES + 32 * WARPS - 1) / (32 * WARPS);
Pack<T, V> kept[COPIES];
for (int n = 0; n < COPIES; n++) {
  const int at = n * threads + tid, r = at / LANES % TAIL;
  if (at < 2 * TAIL * LANES && r % group == block % group)
    kept[n] = load<V>(tail + (at < TAIL * LANES ? 0L : values) + last + r * D);
}

#if PROJECTED
const int head = block % heads, all_keys = heads / group;
const GLOBAL T* token = projected + long(block / heads) * (heads + 2 * all_keys) * D + column;
const Pack<float, V> c = load<V>(cosines + column % (D / 2)), s = load<V>(sines + column % (D / 2));
Pack<T, V> rotated[2]; // the query and the key
for (int n = 0; n < 2; n++) {
  const Pack<T, V> in = load<V>(token + (n == 0 ? head : heads + head / group) * D);
  float e[V];
  for (int i = 0; i < V; i++) e[i] = float(in.e[i]);
#if NORM
  const Pack<T, V> w = load<V>((n == 0 ? norm_q : norm_k) + column);
  float squares = 0;
  for (int i = 0; i < V; i++) squares += e[i] * e[i];
  for (int mask = LANES / 2; mask > 0; mask /= 2) squares += warp_xor(squares, mask);
  const float root = RSQRT(squares / D + eps);
  for (int i = 0; i < V; i++) e[i] *= root * float(w.e[i]);
#endif
  for (int i = 0; i < V; i++) {
    const float other = warp_xor(e[i], LANES / 2);
    rotated[n].e[i] = T(e[i] * c.e[i] + (column < D / 2 ? -other : other) * s.e[i]);
  }
}
const Pack<T, V> q = rotated[0], new_key = rotated[1], new_value = load<V>(token + (heads + all_keys + head / group) * D);
#else
const Pack<T, V> q = load<V>(queries + long(block) * D + column);
const Pack<T, V> new_key = load<V>(new_keys + long(row) * D + column);
const Pack<T, V> new_value = load<V>(new_values + long(row) * D + column);
#endif
for (int n = 0; n < COPIES; n++) {
  const int at = n * threads + tid, r = at / LANES % TAIL;
  if (at >= 2 * TAIL * LANES || r % group != block % group) continue;
  if (r == recent) kept[n] = at < TAIL * LANES ? new_key : new_value;
  store<V>(next + (at < TAIL * LANES ? 0L : values) + last + r * D, kept[n]);
}

// All begin with the new key's score as the largest, and the first lanes with its value.
float x[V], y[V], most = 0, sum = tid < LANES ? 1.0f : 0.0f;
for (int i = 0; i < V; i++) {
  x[i] = float(q.e[i]) * scale;
  most += x[i] * float(new_key.e[i]);
  y[i] = tid < LANES ? float(new_value.e[i]) : 0.0f;
}
for (int mask = LANES / 2; mask > 0; mask /= 2) most += warp_xor(most, mask);
for (int from = warp * AT_ONCE * KEYS; from < old; from += WARPS * AT_ONCE * KEYS) {
  Pack<T, V> k[AT_ONCE], v[AT_ONCE];
  for (int u = 0; u < AT_ONCE; u++) {
    const int wanted = from + u * KEYS + key, at = wanted < old ? wanted : old - 1;
    const bool is_past = at < before;
    const int o = (is_past ? at : at - before) * D;
    k[u] = load<V>((is_past ? past_keys + past : tail + last) + o);
    v[u] = load<V>((is_past ? past_values + past : tail + values + last) + o);
  }
  float scores[AT_ONCE], top = most;
  for (int u = 0; u < AT_ONCE; u++) {
    float dot = 0;
    for (int i = 0; i < V; i++) dot += x[i] * float(k[u].e[i]);
    for (int mask = LANES / 2; mask > 0; mask /= 2) dot += warp_xor(dot, mask);
    scores[u] = from + u * KEYS + key < old ? dot : never;
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

for (int mask = LANES; mask < 32; mask *= 2) {
  const float other = warp_xor(most, mask), top = most > other ? most : other, shrink = EXP(most - top);
  sum *= shrink;
  sum += warp_xor(sum, mask);
  for (int i = 0; i < V; i++) {
    y[i] *= shrink;
    y[i] += warp_xor(y[i], mask);
  }
  most = top;
}
if (lane == 0) {
  largest[warp] = most;
  sums[warp] = sum;
}
if (lane < LANES)
  for (int i = 0; i < V; i++) parts[warp * D + column + i] = y[i];
BARRIER;
if (tid < D) {
  float top = never, total = 0, all = 0;
  for (int w = 0; w < WARPS; w++) top = largest[w] > top ? largest[w] : top;
  for (int w = 0; w < WARPS; w++) {
    const float factor = EXP(largest[w] - top);
    total += factor * sums[w];
    all += factor * parts[w * D + tid];
  }
  out[long(block) * D + tid] = T(all / total);
}
