package models

import (
	"time"

	"github.com/gomflux/gomflux/mlx"
)

// A Link is what was measured of a group, of its slowest member.
type Link struct {
	Bandwidth float64 // bits per second that a member receives while it sends
	Speed     float64 // FLOPs per second of products
}

// MeasureLink measures one exchange of 4 MB from every member, and a product of matrices: in 10 to 50 ms each over a
// local network and on current devices. All members of the group call it at once.
func (p *Pipeline) MeasureLink() (l Link, err error) {
	n := 4096
	switch {
	case p.device == mlx.CPU && p.dtype != mlx.Float32:
		n = 256 // half precision is slow on the CPU
	case p.device == mlx.CPU:
		n = 1024
	}
	own := Link{Speed: ProductSpeed(p.dtype, n, 1)}
	const elements = 1 << 20
	own.Bandwidth = float64(p.group.Size()-1) * 32 * elements / GatherTime(p.group, elements, 1)
	all, err := gather(p.group, own)
	l = all[0]
	for _, m := range all {
		l = Link{min(l.Bandwidth, m.Bandwidth), min(l.Speed, m.Speed)}
	}
	return l, err
}

// GatherTime returns how many seconds it takes to gather float32 elements of every member of a group, on average.
func GatherTime(g *mlx.Group, elements, times int) float64 {
	x := mlx.Full(1, mlx.Float32, elements)
	mlx.Eval(x, g.AllGather(x.Slice(0, 0, 1))) // all are there
	start := time.Now()
	for range times {
		mlx.Eval(g.AllGather(x))
	}
	return time.Since(start).Seconds() / float64(times)
}

// ProductSpeed returns the FLOPs per second of a product of n×n matrices on the current device, the best of several
// times after the first.
func ProductSpeed(dtype mlx.Dtype, n, times int) float64 {
	best := time.Duration(0)
	mlx.WithScope(func() {
		x, y := mlx.Normal(mlx.Key(1), dtype, n, n), mlx.Normal(mlx.Key(2), dtype, n, n)
		mlx.Eval(x, y)
		for i := range times + 1 {
			start := time.Now()
			mlx.WithScope(func() { mlx.Eval(x.Matmul(y)) })
			if took := time.Since(start); i > 0 && (best == 0 || took < best) {
				best = took
			}
			mlx.StopPoint()
		}
	})
	return 2 * float64(n) * float64(n) * float64(n) / best.Seconds()
}

// Speedup returns how many times as fast as one process the group computes a step of a request, by the step's FLOPs
// and the bytes that its split exchanges. It is 0 if that is not known, as for models so small that other things
// take the time.
func (p *Pipeline) Speedup(request Request, l Link) (float64, error) {
	r, err := p.newRun(request)
	if err != nil || r.Split != SplitPasses && r.Split != SplitSequence {
		return 0, err
	}
	const (
		share    = 0.8  // of the speed of products, at which transformers compute
		shortest = 0.01 // seconds of a step that these figures describe
	)
	flops, _ := r.StepFLOPs(0)
	alone := flops / (share * l.Speed)
	if alone < shortest {
		return 0, nil
	}
	return alone / (alone/float64(p.group.Size()) + 8*r.exchanged(0)/l.Bandwidth), nil
}

// exchanged returns about how many bytes a member of the group receives in a step for a prompt of so many tokens.
func (r *Run) exchanged(text int) (bytes float64) {
	passes, n := len(r.prompts), r.group.Size()
	if r.Split == SplitPasses { // predictions in float32, and what is left for the members of the same pass
		size := r.latentShape(r.latentsSize())
		bytes, passes, n = float64(4*size[0]*size[1]*size[2]), 1, n/2
	}
	t := r.declared.Transformer()
	tokens := r.latentTokens() + r.referenceTokens() + text
	at := func(tokens int) float64 { return t.Class.FLOPs(t.Model, tokens, 0, 0) }
	// Attention takes 4·L²·D FLOPs for L tokens, where D are the channels of all blocks, and nothing else grows
	// with the square. Keys and values have as many channels, except in blocks whose heads share them.
	l := float64(tokens)
	channels := (at(2*tokens) - 2*at(tokens) + at(0)) / (8 * l * l)
	return bytes + float64(passes)*2*l*channels*float64(r.dtype.ItemSize())*float64(n-1)/float64(n)
}
