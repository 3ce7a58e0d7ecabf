// A thread unpacks 32 bits: elements of one group, each scale·q + bias.
const int N = 32 / BITS;
const long at = long(block) * threads + tid;
if (at >= size) return;
const long group = at * N / GROUP;
const float s = float(scales[group]), b = float(biases[group]);
unsigned int bits = packed[at];
Pack<T, N> out;
for (int i = 0; i < N; i++) {
  out.e[i] = T(s * float(bits & ((1u << BITS) - 1u)) + b);
  bits >>= BITS;
}
store<N>(y + at * N, out);
