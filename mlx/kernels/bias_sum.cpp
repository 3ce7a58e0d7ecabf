// A thread computes V elements of x + bias, plus residual if RESIDUAL, for rows of C elements. Negative sums are multiplied
// by slope if SLOPE.
const int V = 16 / sizeof(T);
const long at = (long(block) * threads + tid) * V;
if (at >= size) return;
const Pack<T, V> p = load<V>(x + at), q = load<V>(bias + at % C);
Pack<T, V> out;
#if RESIDUAL
const Pack<T, V> r = load<V>(residual + at);
for (int i = 0; i < V; i++) out.e[i] = T(float(p.e[i]) + float(q.e[i]) + float(r.e[i]));
#elif SLOPE
const Pack<T, V> s = load<V>(slope + at % C);
for (int i = 0; i < V; i++) {
	const float sum = float(p.e[i]) + float(q.e[i]);
	out.e[i] = T(sum < 0 ? sum * float(s.e[i]) : sum);
}
#else
for (int i = 0; i < V; i++) out.e[i] = T(float(p.e[i]) + float(q.e[i]));
#endif
store<V>(y + at, out);
