package scheduler

import "math"

// RNGs are the names of the random number generators: MLX's own, and PyTorch's.
var RNGs = []string{"mlx", "torch"}

// TorchNoise returns n values of the standard normal distribution as
// torch.randn(n, generator=torch.Generator("cpu").manual_seed(seed)) draws
// them in float32. The uniform values that they are computed from
// are bit-equal to PyTorch's. Their logarithms, sines and cosines differ by a few roundings, as
// PyTorch itself does between processors.
func TorchNoise(seed uint64, n int) []float32 {
	g := newMT19937(uint32(seed)) // PyTorch uses only 32 bits
	out := make([]float32, n)
	if n < 16 {
		for i := 0; i < n; i += 2 {
			a, b := g.normals()
			out[i] = float32(a)
			if i+1 < n {
				out[i+1] = float32(b)
			}
		}
		return out
	}
	for i := range out {
		out[i] = g.uniform()
	}
	for i := 0; i+16 <= n; i += 16 {
		boxMuller((*[16]float32)(out[i:]))
	}
	if n%16 != 0 { // the last 16 values are drawn again
		last := (*[16]float32)(out[n-16:])
		for i := range last {
			last[i] = g.uniform()
		}
		boxMuller(last)
	}
	return out
}

// boxMuller turns 16 uniform values into normal ones, in the order of ATen's normal_fill_16.
func boxMuller(x *[16]float32) {
	for i := range 8 {
		radius := float32(math.Sqrt(float64(-2 * float32(math.Log(float64(1-x[i]))))))
		sin, cos := math.Sincos(float64(float32(2*math.Pi) * x[i+8]))
		x[i], x[i+8] = radius*float32(cos), radius*float32(sin)
	}
}

// An mt19937 is the Mersenne Twister of Matsumoto and Nishimura (1998).
type mt19937 struct {
	state [624]uint32
	next  int
}

func newMT19937(seed uint32) *mt19937 {
	g := &mt19937{next: 624}
	g.state[0] = seed
	for i := 1; i < len(g.state); i++ {
		before := g.state[i-1]
		g.state[i] = 1812433253*(before^before>>30) + uint32(i)
	}
	return g
}

func (g *mt19937) uint32() uint32 {
	if g.next == len(g.state) {
		g.twist()
	}
	y := g.state[g.next]
	g.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (g *mt19937) twist() {
	const n, m = 624, 397
	for i := range n {
		y := g.state[i]&0x80000000 | g.state[(i+1)%n]&0x7fffffff
		g.state[i] = g.state[(i+m)%n] ^ y>>1 ^ y&1*0x9908b0df
	}
	g.next = 0
}

// uniform returns a value in [0, 1) with 24 bits.
func (g *mt19937) uniform() float32 {
	return float32(g.uint32()&(1<<24-1)) / (1 << 24)
}

// uniform53 returns a value in [0, 1) with 53 bits.
func (g *mt19937) uniform53() float64 {
	high := uint64(g.uint32())
	return float64((high<<32|uint64(g.uint32()))&(1<<53-1)) / (1 << 53)
}

// normals returns two values as at::normal_distribution<double> draws them, which PyTorch uses for
// fewer than 16 values.
func (g *mt19937) normals() (a, b float64) {
	u1 := g.uniform53()
	u2 := g.uniform53()
	radius := math.Sqrt(-2 * math.Log1p(-u2))
	sin, cos := math.Sincos(2 * math.Pi * u1)
	return radius * cos, radius * sin
}
