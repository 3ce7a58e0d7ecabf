// A block computes the attention of one query, of which group consecutive ones share keys and values, to the
// keys of its sequence: first those before, then recent ones in the tail, then the new one. A warp has
// AT_ONCE keys at a time and the softmax of those so far (Milakov and Gimelshein 2018); the warps' results are
// merged at the end. The blocks of a group copy the tail, each some rows, with the new key and value in it.
const int V = D / 32, AT_ONCE = D > 128 ? 2 : 4;
SHARED(float, largest, WARPS);
SHARED(float, sums, WARPS);
SHARED(float, parts, WARPS * D);
const int lane = tid % 32, warp = tid / 32, row = block / group;
const int before = position[0], recent = position[1], keys = before + recent + 1;
const float never = -3e38f;

const Pack<T, V> q = load<V>(queries + long(block) * D + lane * V);
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
    const GLOBAL T* key = new_keys + long(row) * D;
    const GLOBAL T* value = new_values + long(row) * D;
    if (at < before) {
      key = past_keys + (long(row) * capacity + at) * D;
      value = past_values + (long(row) * capacity + at) * D;
    } else if (at < before + recent) {
      key = tail + (long(row) * TAIL + at - before) * D;
      value = tail + ((long(rows) + row) * TAIL + at - before) * D;
    }
    k[u] = load<V>(key + lane * V);
    v[u] = load<V>(value + lane * V);
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
  if (r % group != block % group) continue;
  const bool values = at >= TAIL * LANES;
  const long to = (((values ? long(rows) : 0L) + row) * TAIL + r) * D + column;
  const GLOBAL T* from = r != recent ? tail + to : (values ? new_values : new_keys) + long(row) * D + column;
  store<P>(next + to, load<P>(from));
}
