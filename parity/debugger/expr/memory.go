package expr

import (
	"fmt"
	"runtime"
	"weak"

	"go.starlark.net/starlark"

	"github.com/gomflux/gomflux/mlx"
)

// Limits of tensors.
const (
	maxTensor  = 1e9   // bytes of a tensor
	maxDepth   = 64    // operations that are evaluated together, since MLX's evaluation is recursive
	maxPending = 256e6 // bytes that are computed together, so that an evaluation can be stopped
)

// Limits that tests change: bytes of the tensors that an evaluation holds at a time, and of those
// that global variables hold.
var (
	maxTemporary = int(4e9)
	maxKept      = int(4e9)
)

// A made tensor belongs to the running evaluation. The weak pointer is nil when the expression
// has no reference to it anymore.
type made struct {
	tensor weak.Pointer[tensor]
	array  *mlx.Array
	bytes  int
}

// add makes a tensor of an array of the innermost scope, which took the given bytes.
func (r *run) add(t *tensor, bytes int) (*tensor, error) {
	t.in = r.in
	r.made = append(r.made, made{weak.Make(t), t.a, bytes})
	r.bytes += bytes
	if r.bytes > maxTemporary {
		runtime.GC()
		r.sweep()
	}
	if r.bytes > maxTemporary {
		return nil, fmt.Errorf("the expression's tensors take more than %s", size(maxTemporary))
	}
	return t, r.stopped()
}

// sweep frees the tensors to which the expression has no reference.
func (r *run) sweep() {
	rest := r.made[:0]
	for _, m := range r.made {
		if m.tensor.Value() != nil {
			rest = append(rest, m)
			continue
		}
		m.array.Free()
		r.bytes -= m.bytes
	}
	clear(r.made[len(rest):])
	r.made = rest
}

// op computes a tensor of a shape and dtype from others. Each operation is in a scope of its own,
// so that values inside it are freed.
func (r *run) op(shape []int, dtype mlx.Dtype, f func() *mlx.Array, from ...*tensor) (*tensor, error) {
	bytes, err := tensorSize(shape, dtype)
	if err != nil {
		return nil, err
	}
	if err := r.stopped(); err != nil {
		return nil, err
	}
	t := &tensor{pending: bytes, depth: 1}
	for _, x := range from {
		if x.a == nil {
			return nil, errFreed
		}
		t.pending = min(maxPending, t.pending+x.pending+x.a.Nbytes()) // reading takes time too
		t.depth = max(t.depth, 1+x.depth)
	}
	err = mlx.Try(func() {
		t.a = mlx.Scope(func() *mlx.Array { return f().AsType(dtype).Reshape(shape...) }) // never the operand itself
		if t.depth >= maxDepth || t.pending >= maxPending {
			mlx.Eval(t.a)
			t.depth, t.pending = 0, 0
		}
	})
	if err != nil {
		return nil, bare(err)
	}
	runtime.KeepAlive(from)
	return r.add(t, bytes)
}

// view is op for a result that shares its elements with a tensor.
func (r *run) view(shape []int, from *tensor, f func() *mlx.Array) (*tensor, error) {
	if err := r.stopped(); err != nil {
		return nil, err
	}
	if from.a == nil {
		return nil, errFreed
	}
	t := &tensor{base: from, depth: from.depth + 1, pending: from.pending}
	err := mlx.Try(func() {
		t.a = mlx.Scope(func() *mlx.Array { return f().Reshape(shape...) })
		if t.depth >= maxDepth {
			mlx.Eval(t.a)
			t.depth, t.pending = 0, 0
		}
	})
	if err != nil {
		return nil, bare(err)
	}
	return r.add(t, 0)
}

// alias returns a tensor for an array that belongs to the run of the model, or that f makes.
func (r *run) alias(bytes int, f func() (*mlx.Array, error)) (*tensor, error) {
	t := &tensor{pending: bytes}
	var failed error
	err := mlx.Try(func() {
		t.a = mlx.Scope(func() *mlx.Array {
			a, err := f()
			if failed = err; err != nil {
				return nil
			}
			return a.Reshape(a.Shape()...)
		})
	})
	if err != nil {
		return nil, bare(err)
	}
	if failed != nil {
		return nil, failed
	}
	return r.add(t, bytes)
}

// tensorSize returns the size of a tensor, which must not exceed maxTensor.
func tensorSize(shape []int, dtype mlx.Dtype) (int, error) {
	bytes := dtype.ItemSize()
	for _, n := range shape {
		if n == 0 {
			return 0, nil
		}
	}
	for _, n := range shape {
		if bytes > maxTensor/n {
			return 0, fmt.Errorf("a tensor with shape %v and dtype %v: is larger than %s", shape, dtype, size(maxTensor))
		}
		bytes *= n
	}
	return bytes, nil
}

// maxHeld is about the number of bytes of other values that global variables hold.
const maxHeld = 256e6

// keep makes the tensors that global variables hold independent of the stop, and frees those that
// they held before.
func (in *Interpreter) keep(r *run) error {
	w := walker{held: map[*tensor]bool{}, seen: map[starlark.Value]bool{}}
	for _, v := range in.globals {
		w.add(v)
	}
	full := w.walk()
	for t := range in.kept {
		if !w.held[t] {
			in.forget(t)
		}
	}
	for t := range w.held {
		if in.kept[t] || t.a == nil {
			continue
		}
		err := r.stopped()
		if bytes := t.a.Nbytes(); err == nil && in.bytes+bytes > maxKept {
			err = fmt.Errorf("variables cannot hold more than %s of tensors", size(maxKept))
		}
		if err == nil {
			err = in.retain(t)
		}
		if err != nil {
			full, t.a = err, nil
		}
	}
	return full
}

// retain copies a tensor out of the model's buffers, if it is a part of one, and keeps it.
func (in *Interpreter) retain(t *tensor) error {
	err := mlx.Try(func() {
		a := mlx.Scope(func() *mlx.Array {
			if t.a.Size() == 0 { // MLX's CUDA build crashes in Contiguous without elements
				return mlx.Zeros(t.a.Dtype(), t.a.Shape()...)
			}
			return t.a.Contiguous()
		})
		mlx.Eval(a)
		mlx.Keep(a)
		t.a = a
	})
	if err != nil {
		return bare(err)
	}
	t.base, t.depth, t.pending = nil, 0, 0
	in.kept[t] = true
	in.bytes += t.a.Nbytes()
	return nil
}

func (in *Interpreter) forget(t *tensor) {
	in.bytes -= t.a.Nbytes()
	delete(in.kept, t)
	t.a.Free()
	t.a = nil
}

// A walker finds the tensors that values refer to.
type walker struct {
	held    map[*tensor]bool
	seen    map[starlark.Value]bool // values that have been pending
	pending []starlark.Value
	bytes   int // of other values
}

func (w *walker) walk() error {
	for len(w.pending) > 0 && w.bytes <= maxHeld {
		v := w.pending[len(w.pending)-1]
		w.pending = w.pending[:len(w.pending)-1]
		w.inside(v)
	}
	if w.bytes > maxHeld {
		return fmt.Errorf("variables cannot hold more than %s of values other than tensors", size(maxHeld))
	}
	return nil
}

func (w *walker) add(v starlark.Value) {
	w.bytes += 16
	switch v := v.(type) {
	case *tensor:
		w.held[v] = true
	case starlark.Tuple: // has no identity, but its size is limited
		w.pending = append(w.pending, v)
	case *starlark.List, *starlark.Dict, *starlark.Set, *starlark.Function, *starlark.Builtin:
		if !w.seen[v] {
			w.seen[v] = true
			w.pending = append(w.pending, v)
		}
	default:
		if v != nil {
			w.bytes += textSize(v)
		}
	}
}

// inside adds the values that a value refers to.
func (w *walker) inside(v starlark.Value) {
	switch v := v.(type) {
	case starlark.Tuple:
		for _, x := range v {
			w.add(x)
		}
	case *starlark.List:
		for x := range v.Elements() {
			w.add(x)
		}
	case *starlark.Set:
		for x := range v.Elements() {
			w.add(x)
		}
	case *starlark.Dict:
		for k, x := range v.Entries() {
			w.add(k)
			w.add(x)
		}
	case *starlark.Builtin:
		w.add(v.Receiver())
	case *starlark.Function:
		for i := range v.NumParams() {
			w.add(v.ParamDefault(i))
		}
		for i := range v.NumFreeVars() {
			_, x := v.FreeVar(i)
			w.add(x)
		}
	}
}
