// A thread copies V channels of a pixel of [rows, columns, C] to the four pixels in its place in an
// image of twice the size.
const int V = 16 / sizeof(T), LANES = C / V;
const long at = long(block) * threads + tid;
if (at >= long(rows) * columns * LANES) return;
const int lane = at % LANES, column = at / LANES % columns;
const long row = at / LANES / columns;
const Pack<T, V> p = load<V>(x + at * V);
GLOBAL T* out = y + ((2 * row * 2 * columns + 2 * column) * LANES + lane) * V;
const long next = 2L * columns * C;
store<V>(out, p);
store<V>(out + C, p);
store<V>(out + next, p);
store<V>(out + next + C, p);
