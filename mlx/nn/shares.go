package nn

import (
	"math/bits"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// Shares are what the members of a group have of the tokens of a sequence, which consists of streams,
// such as text and image. A member computes its share of every stream. What it needs of the others are
// their keys and values, which it gets in each layer, so the result is that of one process, up to
// rounding. A nil *Shares is a process alone, which has all tokens.
type Shares struct {
	group   *mlx.Group
	streams []int // tokens of each
	kept    []*mlx.Array
}

// NewShares returns the shares of a group, nil for a process alone, in streams of so many tokens.
func NewShares(g *mlx.Group, streams ...int) *Shares { return &Shares{group: g, streams: streams} }

// Alone reports whether this process has all tokens.
func (s *Shares) Alone() bool { return s == nil || s.group == nil || s.group.Size() == 1 }

// Len returns the number of streams.
func (s *Shares) Len() int { return len(s.streams) }

// Streams returns the shares in the streams from first to end-1.
func (s *Shares) Streams(first, end int) *Shares {
	return &Shares{group: s.group, streams: s.streams[first:end]}
}

// Range returns the first of this process's tokens of a stream, and the end.
func (s *Shares) Range(stream int) (first, end int) {
	if s.Alone() {
		return 0, s.streams[stream]
	}
	return s.of(stream, s.group.Rank())
}

// Count returns the number of this process's tokens of a stream.
func (s *Shares) Count(stream int) int {
	first, end := s.Range(stream)
	return end - first
}

// of returns a member's tokens of a stream. Every member has all of a stream with fewer tokens than members.
func (s *Shares) of(stream, rank int) (first, end int) {
	n, size := s.streams[stream], s.group.Size()
	if n < size {
		return 0, n
	}
	return rank * n / size, (rank + 1) * n / size
}

// counts returns the number of tokens of each member.
func (s *Shares) counts() []int {
	all := make([]int, s.group.Size())
	for rank := range all {
		for i := range s.streams {
			first, end := s.of(i, rank)
			all[rank] += end - first
		}
	}
	return all
}

// Share returns this process's tokens of all tokens of the streams, which are an axis of x; nil for nil.
func (s *Shares) Share(axis int, x *mlx.Array) *mlx.Array {
	if s.Alone() || x == nil {
		return x
	}
	var parts []*mlx.Array
	at := 0
	for i, n := range s.streams {
		first, end := s.Range(i)
		parts = append(parts, x.Slice(axis, at+first, at+end))
		at += n
	}
	return mlx.Concat(axis, parts...)
}

// Rope is [Shares.Share] of a table of all tokens.
func (s *Shares) Rope(r Rope) Rope {
	r.Cos, r.Sin, r.Shared = s.Share(0, r.Cos), s.Share(0, r.Sin), !s.Alone()
	return r
}

// Whole returns all tokens of the streams for this process's x [B, l, ...].
func (s *Shares) Whole(x *mlx.Array) *mlx.Array {
	if s.Alone() {
		return x
	}
	return s.gather(x, true)
}

// gather is Whole. Unless the tokens are to be in order, those of the members may follow each other,
// which saves a copy.
func (s *Shares) gather(x *mlx.Array, ordered bool) *mlx.Array {
	size, b, counts := s.group.Size(), x.Dim(0), s.counts()
	longest := slices.Max(counts)
	if l := x.Dim(1); l < longest { // collectives take equal shapes
		low, high := make([]int, x.Ndim()), make([]int, x.Ndim())
		high[1] = longest - l
		x = x.Pad(low, high, 0)
	}
	all := s.group.AllGather(x) // [size·B, longest, ...]
	even := !slices.ContainsFunc(s.streams, func(n int) bool { return n%size != 0 })
	if even && b == 1 && (!ordered || len(s.streams) == 1) {
		return all.Reshape(append([]int{1, size * longest}, x.Shape()[2:]...)...)
	}
	var parts []*mlx.Array
	at := make([]int, size) // where the stream begins in the members' shares
	for i, n := range s.streams {
		for rank := range size {
			first, end := s.of(i, rank)
			start, stop := at[rank], at[rank]+end-first
			at[rank] = stop
			if rank == 0 || n >= size {
				parts = append(parts, all.Slice(0, rank*b, (rank+1)*b).Slice(1, start, stop))
			}
		}
	}
	return mlx.Concat(1, parts...)
}

// KV returns keys and values [B, H, L, D] of all tokens for those of this process, and for the array in which both are
// joined, or nil. They are in order if that matters.
func (s *Shares) KV(k, v, joined *mlx.Array, ordered bool) (keys, values *mlx.Array) {
	if s.Alone() {
		return k, v
	}
	lengthFirst := func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 2, 1, 3) }
	if joined == nil {
		joined = mlx.Concat(2, lengthFirst(k), lengthFirst(v))
	}
	both := s.gather(joined, ordered).Split(2, 2)
	return lengthFirst(both[0]), lengthFirst(both[1])
}

// Keep makes hooks see arrays as they are, since they have no axis of tokens that is shared.
func (s *Shares) Keep(x ...*mlx.Array) { s.kept = append(s.kept, x...) }

// Observe returns what a hook sees of a tensor: all of it, if x has an axis with this process's tokens
// of some streams. share takes a replacement back to this process's part. All members of the group
// observe the same tensors.
func (s *Shares) Observe(p hooks.Point, x *mlx.Array) (whole *mlx.Array, share func(*mlx.Array) *mlx.Array) {
	itself := func(x *mlx.Array) *mlx.Array { return x }
	axes := []int{1, 0} // [B, L, D], or [L, B, D] in some references
	switch {
	case x == nil || slices.Contains(s.kept, x) || x.Ndim() < 2 || x.Ndim() == 2 && x.Dtype() != mlx.Int32:
		return x, itself // of matrices only indices have an axis of tokens
	case p.Key == hooks.Weights:
		axes = []int{2}
	case x.Ndim() == 4:
		axes = []int{1, 2} // [B, L, H, D] or [B, H, L, D]
	case x.Ndim() != 3:
		axes = []int{1}
	}
	for _, axis := range axes {
		streams := s.with(x.Dim(axis))
		if streams == nil {
			continue
		}
		swapped := func(x *mlx.Array) *mlx.Array {
			order := []int{0, 1, 2, 3}[:x.Ndim()]
			order[1], order[axis] = order[axis], order[1]
			return x.Transpose(order...)
		}
		whole := swapped(streams.Whole(swapped(x)))
		mlx.Eval(whole) // a hook of another member may not need it
		return whole, func(x *mlx.Array) *mlx.Array { return streams.Share(axis, x) }
	}
	return x, itself
}

// with returns the shares in those streams of which this process has n tokens, and the others as many as
// they pass; nil if no streams have these.
func (s *Shares) with(n int) *Shares {
	given := s.group.AllGather(mlx.FromInt32([]int32{int32(n)}, 1)).Int32s()
	for set := range 1 << len(s.streams) {
		some := &Shares{group: s.group}
		for i, n := range s.streams {
			if set&(1<<i) != 0 {
				some.streams = append(some.streams, n)
			}
		}
		if bits.OnesCount(uint(set)) > 0 && slices.EqualFunc(some.counts(), given, func(a int, b int32) bool { return a == int(b) }) {
			return some
		}
	}
	return nil
}

// Sharing makes hooks see the whole of tensors of which this process has a share, until end.
func (m *Module) Sharing(s *Shares) (end func()) {
	if !m.Observed() || s.Alone() {
		return func() {}
	}
	outer := m.points.Split
	m.points.Split = s
	return func() { m.points.Split = outer }
}

// Output returns the whole of what f computes for this process's tokens. Hooks of the model m see it whole too.
func (s *Shares) Output(m *Module, f func() *mlx.Array) *mlx.Array {
	defer m.Sharing(s)()
	return s.Whole(f())
}
