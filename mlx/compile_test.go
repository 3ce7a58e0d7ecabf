package mlx_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

// compiles sets a folder for compiled functions on the CPU, for which MLX writes C++ and
// calls g++.
func compiles(t *testing.T) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir()) // read by MLX at each use
}

func gelu(in []*mlx.Array) []*mlx.Array {
	x := in[0]
	return []*mlx.Array{x.Mul(x.Times(1.702).Sigmoid()), x.Add(in[1]).Square()}
}

func TestCompile(t *testing.T) {
	for name, mode := range map[string]mlx.CompileMode{"fused": mlx.Fused, "unfused": mlx.Unfused} {
		t.Run(name, func(t *testing.T) { testCompile(t, mode) })
	}
}

func testCompile(t *testing.T, mode mlx.CompileMode) {
	compiles(t)
	traces := 0
	constant := []float32{1, 2, 3}
	mlxtest.Do(t, func() {
		c := mlx.FromFloat32(constant)
		f := func(in []*mlx.Array) []*mlx.Array {
			traces++
			out := gelu(in)
			mlx.StopPoint(out...) // inert: reading would be an error
			x := mlx.Chain(out[1], []int{0, 1}, func(_ int, x *mlx.Array) *mlx.Array { return x.Add(c) })
			return []*mlx.Array{out[0], x}
		}
		compiled, _ := mlx.CompileUntil(mode, f)
		compare := func(a, b *mlx.Array, wantTraces int) {
			t.Helper()
			traces = 0
			got := compiled([]*mlx.Array{a, b})
			found := traces
			want := f([]*mlx.Array{a, b})
			if found != wantTraces {
				t.Errorf("traced %d times for %v, expected %d", found, a, wantTraces)
			}
			if len(got) != 2 {
				t.Fatalf("found %d results", len(got))
			}
			for i := range got {
				if got[i].String() != want[i].String() {
					t.Errorf("found %v, expected %v", got[i], want[i])
				}
				w := want[i].Floats()
				wide := make([]float64, len(w))
				for j, v := range w {
					wide[j] = float64(v)
				}
				near(t, "result", got[i].Floats(), wide, 1e-6)
			}
		}
		compare(mlxtest.Randn(1, 4, 3), mlxtest.Randn(2, 4, 3), 1)
		compare(mlxtest.Randn(3, 4, 3), mlxtest.Randn(4, 4, 3), 0) // other values, same shapes
		compare(mlxtest.Randn(5, 7, 3), mlxtest.Randn(6, 3), 1)    // other shapes
		compare(mlxtest.Randn(1, 4, 3), mlxtest.Randn(2, 4, 3), 0) // the first shapes again
		made, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "mlx*", "*", "*", "*.so"))
		if mlx.CurrentDevice() == mlx.CPU && (err != nil || (len(made) > 0) != (mode == mlx.Fused)) {
			t.Errorf("MLX compiled %d libraries (%v)", len(made), err)
		}
	})
}

// TestCompileFailures checks that a compiled function fails like the original function, and
// can be called again.
func TestCompileFailures(t *testing.T) {
	compiles(t)
	before := active(t)
	stop := errors.New("stop here")
	value := &struct{ int }{1}
	failures := map[string]struct {
		fail  func(x *mlx.Array)
		check func(err error, p any) bool
	}{
		"an operation": {func(x *mlx.Array) { x.Matmul(x) }, func(err error, _ any) bool {
			var e *mlx.Error
			return errors.As(err, &e) && filepath.Base(e.File) == "compile_test.go"
		}},
		"Throw": {func(*mlx.Array) { mlx.Throw(stop) }, func(err error, _ any) bool { return err == stop }},
		"a read": {func(x *mlx.Array) { x.Plus(1).Floats() }, func(err error, _ any) bool {
			var e *mlx.Error
			return errors.As(err, &e)
		}},
		"a callback": {func(*mlx.Array) { mlx.Call(func() { panic(value) }) }, func(_ error, p any) bool { return p == value }},
		"a bug":      {func(*mlx.Array) { panic("a bug") }, func(_ error, p any) bool { return p != nil }},
	}
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			attempt := func(f func()) (p any, err error) {
				defer func() { p = recover() }()
				return nil, mlx.Do(context.Background(), func() error { f(); return nil })
			}
			p, err := attempt(func() {
				big := block(4)
				mlx.Compile(func(in []*mlx.Array) []*mlx.Array {
					mlx.Scope(func() *mlx.Array {
						y := in[0].Add(big)
						c.fail(y)
						return y
					})
					return in
				})([]*mlx.Array{big})
			})
			if !c.check(err, p) {
				t.Errorf("found %v, panic %v", err, p)
			}
			if n := active(t) - before; n != 0 {
				t.Errorf("%d bytes are left", n)
			}
			// a job that recovers from the panic can call the function again
			mlxtest.Do(t, func() {
				bad := true
				f := mlx.Compile(func(in []*mlx.Array) []*mlx.Array {
					if bad {
						c.fail(in[0])
					}
					return []*mlx.Array{in[0].Plus(1).Square()}
				})
				x := mlx.Full(2, mlx.Float32, 2, 3)
				func() {
					defer func() { recover() }()
					f([]*mlx.Array{x})
					t.Error("no failure")
				}()
				bad = false
				mlxtest.Same(t, "second call", f([]*mlx.Array{x})[0].Floats(), []float32{9, 9, 9, 9, 9, 9})
			})
		})
	}
}

// TestCompileEndsWithItsJob checks that a job frees its compiled functions' graphs and
// captured arrays.
func TestCompileEndsWithItsJob(t *testing.T) {
	compiles(t)
	before := active(t)
	var f func([]*mlx.Array) []*mlx.Array
	for range 3 {
		mlxtest.Do(t, func() {
			c := block(8)
			f = mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Add(c).Square()} })
			f([]*mlx.Array{block(8)})[0].Floats()
		})
		if n := active(t) - before; n != 0 {
			t.Errorf("%d bytes are left", n)
		}
	}
	e := mlxtest.Fail(t, func() { f([]*mlx.Array{block(8)}) })
	mlxtest.Contains(t, e.Error(), "compiled function used after the job", "compile_test.go:")
}

// TestCompileUntil checks that arrays captured by a compiled function can be freed before
// the job ends.
func TestCompileUntil(t *testing.T) {
	compiles(t)
	mlxtest.Do(t, func() {
		x := block(1)
		before := settled()
		c := block(8)
		f, free := mlx.CompileUntil(mlx.Fused, func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Add(c).Square()} })
		other := mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Plus(2).Square()} })
		run := func() {
			mlx.WithScope(func() { f([]*mlx.Array{x})[0].Floats() })
		}
		run()
		c.Free()
		run() // still refers to it
		if n := settled() - before; n < 8*mib {
			t.Errorf("%d bytes are left of the captured array", n)
		}
		free()
		free()
		if n := settled() - before; n > mib {
			t.Errorf("%d bytes are left", n)
		}
		mlxtest.Same(t, "another function", other([]*mlx.Array{x})[0].Floats()[:2], []float32{9, 9})
		defer func() {
			if recover() == nil {
				t.Error("it ran after it was freed")
			}
		}()
		f([]*mlx.Array{x})
	})
}

func TestCompileInCompile(t *testing.T) {
	compiles(t)
	mlxtest.Do(t, func() {
		inner := mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{in[0].Plus(1).Square()} })
		outer := mlx.Compile(func(in []*mlx.Array) []*mlx.Array { return []*mlx.Array{inner(in)[0].Times(2).Plus(1)} })
		mlxtest.Same(t, "result", outer([]*mlx.Array{mlx.Full(1, mlx.Float32, 2)})[0].Floats(), []float32{9, 9})
	})
}

// TestCompileWithoutTmp checks that a compiled function returns an error if g++ cannot
// write its files.
func TestCompileWithoutTmp(t *testing.T) {
	mlxtest.Do(t, func() {
		if mlx.CurrentDevice() != mlx.CPU {
			t.Skip("only the CPU compiles with g++")
		}
	})
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "")
	out := run(t, "compile", ".", "TMPDIR="+filepath.Join(dir, "file"))
	mlxtest.Contains(t, out, "ERROR=mlx: ", "library_test.go:")
}
