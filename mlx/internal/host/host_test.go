package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// each runs a test with the kernels in assembly, if the CPU has them, and with those in Go.
func each(t *testing.T, test func(t *testing.T)) {
	for _, use := range []bool{true, false} {
		if use && !vector {
			continue
		}
		t.Run(fmt.Sprintf("vector=%v", use), func(t *testing.T) {
			before := vector
			defer func() { vector = before }()
			vector = use
			test(t)
		})
	}
}

func random(n int, factor float64) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(factor * r.NormFloat64())
	}
	return x
}

var (
	inf = math.Inf(1)
	nan = math.NaN()
	// extreme inputs of an exponential: its limits, denormal results, zeros, not numbers
	extreme = []float32{0, float32(math.Copysign(0, -1)), float32(inf), float32(-inf), float32(nan), 88.72, 88.73, 89, 90, 1e30, -86, -87.3,
		-88, -90, -100, -103.9, -103.98, -104, -105, -1e30, 1e-45, -1e-45, 1e-38, 1.5, 0.34657359, -0.34657359}
)

// same reports an element that differs from expected by more than ulps units in the last place.
func same(t *testing.T, what string, found, input []float32, expected func(x float64) float64, ulps float64) {
	t.Helper()
	for i, x := range input {
		want, got := expected(float64(x)), float64(found[i])
		unit := math.Max(math.Abs(want)*0x1p-23, 0x1p-149)
		if want == got || math.IsNaN(want) && math.IsNaN(got) || math.IsInf(want, 1) && got > math.MaxFloat32 {
			continue
		}
		if want > math.MaxFloat32 && math.IsInf(got, 1) || math.Abs(want-got) < 1e-32 && what != "exp" {
			continue
		}
		if !(math.Abs(want-got) <= ulps*unit) {
			t.Fatalf("%s of %v: found %v, expected %v", what, x, got, want)
		}
	}
}

func TestExp(t *testing.T) {
	each(t, func(t *testing.T) {
		var x []float32
		for i := range 1 << 20 {
			x = append(x, -110+200*float32(i)/(1<<20))
		}
		x = append(x, extreme...)
		x = append(x, make([]float32, roundUp(len(x), lanes)-len(x))...)
		out := make([]float32, len(x))
		expSum(out, x, 1, 0)
		same(t, "exp", out, x, math.Exp, 2)
	})
}

func TestElementwise(t *testing.T) {
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 7, 8, 9, 1000, 3*chunk + 5} {
			x, out := append(random(n, 4), extreme...), make([]float32, n+len(extreme))
			SiLU(out, x, 1)
			same(t, "SiLU", out, x, func(x float64) float64 {
				if x < -80 && x > -inf {
					return 0 // a float32 quotient may be 0 there, as PyTorch's is
				}
				return silu(x)
			}, 4)
			gate := make([]float32, len(x))
			SwiGLU(gate, x, x)
			for i, y := range out {
				if want := y * x[i]; gate[i] != want && want == want && math.Abs(float64(gate[i]-want)) > 3e-7*math.Abs(float64(want)) &&
					x[i] > -80 {
					t.Fatalf("SwiGLU of %v: found %v, expected %v", x[i], gate[i], want)
				}
			}
			moderate := random(n, 3)
			out = make([]float32, n)
			GELUTanh(out, moderate)
			for i, x := range moderate {
				v := float64(x)
				want := 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
				if math.Abs(float64(out[i])-want) > 3e-6*math.Max(math.Abs(want), 1e-3) {
					t.Fatalf("GELU of %v: found %v, expected %v", x, out[i], want)
				}
			}
		}
	})
}

func TestSoftmax(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, n := range []int{2, 5, 8, 33, 4097} {
			x := random(7*n, 5)
			x[7*n-1] = float32(-inf)
			out := make([]float32, len(x))
			Softmax(out, x, n)
			compare(t, fmt.Sprint("softmax of ", n), out, softmaxRows(x, n), 2e-6)
		}
		out := make([]float32, 3)
		if Softmax(out, []float32{0, float32(nan), 1}, 3); out[0] == out[0] {
			t.Errorf("softmax with NaN: found %v, expected NaN", out)
		}
		ninf := float32(-inf)
		if Softmax(out, []float32{ninf, ninf, ninf}, 3); out[0] == out[0] {
			t.Errorf("softmax of nothing: found %v, expected NaN", out)
		}
		Softmax(nil, nil, 0)
	})
}

func softmaxRows(x []float32, n int) []float64 {
	out := make([]float64, len(x))
	for r := 0; r < len(x); r += n {
		sum := 0.0
		most := float64(slices.Max(x[r : r+n]))
		for i := r; i < r+n; i++ {
			out[i] = math.Exp(float64(x[i]) - most)
			sum += out[i]
		}
		for i := r; i < r+n; i++ {
			out[i] /= sum
		}
	}
	return out
}

// compare reports whether found is within tolerance of expected, relative to its largest element.
func compare(t *testing.T, what string, found []float32, expected []float64, tolerance float64) {
	t.Helper()
	most := 0.0
	for _, v := range expected {
		most = math.Max(most, math.Abs(v))
	}
	for i, v := range expected {
		if !(math.Abs(float64(found[i])-v) <= tolerance*most) {
			t.Fatalf("%s: element %d is %v, expected %v (the largest is %v)", what, i, found[i], v, most)
		}
	}
}

func TestNorms(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, n := range []int{1, 3, 16, 129} {
			x, weight, bias := random(9*n, 3), random(n, 1), random(n, 2)
			rms, layer := make([]float32, len(x)), make([]float32, len(x))
			RMSNorm(rms, x, weight, n, 1e-5)
			LayerNorm(layer, x, weight, bias, n, 1e-5)
			wantRMS, wantLayer := make([]float64, len(x)), make([]float64, len(x))
			for r := 0; r < len(x); r += n {
				var sum, squares, variance float64
				for _, v := range x[r : r+n] {
					sum += float64(v)
					squares += float64(v) * float64(v)
				}
				for _, v := range x[r : r+n] {
					variance += math.Pow(float64(v)-sum/float64(n), 2)
				}
				for i, v := range x[r : r+n] {
					wantRMS[r+i] = float64(v) / math.Sqrt(squares/float64(n)+1e-5) * float64(weight[i])
					wantLayer[r+i] = (float64(v)-sum/float64(n))/math.Sqrt(variance/float64(n)+1e-5)*float64(weight[i]) + float64(bias[i])
				}
			}
			compare(t, "RMSNorm", rms, wantRMS, 1e-6)
			if n > 1 {
				compare(t, "LayerNorm", layer, wantLayer, 1e-6)
			}
		}
	})
}

func TestGroupNorm(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, c := range []struct{ rows, channels, groups int }{{1, 4, 2}, {65, 12, 3}, {1000, 32, 32}, {40000, 16, 2}} {
			x, scale, bias := random(c.rows*c.channels, 1), random(c.channels, 1), random(c.channels, 1)
			for i := range x {
				x[i] += 100 // a mean that is large compared with the deviation loses bits in a single pass
			}
			size := c.channels / c.groups
			mean, rstd := make([]float32, c.channels), make([]float32, c.channels)
			GroupStatistics(mean, rstd, x, c.channels, c.groups, 1e-6)
			factor, out := make([]float32, c.channels), make([]float32, len(x))
			for i := range factor {
				factor[i] = rstd[i] * scale[i]
			}
			Normalize(out, x, mean, factor, bias)
			want := make([]float64, len(x))
			for g := range c.groups {
				in := func(f func(i, ch int)) {
					for r := range c.rows {
						for ch := g * size; ch < (g+1)*size; ch++ {
							f(r*c.channels+ch, ch)
						}
					}
				}
				var m, v float64
				in(func(i, _ int) { m += float64(x[i]) / float64(c.rows*size) })
				in(func(i, _ int) { v += math.Pow(float64(x[i])-m, 2) / float64(c.rows*size) })
				in(func(i, ch int) {
					want[i] = (float64(x[i])-m)/math.Sqrt(v+1e-6)*float64(scale[ch]) + float64(bias[ch])
				})
			}
			compare(t, fmt.Sprint("GroupNorm ", c), out, want, 1e-5)
		}
	})
}

func TestRotate(t *testing.T) {
	const batch, length, heads, dim = 2, 3, 2, 6
	x, cos, sin := random(batch*length*heads*dim, 1), random(length*dim/2, 1), random(length*dim/2+1, 1)
	out, want := make([]float32, len(x)), make([]float64, len(x))
	Rotate(out, x, cos, sin[:length*dim/2], length, heads, dim)
	for i := 0; i < len(x); i += 2 {
		at := i/(heads*dim)%length*(dim/2) + i%dim/2
		a, b, c, s := float64(x[i]), float64(x[i+1]), float64(cos[at]), float64(sin[at])
		want[i], want[i+1] = a*c-b*s, a*s+b*c
	}
	compare(t, "rotary embedding", out, want, 1e-6)
}

func TestMultiply(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, s := range []struct{ m, k, n int }{{1, 1, 1}, {6, 16, 16}, {13, 300, 33}, {7, 513, 15}, {5, 2, 48}} {
			a, b := random(s.m*s.k, 1), random(s.k*s.n, 1)
			want := make([]float64, s.m*s.n)
			for i := range s.m {
				for j := range s.n {
					for l := range s.k {
						want[i*s.n+j] += float64(a[i*s.k+l]) * float64(b[l*s.n+j])
					}
				}
			}
			ld := roundUp(s.n, width)
			c, out := make([]float32, s.m*ld), make([]float32, s.m*s.n)
			p := newPanels(s.k, s.n)
			p.packRows(b, s.n)
			p.multiply(c, ld, a, s.k, s.m)
			for i := range s.m {
				copy(out[i*s.n:(i+1)*s.n], c[i*ld:])
			}
			compare(t, fmt.Sprint("product ", s), out, want, 2e-6)
			columns := newPanels(s.k, s.n)
			transposed := make([]float32, len(b))
			for i := range b {
				transposed[i%s.n*s.k+i/s.n] = b[i]
			}
			if columns.packColumns(transposed, s.k); !slices.Equal(columns.data, p.data) {
				t.Errorf("product %v: packing columns and rows differs", s)
			}
		}
	})
}

func TestConv(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, s := range []struct{ n, h, w, in, out, kernel, stride, padding int }{
			{1, 5, 7, 8, 16, 3, 1, 1}, {2, 4, 6, 16, 5, 3, 1, 1}, {1, 9, 9, 8, 24, 3, 1, 0}, {1, 1, 1, 8, 8, 3, 1, 1},
			{1, 30, 29, 8, 3, 3, 1, 1}, {1, 6, 7, 3, 20, 3, 1, 1}, {2, 9, 8, 4, 8, 3, 2, 0}, {1, 4, 5, 6, 7, 1, 1, 0},
			{1, 3, 2, 2, 2, 5, 1, 2}, {1, 12, 10, 512, 16, 3, 1, 1},
		} {
			c := Conv{Weight: random(s.out*s.kernel*s.kernel*s.in, 1), Bias: random(s.out, 1), In: s.in, Out: s.out, Kernel: s.kernel,
				Stride: s.stride, Padding: s.padding}
			x := random(s.n*s.h*s.w*s.in, 1)
			oh, ow := c.Size(s.h), c.Size(s.w)
			out := make([]float32, s.n*oh*ow*s.out)
			c.Run(out, x, s.n, s.h, s.w)
			want := plainConv(&c, x, s.n, s.h, s.w)
			compare(t, fmt.Sprint("convolution ", s), out, want, 2e-6)
			c.Slope = random(s.out, 1)
			c.Run(out, x, s.n, s.h, s.w)
			for i, y := range want {
				want[i] = max(y, 0) + float64(c.Slope[i%s.out])*min(y, 0)
			}
			compare(t, fmt.Sprint("leaky convolution ", s), out, want, 2e-6)
		}
	})
}

func plainConv(c *Conv, x []float32, n, h, w int) (out []float64) {
	for i := range n * c.Size(h) * c.Size(w) {
		oy, ox, image := i/c.Size(w)%c.Size(h), i%c.Size(w), x[i/(c.Size(h)*c.Size(w))*h*w*c.In:]
		for o := range c.Out {
			sum := float64(c.Bias[o])
			for k := range c.Kernel * c.Kernel {
				y, x := oy*c.Stride-c.Padding+k/c.Kernel, ox*c.Stride-c.Padding+k%c.Kernel
				if y < 0 || y >= h || x < 0 || x >= w {
					continue
				}
				for in := range c.In {
					sum += float64(image[(y*w+x)*c.In+in]) * float64(c.Weight[(o*c.Kernel*c.Kernel+k)*c.In+in])
				}
			}
			out = append(out, sum)
		}
	}
	return out
}

func TestAttention(t *testing.T) {
	each(t, func(t *testing.T) {
		for _, s := range []struct {
			batch, heads, kv, lq, lk, dim int
			causal, masked                bool
		}{
			{1, 2, 2, 5, 7, 8, false, false}, {2, 4, 2, 33, 50, 24, false, false}, {1, 1, 1, 1, 1, 1, false, false},
			{1, 2, 1, 19, 19, 16, true, false}, {1, 2, 2, 9, 12, 5, false, true}, {1, 2, 2, 4, 9, 16, true, false},
			{1, 1, 1, 2000, 300, 16, false, false},
		} {
			heads := func(h, length int) Heads { // as [batch, length, heads, dim]
				return Heads{random(s.batch*h*length*s.dim, 1), s.batch, h, length, s.dim, h * length * s.dim, s.dim, h * s.dim}
			}
			q, k, v, out := heads(s.heads, s.lq), heads(s.kv, s.lk), heads(s.kv, s.lk), heads(s.heads, s.lq)
			out.Data = make([]float32, len(out.Data))
			var mask *Mask
			if s.masked {
				mask = &Mask{random(s.heads*s.lk, 1), [4]int{0, s.lk, 0, 1}}
				mask.Data[3] = float32(-inf)
			}
			Attention(out, q, k, v, 0.5, mask, s.causal)
			want := make([]float64, len(out.Data))
			for b := range s.batch {
				for h := range s.heads {
					g := h / (s.heads / s.kv)
					for i := range s.lq {
						scores := make([]float32, s.lk)
						for j := range s.lk {
							dot := 0.0
							for d := range s.dim {
								dot += float64(q.head(b, h)[i*q.Row+d]) * float64(k.head(b, g)[j*k.Row+d])
							}
							if dot *= 0.5; s.masked {
								dot += float64(mask.Data[h*s.lk+j])
							}
							if s.causal && j > i+s.lk-s.lq {
								dot = -inf
							}
							scores[j] = float32(dot)
						}
						for j, p := range softmaxRows(scores, s.lk) {
							for d := range s.dim {
								want[b*out.BatchStride+h*out.Stride+i*out.Row+d] += p * float64(v.head(b, g)[j*v.Row+d])
							}
						}
					}
				}
			}
			compare(t, fmt.Sprint("attention ", s), out.Data, want, 3e-6)
		}
	})
}

// TestCores checks that results do not depend on the number of cores.
func TestCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	c := Conv{Weight: random(16*9*16, 1), Bias: random(16, 1), In: 16, Out: 16, Kernel: 3, Stride: 1, Padding: 1}
	x := random(64*64*16, 1)
	var results [][]float32
	for _, n := range []int{1, 4} {
		runtime.GOMAXPROCS(n)
		out, act := make([]float32, len(x)), make([]float32, len(x))
		c.Run(out, x, 1, 64, 64)
		mean, rstd := make([]float32, 16), make([]float32, 16)
		GroupStatistics(mean, rstd, out, 16, 4, 1e-6)
		Normalize(act, out, mean, rstd, mean)
		h := Heads{act, 1, 2, 2048, 16, len(act), 16, 32}
		att := h
		att.Data = make([]float32, len(act))
		Attention(att, h, h, h, 0.25, nil, false)
		results = append(results, att.Data)
	}
	if !slices.Equal(results[0], results[1]) {
		t.Error("results on 1 and on 4 cores differ")
	}
}

func BenchmarkSiLU(b *testing.B) {
	x := random(1<<22, 3)
	out := make([]float32, len(x))
	for b.Loop() {
		SiLU(out, x, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(x)), "ns/element")
}

func BenchmarkMultiply(b *testing.B) {
	const m, k, n = 960, 256, 512
	p := newPanels(k, n)
	p.packRows(random(k*n, 1), n)
	a, c := random(m*k, 1), make([]float32, m*n)
	for b.Loop() {
		ranges(m, pixelsAtOnce, func(lo, hi int) { p.multiply(c[lo*n:], n, a[lo*k:], k, hi-lo) })
	}
	b.ReportMetric(2*m*k*n*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
}

func BenchmarkConv(b *testing.B) {
	for _, s := range []struct{ size, in, out int }{{64, 512, 512}, {128, 512, 512}, {256, 256, 256}, {512, 128, 128}, {512, 256, 128}} {
		b.Run(fmt.Sprint(s), func(b *testing.B) {
			c := Conv{Weight: random(s.out*9*s.in, 1), Bias: random(s.out, 1), In: s.in, Out: s.out, Kernel: 3, Stride: 1, Padding: 1}
			x, out := random(s.size*s.size*s.in, 1), make([]float32, s.size*s.size*s.out)
			for b.Loop() {
				c.Run(out, x, 1, s.size, s.size)
			}
			b.ReportMetric(float64(2*9*s.size*s.size*s.in*s.out)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	const heads, length, dim = 8, 1088, 128
	h := Heads{random(heads*length*dim, 1), 1, heads, length, dim, heads * length * dim, dim, heads * dim}
	out := h
	out.Data = make([]float32, len(h.Data))
	for b.Loop() {
		Attention(out, h, h, h, 0.1, nil, false)
	}
	b.ReportMetric(float64(4*heads*length*length*dim)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
}

func TestRows(t *testing.T) {
	if !Vector() {
		t.Skip("no kernels in assembly")
	}
	for _, s := range []struct{ m, n, k int }{{1, 4, 16}, {1, 300, 1024}, {3, 8, 48}, {4, 132, 4096}} {
		x, w := random(s.m*s.k, 1), random(s.n*s.k, 2)
		half := make([]uint16, len(w))
		for i := range w {
			half[i] = uint16(math.Float32bits(w[i]) >> 16)
		}
		for name, wide := range map[string]func(i int) float64{
			"float32":  func(i int) float64 { return float64(w[i]) },
			"bfloat16": func(i int) float64 { return float64(math.Float32frombits(uint32(half[i]) << 16)) },
		} {
			want, got := make([]float64, s.m*s.n), make([]float32, s.m*s.n)
			for i := range want {
				for l := range s.k {
					want[i] += float64(x[i/s.n*s.k+l]) * wide(i%s.n*s.k+l)
				}
			}
			if name == "float32" {
				Rows(got, x, w, s.n, s.k)
			} else {
				RowsBFloat16(got, x, half, s.n, s.k)
			}
			compare(t, fmt.Sprint(name, s), got, want, 2e-6)
		}
	}
	if RowsFit(3, 16) || RowsFit(4, 8) || RowsFit(0, 16) {
		t.Error("rows that do not fit")
	}
}
