package mlx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/mlxtest"
	"github.com/gomflux/gomflux/mlx"
)

func TestErrorNamesTheCaller(t *testing.T) {
	var file string
	var number int
	e := mlxtest.Fail(t, func() {
		x := mlx.Zeros(mlx.Float32, 3, 4)
		file, number = callSite(t)
		x.Matmul(x) // one line after the call site
	})
	const message = "[matmul] Last dimension of first input with shape (3,4) must match " +
		"second to last dimension of second input with shape (3,4)."
	if e.Message != message {
		t.Errorf("found message %q, expected %q", e.Message, message)
	}
	if want := "mlx: " + message + place(file, number+1); e.Error() != want {
		t.Errorf("found %q, expected %q", e.Error(), want)
	}
}

// TestErrorNamesTheCallerThroughThePackage checks that errors in functions of the package
// that call others name the code outside.
func TestErrorNamesTheCallerThroughThePackage(t *testing.T) {
	var file string
	var number int
	at := func() {
		_, path, n, _ := runtime.Caller(1)
		file, number = filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path), n
	}
	x := func() *mlx.Array { return mlx.Zeros(mlx.Float32, 3, 4) }
	cases := map[string]func(){
		"Item":        func() { at(); x().Item() },
		"AsType":      func() { at(); x().Add(mlx.Zeros(mlx.Float32, 5)) },
		"Concat":      func() { at(); mlx.Concat(0) },
		"Slice":       func() { at(); x().Slice(0, 2, 9) },
		"TakeRows":    func() { at(); x().TakeRows([]int32{3}) },
		"FromFloat32": func() { at(); mlx.FromFloat32([]float32{1}, 2) },
		"in Scope":    func() { mlx.Scope(func() *mlx.Array { at(); return x().Matmul(x()) }) },
		"in Chain": func() {
			mlx.Chain(x(), []int{1}, func(int, *mlx.Array) *mlx.Array { at(); return x().Matmul(x()) })
		},
		"in Compile": func() {
			mlx.Compile(func(in []*mlx.Array) []*mlx.Array { at(); in[0].Matmul(in[0]); return in })([]*mlx.Array{x()})
		},
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			e := mlxtest.Fail(t, f)
			if want := place(file, number); !strings.HasSuffix(e.Error(), want) {
				t.Errorf("found %q, expected it to end in %q", e, want)
			}
		})
	}
}

// TestMisuse checks that wrong uses of operations are errors, not crashes or silently wrong
// results.
func TestMisuse(t *testing.T) {
	x := func() *mlx.Array { return mlx.Arange(0, 12, 1, mlx.Float32).Reshape(3, 4) }
	image := func() *mlx.Array { return mlx.Zeros(mlx.Float32, 1, 4, 4, 2) }
	kernel := func(k int) *mlx.Array { return mlx.Zeros(mlx.Float32, 3, k, k, 2) }
	heads := func(n int) *mlx.Array { return mlx.Zeros(mlx.Float32, 1, n, 2, 4) }
	cases := []struct {
		name string
		f    func()
		want string
	}{
		{"broadcast", func() { x().Add(mlx.Zeros(mlx.Float32, 5)) }, "cannot be broadcast"},
		{"split in 0", func() { x().Split(0, 0) }, "must be positive"},
		{"split unevenly", func() { x().Split(2, 0) }, "split"},
		{"concat nothing", func() { mlx.Concat(0) }, "No arrays"},
		{"concat axis", func() { mlx.Concat(5, x(), x()) }, "out of bounds"},
		{"concat shapes", func() { mlx.Concat(0, x(), x().T()) }, "concatenate"},
		{"reshape", func() { x().Reshape(5, -1) }, "reshape"},
		{"reshape twice -1", func() { x().Reshape(-1, -1) }, "only infer one"},
		{"arange step", func() { mlx.Arange(0, 3, 0, mlx.Float32) }, "nonzero"},
		{"negative size", func() { mlx.Zeros(mlx.Float32, -3) }, "Negative dimensions"},
		{"negative sizes of data", func() { mlx.FromFloat32(make([]float32, 4), -2, -2) }, "4 elements for shape [-2 -2]"},
		{"data and shape", func() { mlx.FromInt32(make([]int32, 4), 3) }, "4 elements for shape [3]"},
		{"size beyond 32 bits", func() { mlx.Zeros(mlx.Float32, 1<<33) }, "does not fit"},
		{"transpose", func() { x().Transpose(0, 0) }, "Repeat axes"},
		{"transpose too few", func() { x().Transpose(0) }, "transpose"},
		{"T of a vector", func() { x().Reshape(12).T() }, "axis"},
		{"squeeze", func() { x().Squeeze(0) }, "squeeze"},
		{"expand", func() { x().ExpandDims(7) }, "out of bounds"},
		{"broadcast to", func() { x().BroadcastTo(3, 5) }, "cannot be broadcast"},
		{"axis high", func() { x().Mean(2) }, "axis 2 of an array with shape [3 4]"},
		{"axis low", func() { x().Sum(-3) }, "axis -3 of an array with shape [3 4]"},
		{"dim", func() { x().Dim(2) }, "axis 2 of an array"},
		{"max of nothing", func() { mlx.Zeros(mlx.Float32, 0, 3).Max(0) }, "size 0"},
		{"slice high", func() { x().Slice(1, 0, 5) }, "slice [0:5] of axis 1 of an array with shape [3 4]"},
		{"slice low", func() { x().Slice(-1, -1, 2) }, "slice [-1:2] of axis 1"},
		{"slice backwards", func() { x().Slice(0, 2, 1) }, "slice [2:1] of axis 0"},
		{"slice update high", func() { x().SliceUpdate(0, 1, x()) }, "slice [1:4] of axis 0 of an array with shape [3 4]"},
		{"take high", func() { x().TakeRows([]int32{0, 3}) }, "row 3 (number 1 asked for) of an array with shape [3 4]"},
		{"take low", func() { x().TakeRows([]int32{-1}) }, "row -1 (number 0"},
		{"take of a scalar", func() { mlx.Scalar(1, mlx.Float32).TakeRows([]int32{0}) }, "axis 0"},
		{"pad numbers", func() { x().Pad([]int{1}, []int{1, 1}, 0) }, "pad of 1 and 2 numbers"},
		{"pad negative", func() { x().Pad([]int{-1, 0}, []int{0, 0}, 0) }, "non-negative"},
		{"item", func() { x().Item() }, "Item of an array with shape [3 4]"},
		{"matmul of ints", func() { x().AsType(mlx.Int32).Matmul(x().T().AsType(mlx.Int32)) }, "int32"},
		{"addmm", func() { mlx.Addmm(x(), x(), x()) }, "addmm"},
		{"conv stride", func() { image().Conv2d(kernel(3), 0, 1) }, "must be positive"},
		{"conv kernel", func() { image().Conv2d(kernel(7), 1, 0) }, "smaller than weight"},
		{"conv channels", func() { mlx.Zeros(mlx.Float32, 1, 4, 4, 3).Conv2d(kernel(3), 1, 1) }, "channels"},
		{"rms weight", func() { x().RMSNorm(mlx.Zeros(mlx.Float32, 3), 1e-5) }, "same size"},
		{"layer norm weight", func() { x().LayerNorm(mlx.Zeros(mlx.Float32, 3), nil, 1e-5) }, "same size"},
		{"rms of a scalar", func() { mlx.Scalar(1, mlx.Float32).RMSNorm(nil, 1e-5) }, "at least 1 dimension"},
		{"softmax of a scalar", func() { mlx.Scalar(1, mlx.Float32).Softmax() }, "0 dimensions"},
		{"attention rank", func() { mlx.Attention(x(), x(), x(), 1, nil) }, "rank 4"},
		{"attention heads", func() { mlx.Attention(heads(3), heads(2), heads(2), 1, nil) }, "multiple"},
		{"attention without heads", func() { mlx.Attention(heads(3), heads(0), heads(0), 1, nil) }, "no heads"},
		{"attention mask", func() { mlx.Attention(heads(1), heads(1), heads(1), 1, x()) }, "cannot be broadcast"},
		{"key", func() { mlx.Normal(x(), mlx.Float32, 3) }, "uint32"},
		{"normal of ints", func() { mlx.Normal(mlx.Key(1), mlx.Int32, 3) }, "floating point"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			file, _ := callSite(t)
			e := mlxtest.Fail(t, c.f)
			mlxtest.Contains(t, e.Error(), c.want, "("+file+":")
			if strings.Contains(e.Error(), ".cpp") || strings.Contains(e.Error(), "mlx-c") {
				t.Errorf("%q has a path of the build machine", e)
			}
		})
	}
	// the thread still works
	mlxtest.Do(t, func() { mlxtest.Same(t, "sum", x().Sum(1).Floats(), []float32{6, 22, 38}) })
}

// TestErrorsInARow checks that each failure has its own message.
func TestErrorsInARow(t *testing.T) {
	for i := range 100 {
		n := i + 2
		e := mlxtest.Fail(t, func() { mlx.Zeros(mlx.Float32, n).Add(mlx.Zeros(mlx.Float32, n+1)) })
		mlxtest.Contains(t, e.Message, fmt.Sprintf("(%d)", n), fmt.Sprintf("(%d)", n+1))
	}
	mlxtest.Do(t, func() {
		for range 3 { // a job may also recover from a failure and continue
			func() {
				defer func() {
					if _, ok := recover().(*mlx.Error); !ok {
						t.Error("no *mlx.Error to recover")
					}
				}()
				mlx.Zeros(mlx.Float32, 2).Add(mlx.Zeros(mlx.Float32, 3))
			}()
		}
		mlxtest.Same(t, "one", mlx.Scalar(1, mlx.Float32).Floats(), []float32{1})
	})
}

func TestFreedArray(t *testing.T) {
	var kept *mlx.Array
	mlxtest.Do(t, func() { kept = mlx.Zeros(mlx.Float32, 2) })
	uses := map[string]func(){
		"of an earlier job": func() { kept.Floats() },
		"of a scope": func() {
			var inner *mlx.Array
			mlx.WithScope(func() { inner = mlx.Zeros(mlx.Float32, 2) })
			inner.Plus(1)
		},
		"as an operand": func() { mlx.Zeros(mlx.Float32, 2).Add(kept) },
		"in a list":     func() { mlx.Eval(kept) },
		"its shape":     func() { kept.Shape() },
		"after Free":    func() { x := mlx.Zeros(mlx.Float32, 2); x.Free(); x.Dtype() },
	}
	for name, f := range uses {
		t.Run(name, func(t *testing.T) {
			mlxtest.Contains(t, mlxtest.Fail(t, f).Error(), "array used after its scope ended", "Keep", "error_test.go:")
		})
	}
	if s := kept.String(); s != "array(freed)" {
		t.Errorf("found %q for a freed array", s)
	}
}

func TestThrow(t *testing.T) {
	cause := errors.New("disk full")
	thrown := fmt.Errorf("block 3: %w", cause)
	err := mlx.Do(context.Background(), func() error {
		mlx.WithScope(func() { mlx.Throw(thrown) })
		return nil
	})
	if err != thrown || !errors.Is(err, cause) {
		t.Errorf("found %v, expected the very error that was thrown", err)
	}
	if err := mlx.Do(context.Background(), func() error { return thrown }); err != thrown {
		t.Errorf("found %v, expected the very error that was returned", err)
	}
}

// TestPercentInPath checks that a path with a % is refused. mlx-c uses messages as printf
// formats, so conversions in a path would read, and %n would write, random memory.
func TestPercentInPath(t *testing.T) {
	for _, name := range []string{"a%s%n%s%n.safetensors", "100%.safetensors", "%d/a.safetensors"} {
		path := filepath.Join(t.TempDir(), name)
		mlxtest.Do(t, func() {
			_, err := mlx.LoadSafetensors(path, nil)
			var e *mlx.Error
			if !errors.As(err, &e) {
				t.Fatalf("found %v, expected an *mlx.Error", err)
			}
			mlxtest.Contains(t, err.Error(), path, "%", "rename")
		})
	}
}

func TestLoadSafetensorsErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.safetensors", string(safetensors(t, map[string][]float32{"a": {1, 2}})))
	cases := map[string]struct {
		path  string
		names []string
		want  string
	}{
		"missing file":   {filepath.Join(dir, "mlx", "absent.safetensors"), nil, filepath.Join(dir, "mlx", "absent.safetensors")},
		"empty file":     {write("empty.safetensors", ""), nil, "Unable to read"},
		"no safetensors": {write("text.safetensors", "hello, this is no tensor file"), nil, "load_safetensors"},
		"missing tensor": {good, []string{"a", "b%s%n"}, "no tensor b%s%n in " + good},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			mlxtest.Do(t, func() {
				tensors, err := mlx.LoadSafetensors(c.path, c.names)
				var e *mlx.Error
				if !errors.As(err, &e) || tensors != nil {
					t.Fatalf("found %v, %v, expected an *mlx.Error and no tensors", tensors, err)
				}
				mlxtest.Contains(t, err.Error(), c.want, "error_test.go:")
			})
		})
	}
	mlxtest.Do(t, func() {
		tensors, err := mlx.LoadSafetensors(good, []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		mlxtest.Same(t, "a", tensors["a"].Floats(), []float32{1, 2})
	})
}

// TestTruncatedAfterLoad checks that a failed read is an error of the evaluation, since
// reads are lazy. (MLX ignores failed reads below 32 MiB; package nn detects these.)
func TestTruncatedAfterLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	if err := os.WriteFile(path, safetensors(t, map[string][]float32{"a": make([]float32, 9_000_000)}), 0o644); err != nil {
		t.Fatal(err)
	}
	e := mlxtest.Fail(t, func() {
		tensors, err := mlx.LoadSafetensors(path, []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, 1000); err != nil {
			t.Fatal(err)
		}
		tensors["a"].Plus(1).Floats()
	})
	mlxtest.Contains(t, e.Message, "read")
	mlxtest.Do(t, func() { mlxtest.Same(t, "after", mlx.Full(2, mlx.Float32, 2).Square().Floats(), []float32{4, 4}) })
}

func TestDtypeNames(t *testing.T) {
	for name, want := range map[string]mlx.Dtype{"bf16": mlx.BFloat16, "bfloat16": mlx.BFloat16, "fp16": mlx.Float16,
		"float16": mlx.Float16,
		"f32":     mlx.Float32, "fp32": mlx.Float32, "float32": mlx.Float32, "uint8": mlx.Uint8, "bool": mlx.Bool} {
		if got, err := mlx.ParseDtype(name); err != nil || got != want {
			t.Errorf("%s: found %v, %v, expected %v", name, got, err, want)
		}
	}
	if _, err := mlx.ParseDtype("f8"); err == nil || !strings.Contains(err.Error(), `"f8"`) {
		t.Errorf("found %v for an unknown dtype", err)
	}
	mlxtest.Do(t, func() { // the numbers are MLX's own
		if err := mlx.Use(mlx.CPU); err != nil { // GPUs have no float64
			t.Fatal(err)
		}
		for d := mlx.Bool; d <= mlx.Complex64; d++ {
			if got := mlx.Zeros(d, 2).String(); got != d.String()+"[2]" {
				t.Errorf("found %s for %v", got, d)
			}
		}
	})
	if s := mlx.Dtype(77).String(); s != "dtype(77)" {
		t.Errorf("found %s", s)
	}
}

// TestTry continues after an operation that failed, and frees the arrays of the scopes in which
// it was.
func TestTry(t *testing.T) {
	mlxtest.Do(t, func() {
		outside := mlx.Zeros(mlx.Float32, 3)
		var inside *mlx.Array
		err := mlx.Try(func() {
			mlx.WithScope(func() {
				inside = mlx.Zeros(mlx.Float32, 2)
				inside.Add(outside)
			})
		})
		var e *mlx.Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, "broadcast") {
			t.Errorf("found error %v, expected that of Add", err)
		}
		if inside.String() != "array(freed)" {
			t.Errorf("found %v after the scope", inside)
		}
		made := outside
		if err := mlx.Try(func() { made = outside.Plus(1) }); err != nil {
			t.Error(err)
		}
		mlxtest.Same(t, "made", made.Floats(), []float32{1, 1, 1})
	})
}
