package mlx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

const mib = 1 << 20

// block returns an evaluated array of n MiB.
func block(n int) *mlx.Array {
	a := mlx.Full(1, mlx.Float32, n, mib/4)
	mlx.Eval(a)
	return a
}

// grown returns by how many MiB ActiveMemory grew while f ran.
func grown(f func()) int {
	before := settled()
	f()
	return (settled() - before + mib/2) / mib
}

// settled returns ActiveMemory when a GPU's work is done: a thread of MLX releases arrays
// shortly after they are computed.
func settled() int {
	if mlx.CurrentDevice() != mlx.CPU {
		time.Sleep(20 * time.Millisecond)
	}
	return mlx.ActiveMemory()
}

// active returns ActiveMemory between jobs.
func active(t *testing.T) (n int) {
	mlxtest.Do(t, func() { n = settled() })
	return n
}

func TestScopeFrees(t *testing.T) {
	mlxtest.Do(t, func() {
		var inner, out *mlx.Array
		n := grown(func() {
			out = mlx.Scope(func() *mlx.Array {
				inner = block(2)
				x := mlx.Scope(func() *mlx.Array {
					block(4)
					return block(8)
				})
				if n := grown(func() { block(0) }); n != 0 {
					t.Errorf("%d MiB", n)
				}
				if mlx.Scope(func() *mlx.Array { block(16); return nil }) != nil {
					t.Error("found an array where nil was returned")
				}
				return x
			})
		})
		if n != 8 {
			t.Errorf("%d MiB are left of nested scopes, expected the returned 8", n)
		}
		if got := out.Shape(); got[0] != 8 {
			t.Errorf("found shape %v", got)
		}
		if s := inner.String(); s != "array(freed)" {
			t.Errorf("found %s for an array whose scope ended", s)
		}
	})
}

func TestScopes(t *testing.T) {
	mlxtest.Do(t, func() {
		outer := block(1)
		var many []*mlx.Array
		n := grown(func() {
			many = mlx.Scopes(func() []*mlx.Array {
				a := block(2)
				block(4)
				// duplicates, arrays from outside and nil are allowed
				return []*mlx.Array{a, block(8), a, outer, nil}
			})
		})
		if n != 10 || many[0].Dim(0) != 2 || many[1].Dim(0) != 8 || many[3] != outer {
			t.Errorf("%d MiB are left, expected 10", n)
		}
		// results belong to the enclosing scope
		n = grown(func() {
			mlx.Scope(func() *mlx.Array {
				mlx.Scope(func() *mlx.Array { return block(4) })
				return nil
			})
		})
		if n != 0 {
			t.Errorf("%d MiB are left of an array that two scopes had", n)
		}
		if outer.Dim(0) != 1 {
			t.Error("an array from outside was changed")
		}
	})
}

func TestJobFrees(t *testing.T) {
	before := active(t)
	for _, end := range []func(){func() {}, func() { mlx.Throw(errors.New("stop")) },
		func() { mlx.Zeros(mlx.Float32, 2).Add(mlx.Zeros(mlx.Float32, 3)) }} {
		mlx.Do(context.Background(), func() error { block(8); end(); return nil })
		if n := active(t) - before; n != 0 {
			t.Errorf("%d bytes are left of a job", n)
		}
	}
}

func TestPanicInScopesFrees(t *testing.T) {
	before := active(t)
	for _, end := range []func(){
		func() { mlx.Zeros(mlx.Float32, 2).Add(mlx.Zeros(mlx.Float32, 3)) },
		func() { panic("a bug") },
		func() { mlx.Call(func() { panic("the user's bug") }) },
	} {
		func() {
			defer func() { recover() }()
			mlx.Do(context.Background(), func() error {
				block(1)
				mlx.Scope(func() *mlx.Array {
					block(2)
					return mlx.Chain(block(4), []int{0}, func(int, *mlx.Array) *mlx.Array { block(8); end(); return nil })
				})
				return nil
			})
		}()
		if n := active(t) - before; n != 0 {
			t.Errorf("%d bytes are left after a panic", n)
		}
	}
}

func TestKeepAndFree(t *testing.T) {
	before := active(t)
	var kept *mlx.Array
	mlxtest.Do(t, func() {
		mlx.Scope(func() *mlx.Array {
			kept = block(4)
			mlx.Keep(kept, nil)
			mlx.Keep(kept) // may be called again
			return nil
		})
	})
	if n := active(t) - before; n != 4*mib {
		t.Errorf("%d bytes live after the job, expected the kept %d", n, 4*mib)
	}
	mlxtest.Do(t, func() {
		if got := kept.Slice(0, 3, 4).Sum(1).Item(); got != mib/4 {
			t.Errorf("the kept array sums to %v", got)
		}
		kept.Free()
		kept.Free() // may be called again
	})
	if n := active(t) - before; n != 0 {
		t.Errorf("%d bytes live after Free", n)
	}
	runtime.KeepAlive(kept)
}

// TestCollectorFreesKept checks that the thread frees kept arrays that the garbage collector
// found unreferenced, with the next job.
func TestCollectorFreesKept(t *testing.T) {
	before := active(t)
	mlxtest.Do(t, func() {
		for range 4 {
			mlx.Keep(block(2))
		}
	})
	deadline := time.Now().Add(20 * time.Second)
	for { // cleanups run later, on another goroutine
		runtime.GC()
		n := active(t) - before
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of unreferenced arrays are not freed", n)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestFreeOfKeptThenCollected checks that Free stops the collector's cleanup. A handle that
// is freed twice could belong to another array by then.
func TestFreeOfKeptThenCollected(t *testing.T) {
	mlxtest.Do(t, func() {
		for range 100 {
			a := mlx.Zeros(mlx.Float32, 16)
			mlx.Keep(a)
			a.Free()
		}
	})
	for range 3 {
		runtime.GC()
		mlxtest.Do(t, func() { mlxtest.Same(t, "alive", mlx.Full(3, mlx.Float32, 2).Floats(), []float32{3, 3}) })
	}
}

func TestChainFrees(t *testing.T) {
	mlxtest.Do(t, func() {
		first := block(1)
		mlx.ResetPeakMemory()
		start := mlx.ActiveMemory()
		layers := make([]int, 50)
		out := mlx.Chain(first, layers, func(_ int, x *mlx.Array) *mlx.Array { return x.Plus(1).Times(1) })
		if got := out.Slice(1, 0, 1).Item(); got != 51 {
			t.Errorf("found %v after 50 layers", got)
		}
		if n := settled() - start; n != mib {
			t.Errorf("%d bytes live after the chain, expected its output's %d", n, mib)
		}
		if n := mlx.PeakMemory() - start; mlx.CurrentDevice() == mlx.CPU && n > 4*mib {
			t.Errorf("%d bytes at the peak, expected at most one layer's %d", n, 4*mib)
		}
		if first.Slice(1, 0, 1).Item() != 1 {
			t.Error("the chain's input was freed")
		}
	})
}

// TestSliceUpdateInPlace checks that SliceUpdate does not copy an array that nothing else
// refers to.
func TestSliceUpdateInPlace(t *testing.T) {
	mlxtest.Do(t, func() {
		x, part := block(16), mlx.Full(2, mlx.Float32, 1, mib/4)
		mlx.Eval(part)
		start := settled()
		mlx.ResetPeakMemory()
		for row := range 16 {
			y := x.SliceUpdate(0, row, part)
			x.Free()
			mlx.Eval(y)
			x = y
		}
		if n := mlx.PeakMemory() - start; n > mib {
			t.Errorf("%d bytes more at the peak, expected no copy of the array's %d", n, 16*mib)
		}
		if got := x.Sum(0).Min(1).Item(); got != 32 {
			t.Errorf("found %v, expected every element to be 2", got)
		}
	})
}

// TestEvalChain checks that each layer's input is evaluated before the layer, on a GPU too.
func TestEvalChain(t *testing.T) {
	mlxtest.Do(t, func() {
		first := block(1)
		start := settled()
		out := mlx.EvalChain(first, []int{0, 1, 2}, func(layer int, x *mlx.Array) *mlx.Array {
			if n := settled() - start; n != min(layer, 1)*mib {
				t.Errorf("%d bytes more live before layer %d, expected %d", n, layer, min(layer, 1)*mib)
			}
			return x.Plus(1).Times(2)
		})
		if got := out.Slice(1, 0, 1).Item(); got != 22 {
			t.Errorf("found %v", got)
		}
	})
}

// TestChainFreesOnlyItsOwn checks that a chain frees only arrays that its layers made.
func TestChainFreesOnlyItsOwn(t *testing.T) {
	mlxtest.Do(t, func() {
		first, constant := mlx.Full(1, mlx.Float32, 2), mlx.Full(5, mlx.Float32, 2)
		var kept *mlx.Array
		out := mlx.Chain(first, []int{0, 1, 2, 3, 4}, func(layer int, x *mlx.Array) *mlx.Array {
			switch layer {
			case 1:
				return constant
			case 2:
				return x // unchanged
			case 3:
				kept = x.Plus(1)
				mlx.Keep(kept)
				return kept
			}
			return x.Plus(1)
		})
		mlxtest.Same(t, "output", out.Floats(), []float32{7, 7})
		mlxtest.Same(t, "constant", constant.Floats(), []float32{5, 5})
		mlxtest.Same(t, "kept", kept.Floats(), []float32{6, 6})
		mlxtest.Same(t, "input", first.Floats(), []float32{1, 1})
		if mlx.Chain(first, nil, func(int, *mlx.Array) *mlx.Array { return nil }) != first {
			t.Error("a chain without layers is not its input")
		}
		kept.Free()
	})
}

// TestThousandSteps runs a small denoising loop of 1,000 steps in one job, each with a host
// read, a callback and a chain of blocks. It must hold as much memory at the end as after
// its first steps.
func TestThousandSteps(t *testing.T) {
	var w []*mlx.Array
	mlxtest.Do(t, func() {
		for i := range 3 {
			w = append(w, mlxtest.Randn(uint64(i), 32, 32))
		}
		mlx.Keep(w...)
	})
	atStep := func(steps int) (memory []int) {
		mlxtest.Do(t, func() {
			latents := mlx.Normal(mlx.Key(7), mlx.Float32, 1, 64, 32)
			for i := range steps {
				next := mlx.Scope(func() *mlx.Array {
					y := mlx.Chain(latents, w, func(w, x *mlx.Array) *mlx.Array {
						h := x.RMSNorm(nil, 1e-6).Matmul(w.T())
						q := h.Reshape(1, 64, 4, 8).Transpose(0, 2, 1, 3)
						a := mlx.Attention(q, q, q, 0.35, nil).Transpose(0, 2, 1, 3).Reshape(1, 64, 32)
						return x.Add(a.Mul(h.SiLU()))
					})
					return latents.Times(0.9).Sub(y.LayerNorm(nil, nil, 1e-6).Times(0.1))
				})
				mlx.StopPoint(next)
				latents.Free()
				latents = next
				if i%100 == 0 {
					host := latents.Floats()
					mlx.Call(func() { _ = host[0] })
				}
				memory = append(memory, mlx.ActiveMemory())
			}
			if !latents.AllFinite() {
				t.Error("the loop diverged")
			}
		})
		return memory
	}
	before := active(t)
	memory := atStep(1000)
	// both were measured after equal numbers of steps since a host read: a GPU has not
	// computed those steps
	if early, late := memory[110], memory[910]; late != early {
		t.Errorf("%d bytes live after 110 steps, %d after 910", early, late)
	}
	for range 20 { // and the same over several jobs
		atStep(2)
	}
	if n := active(t) - before; n != 0 {
		t.Errorf("%d bytes more after the jobs than before", n)
	}
	mlxtest.Do(t, func() {
		for _, a := range w {
			a.Free()
		}
	})
}

func TestCacheLimit(t *testing.T) {
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("only on the CPU")
		}
		mlx.ClearCache()
		mlx.WithScope(func() { block(64) })
		if n := mlx.CacheMemory(); n < 64*mib { // MLX's own limit is 32 MiB
			t.Errorf("%d bytes are cached, expected the freed %d", n, 64*mib)
		}
		mlx.ClearCache()
		if n := mlx.CacheMemory(); n != 0 {
			t.Errorf("%d bytes are cached after ClearCache", n)
		}
	})
}

// TestLayers checks that arrays that a layer passes on unchanged stay in memory, and that
// replaced ones are freed.
func TestLayers(t *testing.T) {
	mlxtest.Do(t, func() {
		x, y := block(1), block(1)
		first, second, start := x, y, settled()
		cache := make([]*mlx.Array, 20)
		state := []**mlx.Array{&x, &y}
		for i := range cache {
			state = append(state, &cache[i])
		}
		for i, factor := range mlx.Layers(slices.Repeat([]float64{2}, 20), state...) {
			cache[i] = x.Times(factor)
			x, y = x.Plus(1), y.Times(1)
		}
		for i, want := range []float32{21, 1, 2, 4, 6} {
			if got := (*state[i]).Slice(1, 0, 1).Item(); got != want {
				t.Errorf("array %d: found %v, expected %v", i, got, want)
			}
		}
		if n := settled() - start; n != 22*mib {
			t.Errorf("%d bytes live after the layers, expected %d", n, 22*mib)
		}
		if first.Slice(1, 0, 1).Item() != 1 || second.Slice(1, 0, 1).Item() != 1 {
			t.Error("the inputs were freed")
		}
	})
}

// TestLayersBreak checks that a loop that ends early frees its last layer's arrays, except
// the state.
func TestLayersBreak(t *testing.T) {
	mlxtest.Do(t, func() {
		x := block(1)
		start := settled()
		for i := range mlx.Layers(make([]int, 5), &x) {
			mlx.Eval(block(1))
			x = x.Plus(1)
			if i == 2 {
				break
			}
		}
		if got := x.Slice(1, 0, 1).Item(); got != 4 {
			t.Errorf("found %v after 3 layers", got)
		}
		if n := settled() - start; n != mib {
			t.Errorf("%d bytes live after the layers, expected %d", n, mib)
		}
	})
}

// resident returns the memory of the process, in MiB.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("the memory of the process is not known here")
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize() / mib
}

// TestReleaseMemory checks that the memory of freed arrays goes back to the system: of large ones,
// which MLX's cache keeps, and of many small ones, which the C library keeps because some of them are
// still used.
func TestReleaseMemory(t *testing.T) {
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("only on the CPU")
		}
		mlx.WithScope(func() { block(64) })
		var small []*mlx.Array
		for range 1024 {
			small = append(small, mlx.Full(1, mlx.Float32, 64<<10/4))
		}
		mlx.Eval(small...)
		for i, a := range small {
			if i%64 > 0 {
				a.Free()
			}
		}
		used := resident(t)
		mlx.ReleaseMemory()
		// Only these two are compared, since Go's runtime returns memory of its own at any time. Without the
		// C library's part it is 64 MiB.
		if after := resident(t); used-after < 96 {
			t.Errorf("%d MiB with arrays of 128, %d after they were freed", used, after)
		}
	})
}
