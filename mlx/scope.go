package mlx

import (
	"iter"
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

// popScope ends the innermost scope and frees its arrays, except those in keep, which move
// to the enclosing scope.
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

// adopt adds an array without a scope to the innermost scope. Without any scope, it leaves
// the array to the garbage collector.
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

// Scope runs f and frees every array that f made, except its result (which may be nil).
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

// unwind ends the scopes inside outer, after a recovered panic.
func unwind(outer *scope) {
	for scopes != nil && scopes != outer {
		popScope()
	}
}

// WithScope runs f and frees every array that f made.
func WithScope(f func()) {
	pushScope()
	f()
	popScope()
}

// Layers iterates over the layers of a network. state points to the variables that one
// layer passes to the next:
//
//	for i, layer := range mlx.Layers(m.Layers, &x) {
//		x = layer.Forward(x)
//	}
//
// Each iteration has its own scope, which frees all its arrays except those in state
// (which may be nil), and ends with a [StopPoint]. So only one layer's arrays are in
// memory at a time, and a job can stop between two layers. An array from an earlier
// iteration is freed when no variable of state refers to it anymore.
func Layers[T any](layers []T, state ...**Array) iter.Seq2[int, T] {
	return eachLayer(layers, state, StopPoint)
}

// Chain applies f with each of the layers to x, as a loop over [Layers].
func Chain[T any](x *Array, layers []T, f func(layer T, x *Array) *Array) *Array {
	for _, layer := range Layers(layers, &x) {
		x = f(layer, x)
	}
	return x
}

// EvalChain is [Chain] with an evaluation after every layer, on a GPU too, where it waits for the
// layer. Use it for layers with large arrays if memory is short: on a GPU, MLX allocates memory for
// layers when they are queued, before they are computed.
func EvalChain[T any](x *Array, layers []T, f func(layer T, x *Array) *Array) *Array {
	for _, layer := range eachLayer(layers, []**Array{&x}, evalPoint) {
		x = f(layer, x)
	}
	return x
}

// evalPoint is a [StopPoint] that evaluates the arrays on every device.
func evalPoint(arrays ...*Array) {
	if thread.tracing == 0 {
		Eval(arrays...)
	}
	StopPoint(arrays...)
}

func eachLayer[T any](layers []T, state []**Array, after func(...*Array)) iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		var made []*Array // by the layers, and still in state
		for i, layer := range layers {
			outer := len(scopes.arrays)
			pushScope()
			more := yield(i, layer)
			arrays := arraysOf(state)
			popScope(arrays...)
			after(arrays...)
			var kept []*Array
			for _, a := range arrays {
				if slices.Contains(made, a) || slices.Contains(scopes.arrays[outer:], a) {
					kept = append(kept, a)
				}
			}
			for _, a := range made {
				if !slices.Contains(arrays, a) {
					a.Free()
				}
			}
			made = kept
			if !more {
				return
			}
		}
	}
}

// arraysOf returns the arrays in state that are not nil.
func arraysOf(state []**Array) (arrays []*Array) {
	for _, a := range state {
		if *a != nil {
			arrays = append(arrays, *a)
		}
	}
	return arrays
}

// Keep removes arrays from their scopes. They stay in memory until Free, or until the
// garbage collector finds them unreferenced.
func Keep(arrays ...*Array) {
	for _, a := range arrays {
		if a == nil || a.scope == nil {
			continue
		}
		a.scope = nil
		a.leaveToCollector()
	}
}

// Free frees an array at once. A loop that replaces an array by the result of a Scope
// needs it, since the results would accumulate in the enclosing scope.
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

// queue holds the handles of arrays that the garbage collector found unreferenced. They
// are freed on the MLX thread.
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
