package mlx

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// TestHost compares the operations of package host with MLX's own, on inputs in several orders in
// memory.
func TestHost(t *testing.T) {
	run := func(f func()) {
		t.Helper()
		if err := Do(context.Background(), func() error { f(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	run(func() {
		if Use(CPU); !useHost {
			t.Skip("package host computes on Linux CPUs")
		}
		for name, op := range hostOperations() {
			useHost = false
			want := op().Floats()
			useHost = true
			got := op()
			if shape := op().Shape(); fmt.Sprint(got.Shape()) != fmt.Sprint(shape) {
				t.Errorf("%s: shape %v, MLX's is %v", name, got.Shape(), shape)
			}
			most := 1e-3
			for _, v := range want {
				if v == v {
					most = math.Max(most, math.Abs(float64(v)))
				}
			}
			for i, v := range got.Floats() {
				if d := math.Abs(float64(v - want[i])); !(d <= 4e-6*most) && !(v != v && want[i] != want[i]) {
					t.Errorf("%s: element %d is %v, MLX's is %v (the largest is %v)", name, i, v, want[i], most)
					break
				}
			}
		}
	})
}

// normal returns an array of random numbers.
func normal(shape ...int) *Array {
	r := rand.New(rand.NewPCG(1, uint64(product(shape))))
	data := make([]float32, product(shape))
	for i := range data {
		data[i] = float32(r.NormFloat64())
	}
	return FromFloat32(data, shape...)
}

func hostOperations() map[string]func() *Array {
	strided := func() *Array { return normal(3, 5, 7, 24).Transpose(0, 2, 1, 3).Slice(3, 1, 17) } // [3, 7, 5, 16]
	odd := func() *Array { return normal(2, 9, 7, 8) }
	wide, narrow := normal(16), normal(16)
	q, k, v := normal(2, 13, 4, 24).Transpose(0, 2, 1, 3), normal(2, 17, 2, 24).Transpose(0, 2, 1, 3), normal(2, 2, 24, 17).T()
	hidden := FromFloat32([]float32{0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, 1, 1, 1, 17).Equal(Scalar(1, Float32))
	return map[string]func() *Array{
		"SiLU":        func() *Array { return strided().SiLU() },
		"QuickGELU":   func() *Array { return strided().QuickGELU() },
		"GELUTanh":    func() *Array { return strided().GELUTanh() },
		"SwiGLU":      func() *Array { return swiGLU(strided(), strided().Times(2)) },
		"broadcast":   func() *Array { return swiGLU(strided(), wide) },
		"special":     func() *Array { return FromFloat32([]float32{float32(math.NaN()), -200, 200, 0}).SiLU() },
		"nothing":     func() *Array { return normal(0, 3).SiLU() },
		"softmax":     func() *Array { return strided().Softmax() },
		"RMSNorm":     func() *Array { return strided().RMSNorm(wide, 1e-5) },
		"plain norm":  func() *Array { return strided().RMSNorm(nil, 1e-5) },
		"LayerNorm":   func() *Array { return strided().LayerNorm(wide, narrow, 1e-5) },
		"plain layer": func() *Array { return strided().LayerNorm(nil, nil, 1e-5) },
		"rows":        func() *Array { return odd().BiasedConv2d(normal(5, 3, 3, 8), normal(5), 1, 1) },
		"stride":      func() *Array { return odd().Conv2d(normal(16, 3, 3, 8), 2, 0) },
		"attention":   func() *Array { return Attention(q, k, v, 0.2, nil) },
		"bool mask":   func() *Array { return Attention(q, k, v, 0.2, hidden) },
		"mask":        func() *Array { return Attention(q, k, v, 0.2, normal(4, 1, 17)) },
		"causal":      func() *Array { return CausalAttention(q, k, v, 0.2) },
		"compiled": func() *Array {
			return Compile(func(in []*Array) []*Array { return []*Array{in[0].SiLU().RMSNorm(wide, 1e-5)} })([]*Array{strided()})[0]
		},
	}
}

// TestHostAlone compares the operations that MLX does not have with plain arithmetic.
func TestHostAlone(t *testing.T) {
	err := Do(context.Background(), func() error {
		Use(CPU)
		x := normal(2, 3, 4, 8).Plus(5)
		mean, rstd := x.GroupStatisticsOnHost(2, 1e-6)
		if mean == nil {
			t.Skip("package host computes on Linux CPUs")
		}
		if y, _ := x.GroupStatisticsOnHost(3, 1e-6); y != nil {
			t.Error("statistics of 8 channels in 3 groups")
		}
		weight, bias := normal(8), normal(8).Plus(1)
		if y := x.NormalizeOnHost(mean, rstd, weight.Slice(0, 1, 8), bias); y != nil {
			t.Error("a norm of 8 channels with 7 weights")
		}
		groups := x.Reshape(2, 12, 2, 4).Transpose(0, 2, 1, 3).Reshape(2, 2, 48).LayerNorm(nil, nil, 1e-6)
		want := groups.Reshape(2, 2, 12, 4).Transpose(0, 2, 1, 3).Reshape(2, 3, 4, 8).Mul(weight).Add(bias).Floats()
		for i, v := range x.NormalizeOnHost(mean, rstd, weight, bias).Floats() {
			if math.Abs(float64(v-want[i])) > 1e-5 {
				t.Fatalf("group norm: element %d is %v, expected %v", i, v, want[i])
			}
		}
		heads := normal(1, 2, 3, 4)
		angle := normal(3, 2)
		rotated := heads.rotateOnHost(angle.Cos(), angle.Sin()).Floats()
		in, a := heads.Floats(), angle.Floats()
		for i := 0; i < len(in); i += 2 {
			s, c := math.Sincos(float64(a[i/4%3*2+i%4/2]))
			first, second := float64(in[i])*c-float64(in[i+1])*s, float64(in[i])*s+float64(in[i+1])*c
			if math.Abs(float64(rotated[i])-first) > 1e-6 || math.Abs(float64(rotated[i+1])-second) > 1e-6 {
				t.Fatalf("rotary embedding: pair %d is %v, expected %v and %v", i/2, rotated[i:i+2], first, second)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostEnds checks that operations leave no goroutines and no memory.
func TestHostEnds(t *testing.T) {
	var before, after int
	work := func() error {
		Use(CPU)
		before = ActiveMemory()
		WithScope(func() {
			x := normal(1, 32, 32, 64).SiLU()
			Eval(x.BiasedConv2d(normal(64, 3, 3, 64), normal(64), 1, 1), Attention(x, x, x, 1, nil))
		})
		after = ActiveMemory()
		return nil
	}
	if err := Do(context.Background(), work); err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	if err := Do(context.Background(), work); err != nil {
		t.Fatal(err)
	}
	if after > before {
		t.Errorf("%d bytes of arrays remain, %d before", after, before)
	}
	for range 100 {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines remain, %d before", runtime.NumGoroutine(), goroutines)
}
