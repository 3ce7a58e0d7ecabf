package mlx

import (
	"runtime"
	"slices"
	"sync"

	"github.com/gomflux/gomflux/mlx/internal/mlxc"
)

// scopes is the innermost scope. It belongs to the MLX thread.
var scopes *scope

type scope struct {
	arrays []*Array
	parent *scope
}

func pushScope() *scope {
	scopes = &scope{parent: scopes}
	return scopes
}

// popScope ends the innermost scope and frees its arrays, except those of
// keep, which move to the scope around it.
func popScope(keep ...*Array) {
	s := scopes
	scopes = s.parent
	for _, a := range keep {
		if a != nil && a.scope == s {
			a.scope = nil
			adopt(a)
		}
	}
	for _, a := range s.arrays {
		if a.scope == s {
			a.scope = nil
			a.free()
		}
	}
}

// adopt puts an array without a scope into the innermost one or, outside any,
// in the hands of the garbage collector.
func adopt(a *Array) {
	if scopes != nil {
		a.scope = scopes
		scopes.arrays = append(scopes.arrays, a)
		return
	}
	a.leaveToCollector()
}

func (a *Array) leaveToCollector() {
	c := runtime.AddCleanup(a, queueFree, a.handle)
	a.cleanup = &c
}

// Scope runs f and frees every array that was made in it, except the one it
// returns (which may be nil).
func Scope(f func() *Array) *Array {
	pushScope()
	out := f()
	popScope(out)
	return out
}

// Scopes is [Scope] for several results.
func Scopes(f func() []*Array) []*Array {
	pushScope()
	out := f()
	popScope(out...)
	return out
}

// unwind ends the scopes inside outer, for those who recover from a panic.
func unwind(outer *scope) {
	for scopes != nil && scopes != outer {
		popScope()
	}
}

// Chain passes x through f once for each layer. Every layer has a scope of its
// own, and after it is a [StopPoint], so that only one layer's arrays are alive
// at a time and a job stops between two layers.
func Chain[T any](x *Array, layers []T, f func(layer T, x *Array) *Array) *Array {
	return chain([]*Array{x}, layers, one(f), StopPoint)[0]
}

// ChainAll is [Chain] for layers that pass several arrays on. A layer may return
// more or fewer than it got.
func ChainAll[T any](x []*Array, layers []T, f func(layer T, x []*Array) []*Array) []*Array {
	return chain(x, layers, f, StopPoint)
}

// EvalChain is [Chain] with an evaluation after every layer on a GPU too. It is
// for layers whose arrays are large and few: what a GPU has queued of the next
// ones takes memory before it is computed.
func EvalChain[T any](x *Array, layers []T, f func(layer T, x *Array) *Array) *Array {
	return chain([]*Array{x}, layers, one(f), func(y ...*Array) {
		if thread.tracing == 0 {
			Eval(y...)
		}
		StopPoint(y...)
	})[0]
}

func one[T any](f func(layer T, x *Array) *Array) func(T, []*Array) []*Array {
	return func(layer T, x []*Array) []*Array { return []*Array{f(layer, x[0])} }
}

func chain[T any](x []*Array, layers []T, f func(layer T, x []*Array) []*Array, after func(y ...*Array)) []*Array {
	var own []*Array // those of x that a layer made
	for _, layer := range layers {
		made := len(scopes.arrays)
		y := Scopes(func() []*Array { return f(layer, x) })
		after(y...)
		var kept []*Array
		for _, a := range y {
			if slices.Contains(own, a) || slices.Contains(scopes.arrays[made:], a) {
				kept = append(kept, a)
			}
		}
		for _, a := range own {
			if !slices.Contains(y, a) {
				a.Free()
			}
		}
		x, own = y, kept
	}
	return x
}

// Keep takes arrays out of their scopes: they live until Free, or until the
// garbage collector finds that nothing refers to them.
func Keep(arrays ...*Array) {
	for _, a := range arrays {
		if a == nil || a.scope == nil {
			continue
		}
		a.scope = nil
		a.leaveToCollector()
	}
}

// Free frees an array at once. A loop that replaces an array by the result of a
// Scope wants it, since the results pile up in the scope around it.
func (a *Array) Free() {
	a.scope = nil
	a.free()
}

func (a *Array) free() {
	if a.cleanup != nil {
		a.cleanup.Stop()
		a.cleanup = nil
	}
	if a.handle != 0 {
		mlxc.ArrayFree(a.handle)
		a.handle = 0
	}
}

// queue holds the handles that the garbage collector gave up. They are freed
// on the MLX thread.
var queue struct {
	sync.Mutex
	handles []uintptr
}

func queueFree(handle uintptr) {
	queue.Lock()
	queue.handles = append(queue.handles, handle)
	queue.Unlock()
}

func freeQueued() {
	queue.Lock()
	handles := queue.handles
	queue.handles = nil
	queue.Unlock()
	for _, h := range handles {
		mlxc.ArrayFree(h)
	}
}
