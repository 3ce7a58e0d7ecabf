// A thread computes V elements of a + gate·b, for rows of C elements.
const int V = 16 / sizeof(T);
const long at = (long(block) * threads + tid) * V;
if (at >= size) return;
const int column = at % C, n = at / C / tokens;
const Pack<T, V> p = load<V>(a + at), q = load<V>(b + at), g = load<V>(gate + n * gate_step + column);
Pack<T, V> out;
for (int i = 0; i < V; i++) out.e[i] = T(float(p.e[i]) + float(g.e[i]) * float(q.e[i]));
store<V>(y + at, out);
