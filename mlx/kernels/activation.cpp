// A thread computes V elements of rows [first | F(a)], or [first | F(a)·b] if GATED. a and b are columns
// of an array, or of two. F is an activation of common.h.
const int V = 16 / sizeof(T);
#if FIRST
const int skip = first_width;
#else
const int skip = 0;
#endif
const int width = skip + inner;
const long at = (long(block) * threads + tid) * V;
if (at >= long(rows) * width) return;
const int column = at % width;
const long row = at / width;
Pack<T, V> out;
#if FIRST
if (column < skip) {
  store<V>(y + at, load<V>(first + row * skip + column));
  return;
}
#endif
const Pack<T, V> p = load<V>(a + row * a_width + a_column + column - skip);
#if GATED
const Pack<T, V> q = load<V>(b + row * b_width + b_column + column - skip);
for (int i = 0; i < V; i++) out.e[i] = T(F(float(p.e[i])) * float(q.e[i]));
#else
for (int i = 0; i < V; i++) out.e[i] = T(F(float(p.e[i])));
#endif
store<V>(y + at, out);
