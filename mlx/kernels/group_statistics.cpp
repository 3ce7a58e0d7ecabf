// A block computes the moments of each channel of x + before, [N, pixels, C], over some pixels
// (Welford 1962). A thread has the same V channels of every at_once-th pixel.
const int V = 16 / sizeof(T), LANES = C / V;
SHARED(float, means, 256 * V);
SHARED(float, m2s, 256 * V);
SHARED(float, counts, 256);
const int lane = tid % LANES, at_once = threads / LANES, mine = tid / LANES;
const int chunks = (pixels + chunk - 1) / chunk;
const int n = block / chunks, from = block % chunks * chunk;
const int until = from + chunk < pixels ? from + chunk : pixels;
const GLOBAL T* in = x + long(n) * pixels * C + lane * V;

float mean[V], m2[V], count = 0;
for (int i = 0; i < V; i++) mean[i] = m2[i] = 0;
for (int p = from + mine; p < until; p += at_once) {
  const Pack<T, V> v = load<V>(in + long(p) * C);
  count += 1;
  const float r = RECIPROCAL(count);
  for (int i = 0; i < V; i++) {
    const float d = float(v.e[i]) - mean[i];
    mean[i] += d * r;
    m2[i] += d * (float(v.e[i]) - mean[i]);
  }
}
for (int i = 0; i < V; i++) {
  means[mine * C + lane * V + i] = mean[i];
  m2s[mine * C + lane * V + i] = m2[i];
}
if (lane == 0) counts[mine] = count;
BARRIER;
for (int c = tid; c < C; c += threads) {
  Moments all = {0, 0, 0};
  for (int j = 0; j < at_once; j++) all = merge(all, Moments{means[j * C + c], m2s[j * C + c], counts[j]});
  GLOBAL float* out = y + (long(block) * C + c) * 2;
#if BEFORE
  all.mean += float(before[c]);
#endif
  out[0] = all.mean;
  out[1] = all.m2;
}
