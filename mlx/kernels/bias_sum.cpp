// A thread computes V elements of x + bias, plus residual if RESIDUAL, for rows of C elements.
const int V = 16 / sizeof(T);
const long at = (long(block) * threads + tid) * V;
if (at >= size) return;
const Pack<T, V> p = load<V>(x + at), q = load<V>(bias + at % C);
Pack<T, V> out;
#if RESIDUAL
const Pack<T, V> r = load<V>(residual + at);
for (int i = 0; i < V; i++) out.e[i] = T(float(p.e[i]) + float(q.e[i]) + float(r.e[i]));
#else
for (int i = 0; i < V; i++) out.e[i] = T(float(p.e[i]) + float(q.e[i]));
#endif
store<V>(y + at, out);
