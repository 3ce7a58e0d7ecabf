// A thread computes V elements of rows of C elements: the sum of columns of PARTS arrays and of bias, plus residual if
// RESIDUAL. Negative sums are multiplied by slope if SLOPE.
const int V = 16 / sizeof(T);
const long at = (long(block) * threads + tid) * V;
if (at >= size) return;
const long row = at / C;
const int column = at % C;
float sum[V] = {};
#define ADD(x) \
	{ \
		const Pack<T, V> p = load<V>(x + row * x##_width + x##_column + column); \
		for (int i = 0; i < V; i++) sum[i] += float(p.e[i]); \
	}
ADD(x0)
#if PARTS > 1
ADD(x1)
#endif
#if PARTS > 2
ADD(x2)
#endif
#if PARTS > 3
ADD(x3)
#endif
#if PARTS > 4
ADD(x4)
#endif
const Pack<T, V> q = load<V>(bias + column);
for (int i = 0; i < V; i++) sum[i] += float(q.e[i]);
Pack<T, V> out;
#if RESIDUAL
const Pack<T, V> r = load<V>(residual + row * C + column);
for (int i = 0; i < V; i++) sum[i] += float(r.e[i]);
#endif
#if SLOPE
const Pack<T, V> s = load<V>(slope + column);
for (int i = 0; i < V; i++) sum[i] = sum[i] < 0 ? sum[i] * float(s.e[i]) : sum[i];
#endif
for (int i = 0; i < V; i++) out.e[i] = T(sum[i]);
store<V>(y + at, out);
