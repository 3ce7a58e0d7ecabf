package textenc

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

var RelativeBucket = relativeBucket

// Displace changes the positions of the tokens that follow.
func (c *Cache) Displace(by int) { c.behind[0] -= by }

// Shift moves all keys and values one token on.
func (c *Cache) Shift() {
	for i := range c.layers {
		l := &c.layers[i]
		shifted := func(x *mlx.Array) *mlx.Array {
			n := x.Dim(2)
			return mlx.Concat(2, x.Slice(2, n-1, n), x.Slice(2, 0, n-1))
		}
		if l[0].Ndim() == 4 { // a layer of attention
			l.set(0, shifted(l[0]), shifted(l[1]))
		}
	}
}

// Bytes returns the size of the cache's arrays without the tails of steps.
func (c *Cache) Bytes() (n int64) {
	for _, l := range c.layers {
		for _, x := range l[:2] {
			n += int64(x.Nbytes())
		}
	}
	return n
}

// UpProj returns a layer of the first feed-forward network.
func (m *Qwen3) UpProj() *nn.Linear { return m.Layers[0].MLP.UpProj }
