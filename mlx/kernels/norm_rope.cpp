// A block normalizes the queries and keys of one token, heads of D elements in consecutive columns, by
// the root of their mean square if NORM is set, and rotates their pairs (2i, 2i+1), or with HALVES
// (i, i+D/2), or with ACROSS each element with the one D/2 away, by its own angle. Tokens are those of the
// text, of which there may be none, followed by those of the image. A warp has every warps-th head; with
// ACROSS its halves are in lanes 0 to 15 and 16 to 31. With VALUES heads after the keys are as they are, and keys
// and values are an array of their own.
const int P = D / 64; // pairs a thread
const int apart = HALVES ? D / 2 : P; // from the first elements of a thread to its others
const int lane = tid % 32, warps = threads / 32, at = HALVES ? lane * P : lane * 2 * P;
#if TEXT
const int before = text_tokens;
#else
const int before = 0;
#endif
const int tokens = before + image_tokens, t = block % tokens, n = block / tokens;

const GLOBAL T* x = image + (long(n) * image_tokens + t - before) * image_width + image_column;
#if NORM
const GLOBAL T* of_q = image_norm_q;
const GLOBAL T* of_k = image_norm_k;
float eps = image_eps;
#endif
#if TEXT
if (t < before) {
  x = text + (long(n) * text_tokens + t) * text_width + text_column;
#if NORM
  of_q = text_norm_q;
  of_k = text_norm_k;
  eps = text_eps;
#endif
}
#endif
const Pack<float, P> c = load<P>(cosines + long(t) * (D / 2) + lane * P);
const Pack<float, P> s = load<P>(sines + long(t) * (D / 2) + lane * P);

#if NORM
const Pack<T, 2 * P> norm_q = load_parts<2 * P>(of_q + at, apart), norm_k = load_parts<2 * P>(of_k + at, apart);
#endif

for (int h = tid / 32; h < heads; h += warps) {
  const Pack<T, 2 * P> in = load_parts<2 * P>(x + h * D + at, apart);
  GLOBAL T* to = y + (long(block) * heads + h) * D + at;
#if VALUES
  to = (h < queries ? y + (long(block) * queries + h) * D : kv + (long(block) * (heads - queries) + h - queries) * D) + at;
  if (h >= values) {
    store_parts<2 * P>(to, apart, in);
    continue;
  }
#endif
  float v[2 * P];
  for (int i = 0; i < 2 * P; i++) v[i] = float(in.e[i]);
#if NORM
  const Pack<T, 2 * P> w = h < queries ? norm_q : norm_k;
  float sum = 0;
  for (int i = 0; i < 2 * P; i++) sum += v[i] * v[i];
  const float r = RSQRT(warp_sum(sum) / D + eps);
  for (int i = 0; i < 2 * P; i++) v[i] = v[i] * r * float(w.e[i]);
#endif
  Pack<T, 2 * P> out;
#if ACROSS
  for (int i = 0; i < 2 * P; i++) {
    const float other = warp_xor(v[i], 16);
    out.e[i] = T(v[i] * c.e[i / 2] + (lane < 16 ? -other : other) * s.e[i / 2]);
  }
#else
  for (int i = 0; i < P; i++) {
    const int first = HALVES ? i : 2 * i, second = HALVES ? P + i : 2 * i + 1;
    out.e[first] = T(v[first] * c.e[i] - v[second] * s.e[i]);
    out.e[second] = T(v[first] * s.e[i] + v[second] * c.e[i]);
  }
#endif
  store_parts<2 * P>(to, apart, out);
}
