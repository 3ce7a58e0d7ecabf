// A block computes x·factor + summand, and SiLU of it, for some pixels of [N, pixels, C].
const int V = 16 / sizeof(T), LANES = C / V;
const int lane = tid % LANES, at_once = threads / LANES;
const int chunks = (pixels + chunk - 1) / chunk;
const int n = block / chunks, from = block % chunks * chunk;
const int until = from + chunk < pixels ? from + chunk : pixels;
if (tid / LANES >= at_once) return;
float factor[V], summand[V];
for (int i = 0; i < V; i++) {
  factor[i] = factors[long(n) * 2 * C + lane * V + i];
  summand[i] = factors[(long(n) * 2 + 1) * C + lane * V + i];
}
for (int p = from + tid / LANES; p < until; p += at_once) {
  const long at = (long(n) * pixels + p) * C + lane * V;
  const Pack<T, V> v = load<V>(x + at);
  Pack<T, V> out;
  for (int i = 0; i < V; i++) {
    const float u = float(v.e[i]) * factor[i] + summand[i];
    out.e[i] = T(SILU ? silu(u) : u);
  }
  store<V>(y + at, out);
}
