package parity

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/parity/hints"
)

// hintQuestion describes a wrong tensor to package hints. The name is the reference's.
func (r *replay) hintQuestion(name string, tap hooks.Tap, got, want *mlx.Array) hints.Question {
	var input *mlx.Array
	if len(tap.Inputs) > 0 {
		input = tap.Inputs[0].Array
	}
	return hints.Question{
		Input: input,
		Name:  hooks.NameOf(name), Ours: got, Reference: want, Guidance: r.ref.Guidance,
		Names: r.ref.heldNames(), Tensor: func(n hooks.Name) *mlx.Array { return r.samePass(n, tap, want.Shape()) },
	}
}

// samePass returns a tensor of the reference's run, cut to the pass of a tap whose tensor has a
// shape; nil if the run does not have it.
func (r *replay) samePass(n hooks.Name, tap hooks.Tap, shape []int) *mlx.Array {
	a := r.ref.Array(n.String())
	if a == nil || !r.inBatch(tap.Name) || len(shape) < 2 || a.Ndim() < 2 || a.Dim(0) < 2 {
		return a
	}
	part := slices.Clone(a.Shape())
	part[0] = shape[0]
	if a.Ndim() > 2 && len(shape) > 2 && a.Dim(1) > shape[1] {
		part[1] = shape[1]
	}
	return r.onePass(a, n, tap.Negative, part)
}
