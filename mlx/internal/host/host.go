// Package host computes operations of neural networks on the CPU, in float32 and on all cores: those
// for which MLX's CPU backend on Linux takes many passes over memory, or computes an exponential at
// a time on one thread. On amd64 with AVX2 and FMA the inner loops are in assembly, elsewhere in Go.
//
// Slices are in row-major order. Results are the same however many cores there are.
package host

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Vector reports whether the inner loops are in assembly. Without it, products of matrices, and
// so [Attention] and convolutions, are slower than those of a BLAS.
func Vector() bool { return vector }

// parallel calls f for each task from 0 to n-1, on up to GOMAXPROCS goroutines, and waits for
// all of them.
func parallel(n int, f func(task int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	var others sync.WaitGroup
	for range workers - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// ranges calls f for parts [lo, hi) of n of about the given size, as [parallel] does.
func ranges(n, size int, f func(lo, hi int)) {
	size = max(1, size)
	parallel((n+size-1)/size, func(i int) { f(i*size, min(n, (i+1)*size)) })
}

const (
	lanes = 8       // elements of a vector
	chunk = 1 << 14 // elements that a task reads or writes, about half a core's first cache
)

// roundUp returns n rounded up to a multiple.
func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

// buffers are the freed buffers of scratch.
var buffers sync.Pool

// scratch returns a buffer of n elements with any contents.
func scratch(n int) []float32 {
	if b, ok := buffers.Get().(*[]float32); ok && cap(*b) >= n {
		return (*b)[:n]
	}
	return make([]float32, n)
}

// release frees buffers of scratch.
func release(all ...[]float32) {
	for _, b := range all {
		buffers.Put(&b)
	}
}
