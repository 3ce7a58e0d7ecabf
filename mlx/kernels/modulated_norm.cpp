// A block normalizes one row of C elements: PACKS packs of V elements a thread. With BEFORE it
// normalizes x = residual + gate·in, without GATE residual + in, and returns x too. With AFTER it returns
// residual + gate·norm(in). Rows of modulations are those of their batch, or one for all.
const int V = 16 / sizeof(T);
SHARED(float, partial, 32);
const long row = long(block) * C;
#if BEFORE && GATE || SCALE || SHIFT || AFTER
const int n = block / tokens;
#endif

float v[PACKS][V];
float sum = 0;
for (int k = 0; k < PACKS; k++) {
  const int at = (k * threads + tid) * V;
  for (int i = 0; i < V; i++) v[k][i] = 0;
  if (at >= C) continue;
  Pack<T, V> p = load<V>(in + row + at);
#if BEFORE
  const Pack<T, V> q = load<V>(residual + row + at);
#if GATE
  const Pack<T, V> g = load<V>(gate + n * gate_step + at);
  for (int i = 0; i < V; i++) p.e[i] = T(float(q.e[i]) + float(g.e[i]) * float(p.e[i]));
#else
  for (int i = 0; i < V; i++) p.e[i] = T(float(q.e[i]) + float(p.e[i]));
#endif
  store<V>(x + row + at, p);
#endif
  for (int i = 0; i < V; i++) {
    v[k][i] = float(p.e[i]);
    sum += CENTER ? v[k][i] : v[k][i] * v[k][i];
  }
}
sum = block_sum(sum, partial, tid, threads) / C;
float mean = 0;
if (CENTER) {
  mean = sum;
  sum = 0;
  for (int k = 0; k < PACKS; k++) {
    if ((k * threads + tid) * V < C)
      for (int i = 0; i < V; i++) sum += (v[k][i] - mean) * (v[k][i] - mean);
  }
  sum = block_sum(sum, partial, tid, threads) / C;
}
const float r = RSQRT(sum + eps);

for (int k = 0; k < PACKS; k++) {
  const int at = (k * threads + tid) * V;
  if (at >= C) continue;
  for (int i = 0; i < V; i++) v[k][i] = (v[k][i] - mean) * r;
#if WEIGHT
  const Pack<T, V> w = load<V>(weight + at);
  for (int i = 0; i < V; i++) v[k][i] *= float(w.e[i]);
#endif
#if SCALE
  const Pack<T, V> s = load<V>(scale + n * scale_step + at);
  for (int i = 0; i < V; i++) v[k][i] *= 1.0f + float(s.e[i]);
#endif
#if SHIFT
  const Pack<T, V> b = load<V>(shift + n * shift_step + at);
  for (int i = 0; i < V; i++) v[k][i] += float(b.e[i]);
#endif
#if AFTER
  const Pack<T, V> q = load<V>(residual + row + at), g = load<V>(gate + n * gate_step + at);
  for (int i = 0; i < V; i++) v[k][i] = float(q.e[i]) + float(g.e[i]) * v[k][i];
#endif
  Pack<T, V> out;
  for (int i = 0; i < V; i++) out.e[i] = T(v[k][i]);
  store<V>(y + row + at, out);
}
