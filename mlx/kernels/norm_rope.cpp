// A block normalizes the queries and keys of one token, heads of D elements in consecutive columns, by
// the root of their mean square, and rotates their pairs (2i, 2i+1), or across halves. Tokens are those
// of the text, of which there may be none, followed by those of the image. A warp has every warps-th
// head, whose halves are in its lanes 0 to 15 and 16 to 31.
const int V = D / 32; // elements a thread
const int lane = tid % 32, warps = threads / 32;
#if TEXT
const int before = text_tokens;
#else
const int before = 0;
#endif
const int tokens = before + image_tokens, t = block % tokens, n = block / tokens;

const GLOBAL T* x = image + (long(n) * image_tokens + t - before) * image_width + image_column;
const GLOBAL T* of_q = image_norm_q;
const GLOBAL T* of_k = image_norm_k;
float eps = image_eps;
#if TEXT
if (t < before) {
  x = text + (long(n) * text_tokens + t) * text_width + text_column;
  of_q = text_norm_q;
  of_k = text_norm_k;
  eps = text_eps;
}
#endif
const Pack<float, V / 2> c = load<V / 2>(cosines + long(t) * (D / 2) + lane * (V / 2));
const Pack<float, V / 2> s = load<V / 2>(sines + long(t) * (D / 2) + lane * (V / 2));
const Pack<T, V> norm_q = load<V>(of_q + lane * V), norm_k = load<V>(of_k + lane * V);

for (int h = tid / 32; h < heads; h += warps) {
  const Pack<T, V> in = load<V>(x + h * D + lane * V);
  const Pack<T, V> w = h < queries ? norm_q : norm_k;
  float v[V];
  float sum = 0;
  for (int i = 0; i < V; i++) {
    v[i] = float(in.e[i]);
    sum += v[i] * v[i];
  }
  const float r = RSQRT(warp_sum(sum) / D + eps);
  Pack<T, V> out;
#if ACROSS
  for (int i = 0; i < V; i++) {
    const float a = v[i] * r * float(w.e[i]), b = warp_xor(a, 16);
    out.e[i] = T(a * c.e[i / 2] + (lane < 16 ? -b : b) * s.e[i / 2]);
  }
#else
  for (int i = 0; i < V; i += 2) {
    const float a = v[i] * r * float(w.e[i]), b = v[i + 1] * r * float(w.e[i + 1]);
    out.e[i] = T(a * c.e[i / 2] - b * s.e[i / 2]);
    out.e[i + 1] = T(a * s.e[i / 2] + b * c.e[i / 2]);
  }
#endif
  store<V>(y + (long(block) * heads + h) * D + lane * V, out);
}
