package parity

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// A tensor is one on the host.
type tensor struct {
	name  string
	shape []int
	v     []float64
}

func hostTensor(name string, a *mlx.Array) tensor {
	f := a.Floats()
	t := tensor{name, a.Shape(), make([]float64, len(f))}
	for i, x := range f {
		t.v[i] = float64(x)
	}
	return t
}

// last is the length of the last axis.
func (t tensor) last() int { return t.shape[len(t.shape)-1] }

// apply makes a tensor of this one's values.
func (t tensor) apply(f func(x float64) float64) tensor {
	out := tensor{t.name, t.shape, make([]float64, len(t.v))}
	for i, x := range t.v {
		out.v[i] = f(x)
	}
	return out
}

// with joins the values of two tensors of one shape.
func (t tensor) with(u tensor, f func(x, y float64) float64) tensor {
	out := tensor{t.name, t.shape, make([]float64, len(t.v))}
	for i, x := range t.v {
		out.v[i] = f(x, u.v[i])
	}
	return out
}

func times(x, y float64) float64 { return x * y }

func plus(x, y float64) float64 { return x + y }

func minus(x, y float64) float64 { return x - y }

// distance is the norm of the difference.
func distance(a, b tensor) float64 {
	sum := 0.0
	for i, x := range a.v {
		d := x - b.v[i]
		sum += d * d
	}
	return math.Sqrt(sum)
}

func norm(a tensor) float64 {
	sum := 0.0
	for _, x := range a.v {
		sum += x * x
	}
	return math.Sqrt(sum)
}

// A search looks for known patterns in one wrong tensor. A pattern fits if it
// explains the error: what it would compute from the reference's tensors comes
// at least ten times closer to ours than the reference's tensor does.
type search struct {
	r         *replay
	name      hooks.Name // the reference's
	tap       hooks.Tap
	got, want tensor
	off       float64 // the norm of the error
	hints     []Hint
}

// maxHinted is how many values a tensor may have to be looked into.
const maxHinted = 1 << 22

func (s *search) say(key, format string, args ...any) {
	for _, h := range s.hints {
		if h.Key == key {
			return
		}
	}
	s.hints = append(s.hints, Hint{key, fmt.Sprintf(format, args...)})
}

// fits says whether a pattern explains ours.
func (s *search) fits(candidate tensor) bool {
	return len(candidate.v) == len(s.got.v) && distance(candidate, s.got) <= 0.1*s.off
}

// isReference says whether a pattern is what the reference computes.
func (s *search) isReference(candidate tensor) bool {
	return len(candidate.v) == len(s.want.v) && distance(candidate, s.want) <= min(1e-3*norm(s.want), 0.1*s.off)
}

// array is a tensor of the reference in the part that the tap is of, or nil.
func (s *search) array(n hooks.Name) *mlx.Array {
	a := s.r.ref.Array(n.String())
	if a == nil {
		return nil
	}
	if s.r.inBatch(s.tap.Name) && len(s.want.shape) > 1 && a.Ndim() > 1 && a.Dim(0) > 1 {
		part := slices.Clone(a.Shape())
		part[0] = s.want.shape[0]
		if a.Ndim() > 2 && a.Dim(1) > s.want.shape[1] && len(s.want.shape) > 2 {
			part[1] = s.want.shape[1]
		}
		a = s.r.onePass(a, n, s.tap.Negative, part)
	}
	return a
}

// tensor is one of the reference's.
func (s *search) tensor(module string, point hooks.Point) (tensor, bool) {
	n := hooks.Name{Module: module, Step: s.name.Step, Call: s.name.Call, Point: point}
	a := s.array(n)
	if a == nil || a.Size() > maxHinted || a.Size() == 0 {
		return tensor{}, false
	}
	return hostTensor(n.String(), a), true
}

func (s *search) input(module, key string) (tensor, bool) {
	return s.tensor(module, hooks.Point{Kind: hooks.Input, Key: key})
}

// parentOf is the path without its last part.
func parentOf(module string) string {
	i := strings.LastIndexByte(module, '.')
	return module[:max(0, i)]
}

// around are the reference's tensors of the modules around the wrong one and
// inside it, at the same step.
func (s *search) around(scope string, accept func(tensor) bool) []tensor {
	var out []tensor
	for _, name := range s.r.ref.Names() {
		n, err := hooks.ParseName(name)
		if err != nil || n == s.name || n.Step != s.name.Step || scope != "" && n.Module != scope && !strings.HasPrefix(n.Module, scope+".") {
			continue
		}
		a := s.array(n)
		if a == nil || a.Size() > maxHinted || a.Size() < 2 || len(out) > 300 {
			continue
		}
		if t := hostTensor(name, a); accept(t) {
			out = append(out, t)
		}
	}
	return out
}

func (s *search) finite() bool {
	r, w := rangeOf(narrow(s.got.v)), rangeOf(narrow(s.want.v))
	if bad := r.NaN + r.Inf; bad > 0 && w.NaN+w.Inf == 0 {
		s.say("not finite", "%d of %d values are NaN or infinite: an overflow, a division by zero, or a missing attention scale", bad, len(s.got.v))
	}
	return r.NaN+r.Inf+w.NaN+w.Inf == 0
}

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// own is 1 for a module's own tensor.
func own(t tensor, module string) int {
	if n, err := hooks.ParseName(t.name); err == nil && n.Module == module {
		return 1
	}
	return 0
}

// permute is a copy with its axes in another order.
func (t tensor) permute(axes []int) tensor {
	n := len(t.shape)
	strides, stride := make([]int, n), 1
	for i := n - 1; i >= 0; i-- {
		strides[i] = stride
		stride *= t.shape[i]
	}
	out := tensor{t.name, make([]int, n), make([]float64, 0, len(t.v))}
	for i, a := range axes {
		out.shape[i] = t.shape[a]
	}
	index := make([]int, n)
	for range t.v {
		at := 0
		for i, a := range axes {
			at += index[i] * strides[a]
		}
		out.v = append(out.v, t.v[at])
		for i := n - 1; i >= 0; i-- {
			if index[i]++; index[i] < out.shape[i] {
				break
			}
			index[i] = 0
		}
	}
	return out
}

// reshape is the same values in another shape.
func (t tensor) reshape(shape ...int) tensor { return tensor{t.name, shape, t.v} }

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			out = append(out, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return out
}
