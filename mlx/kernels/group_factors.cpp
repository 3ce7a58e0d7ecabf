// A block merges the moments [N, chunks, C, 2] of one group, and returns for each of its channels
// the factor and the summand by which x + before is normalized: [N, 2, C].
SHARED(float, means, 32);
SHARED(float, m2s, 32);
SHARED(float, counts, 32);
const int each = C / GROUPS, n = block / GROUPS, g = block % GROUPS;
const int chunks = (pixels + chunk - 1) / chunk;
Moments all = {0, 0, 0};
for (int i = tid; i < chunks * each; i += threads) {
  const int k = i / each, left = pixels - k * chunk;
  const GLOBAL float* in = moments + ((long(n) * chunks + k) * C + g * each + i % each) * 2;
  all = merge(all, Moments{in[0], in[1], float(left < chunk ? left : chunk)});
}
for (int mask = 16; mask > 0; mask /= 2)
  all = merge(all, Moments{warp_xor(all.mean, mask), warp_xor(all.m2, mask), warp_xor(all.count, mask)});
if (tid % 32 == 0) {
  means[tid / 32] = all.mean;
  m2s[tid / 32] = all.m2;
  counts[tid / 32] = all.count;
}
BARRIER;
all = Moments{0, 0, 0};
for (int j = 0; j < threads / 32; j++) all = merge(all, Moments{means[j], m2s[j], counts[j]});
const float r = RSQRT(all.m2 / all.count + eps);
for (int c = g * each + tid; c < (g + 1) * each; c += threads) {
  const float factor = r * float(weight[c]);
#if BEFORE
  const float mean = all.mean - float(before[c]);
#else
  const float mean = all.mean;
#endif
  y[long(n) * 2 * C + c] = factor;
  y[(long(n) * 2 + 1) * C + c] = float(bias[c]) - mean * factor;
}
