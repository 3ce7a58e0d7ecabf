package nn

import "github.com/gomflux/gomflux/mlx"

// Stages divide the blocks of a network over the members of a group: each has the weights of some consecutive
// blocks and runs only these, one member after the other. A nil *Stages is a process that has all blocks.
type Stages struct {
	group *mlx.Group
	ends  []int // of each member's blocks
}

// A Staged is a network whose blocks can be divided into stages. What is outside of blocks, every member computes.
type Staged interface {
	// StageBlocks returns the modules of each block, in the order in which blocks run.
	StageBlocks() [][]any
	// Stage makes passes run this process's blocks only, or all for nil.
	Stage(s *Stages)
}

// Blocks returns a list of modules as blocks, for [Staged].
func Blocks[T any](list []T) (blocks [][]any) {
	for _, b := range list {
		blocks = append(blocks, []any{b})
	}
	return blocks
}

// NewStages divides blocks whose weights have so many bytes. A block belongs to the member in whose equal share
// of all bytes its middle is.
func NewStages(g *mlx.Group, bytes []int64) *Stages {
	s, all, before := &Stages{g, make([]int, g.Size())}, int64(0), int64(0)
	for _, n := range bytes {
		all += n
	}
	for block, n := range bytes {
		for rank := range s.ends {
			if (2*before+n)*int64(len(s.ends)) <= 2*all*int64(rank+1) {
				s.ends[rank] = block + 1
			}
		}
		before += n
	}
	return s
}

// Own returns the first of this process's blocks, and the end.
func (s *Stages) Own() (first, end int) {
	if rank := s.group.Rank(); rank > 0 {
		first = s.ends[rank-1]
	}
	return first, s.ends[s.group.Rank()]
}

// Run returns the hidden states after the blocks from first to end-1, whose function is run, for those before
// them, x [B, L, dim], which have the same shape. Each member passes its result to all others.
func (s *Stages) Run(first, end int, x *mlx.Array, run func(first, end int, x *mlx.Array) *mlx.Array) *mlx.Array {
	if s == nil {
		return run(first, end, x)
	}
	for rank, stop := range s.ends {
		if stop = min(stop, end); stop <= first {
			continue
		}
		if rank == s.group.Rank() {
			x = run(first, stop, x)
		}
		x = s.group.Broadcast(x, rank)
		mlx.Eval(x) // the host waits for the others: on a GPU that waits itself, macOS would end the command
		first = stop
	}
	return x
}
