package tuning

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
)

// Comparisons returns the comparisons for the running job's device. It must be called on the MLX
// thread, with default settings in use.
func Comparisons() []Comparison {
	d := newDimensions(mlx.CurrentDevice())
	list := []Comparison{packedComparison(d, "4"), packedComparison(d, "8"), dtypeComparison(d), compileComparison(d)}
	return append(list, replacementComparisons(d)...)
}

// Dimensions are the sizes of inputs: those of a published model on a GPU, and smaller ones on the
// CPU, where the fastest way depends on them less.
type dimensions struct {
	device        mlx.Device
	dtype         mlx.Dtype
	width, hidden int // of a block and of its feed-forward layer
	headSize      int
	tokens        []int
	pixels        int // side of an image in the autoencoder
	channels      int
}

func newDimensions(device mlx.Device) dimensions {
	d := dimensions{device, device.ComputeDtype(), 3072, 8192, 128, []int{1024, 4096}, 256, 128}
	if device == mlx.CPU {
		d.width, d.hidden, d.headSize, d.tokens, d.pixels = 768, 2048, 64, []int{256, 1024}, 64
	}
	return d
}

// normal returns random numbers in a dtype, evaluated. A seed is the shape's product, so that two
// arrays of a trial differ where it does not matter that they are the same for equal shapes.
func normal(dtype mlx.Dtype, deviation float64, shape ...int) *mlx.Array {
	a := mlx.Normal(mlx.Key(1), mlx.Float32, shape...).Times(deviation).AsType(dtype)
	mlx.Eval(a)
	return a
}

// weight returns a random matrix [out, in] for a linear layer.
func weight(dtype mlx.Dtype, out, in int) *mlx.Array {
	return normal(dtype, 1/math.Sqrt(float64(in)), out, in)
}

// What a product with a quantized matrix does.
const (
	packed   = "packed"   // multiplies with the matrix as it is
	unpacked = "unpacked" // dequantizes it first
)

// packedComparison compares products of some numbers of rows with a quantized matrix.
func packedComparison(d dimensions, quantization string) Comparison {
	rows := []int{1, 8, 64, 512, 4096}
	c := Comparison{Name: "packed-" + quantization, Candidates: []string{packed, unpacked}}
	q, err := component.ParseQuantization(quantization, 0)
	if err != nil {
		panic(err)
	}
	if err := component.CheckQuantization(*q); err != nil {
		c.LeftOut = "not supported here"
		return c
	}
	for _, n := range rows {
		c.Cases = append(c.Cases, Case{Name: rowsName(n), Prepare: func() []Trial { return packedTrials(d, *q, n) }})
	}
	c.Enough = func(done []CaseResult) bool {
		// with more rows, dequantizing the matrix is a smaller part of the time
		t := done[len(done)-1]
		return t.time(packed).Median > hopeless*t.time(unpacked).Median
	}
	defaultRows := nn.PackedRows(*q)
	c.Choose = func(s *Settings, done []CaseResult) string {
		limit := packedLimit(rows, done, defaultRows)
		switch {
		case limit == defaultRows:
		case s.PackedRows == nil:
			s.PackedRows = map[string]int{quantization: limit}
		default:
			s.PackedRows[quantization] = limit
		}
		switch limit {
		case 0:
			return unpacked
		case AllRows, math.MaxInt:
			return packed
		}
		return fmt.Sprintf("%s up to %s", packed, rowsName(limit))
	}
	return c
}

func rowsName(n int) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

// packedLimit returns the largest number of rows up to which a packed product is the faster one:
// the default one unless something else is clearly faster in a case.
func packedLimit(rows []int, done []CaseResult, defaultRows int) int {
	limit, same, all := 0, true, true
	for i, n := range rows {
		standard, other := unpacked, packed
		if n <= defaultRows {
			standard, other = packed, unpacked
		}
		use := standard
		if i < len(done) && done[i].faster(other, standard) {
			use = other
			same = false
		} else if i >= len(done) { // it was enough
			use = unpacked
			same = same && standard == unpacked
		}
		all = all && use == packed
		if all {
			limit = n
		}
	}
	switch {
	case same:
		return defaultRows
	case all:
		return AllRows
	}
	return limit
}

func packedTrials(d dimensions, q mlx.Quantization, rows int) []Trial {
	out, in := 3*d.width, d.width
	matrix := mlx.Scope(func() *mlx.Array { return weight(d.dtype, out, in) })
	w := matrix.Quantize(q)
	mlx.Eval(w.Arrays()...)
	matrix.Free()
	x, other := normal(d.dtype, 1, rows, in), normal(d.dtype, 1, otherRows(rows, time.Now()), in)
	trial := func(product func(x *mlx.Array) *mlx.Array) Trial {
		return Trial{
			Run: func() []*mlx.Array { return []*mlx.Array{product(x)} },
			New: func() []*mlx.Array { return []*mlx.Array{product(other)} },
		}
	}
	return []Trial{trial(w.MatmulT), trial(func(x *mlx.Array) *mlx.Array { return x.Matmul(w.Dequantize(d.dtype).T()) })}
}

// otherRows returns a slightly smaller number of rows, another one at another time, since MLX keeps
// the kernels that it has compiled in files.
func otherRows(rows int, now time.Time) int {
	if rows < 8 {
		return rows
	}
	return rows - 1 - int(now.UnixMicro()%int64(rows/4))
}

// dtypeComparison compares a block of a transformer in bfloat16 and float16.
func dtypeComparison(d dimensions) Comparison {
	c := Comparison{Name: "dtype"}
	if d.device == mlx.CPU {
		c.LeftOut = "half precision is slower than float32 on CPUs"
		return c
	}
	other := mlx.Float16
	if d.dtype == other {
		other = mlx.BFloat16
	}
	c.Candidates = []string{d.dtype.String(), other.String()}
	for _, n := range d.tokens {
		c.Cases = append(c.Cases, Case{Name: tokensName(n), Prepare: func() (trials []Trial) {
			for _, dtype := range []mlx.Dtype{d.dtype, other} {
				b, x := newBlock(d, dtype, n), normal(dtype, 1, 1, n, d.width)
				trials = append(trials, Trial{Run: func() []*mlx.Array { return []*mlx.Array{b.forward(x)} }})
			}
			return trials
		}})
	}
	c.Choose = func(s *Settings, done []CaseResult) string {
		if best := clearlyFaster(done, c.Candidates); best != c.Candidates[0] {
			s.Dtype = best
			return best
		}
		return c.Candidates[0]
	}
	return c
}

func tokensName(n int) string { return fmt.Sprintf("%d tokens", n) }

// clearlyFaster returns a candidate that is clearly faster than the first one in a case, and slower
// in none: the fastest of these in the last case, or the first candidate.
func clearlyFaster(done []CaseResult, candidates []string) string {
	best := candidates[0]
	for _, name := range candidates[1:] {
		wins := slices.ContainsFunc(done, func(c CaseResult) bool { return c.faster(name, candidates[0]) })
		loses := slices.ContainsFunc(done, func(c CaseResult) bool { return c.slower(name, candidates[0]) })
		last := done[len(done)-1]
		if wins && !loses && (best == candidates[0] || last.time(name).Median < last.time(best).Median) {
			best = name
		}
	}
	return best
}

// compileComparison compares blocks of a transformer that are compiled in several ways.
func compileComparison(d dimensions) Comparison {
	c := Comparison{Name: "compile"}
	if d.device == mlx.CPU {
		c.LeftOut = "MLX would call a C++ compiler on CPUs"
		return c
	}
	standard := defaultCompile(d.device)
	c.Candidates = []string{standard}
	for _, name := range compileNames {
		// with all kernels on CUDA there is little to fuse, and MLX takes seconds for each kernel
		if name != standard && !(name == CompileFused && d.device.Backend() == mlx.BackendCUDA) {
			c.Candidates = append(c.Candidates, name)
		}
	}
	for _, n := range []int{d.tokens[0] / 4, d.tokens[0]} {
		c.Cases = append(c.Cases, Case{Name: tokensName(n), Prepare: func() (trials []Trial) {
			b, x := newBlock(d, d.dtype, n), normal(d.dtype, 1, 1, n, d.width)
			const blocks = 4
			f := func(in []*mlx.Array) []*mlx.Array {
				y := in[0]
				for range blocks {
					y = b.forward(y)
				}
				return []*mlx.Array{y}
			}
			for _, name := range c.Candidates {
				run := f
				if mode := compileModes[name]; mode != mlx.Uncompiled {
					run, _ = mlx.CompileUntil(mode, f)
				}
				trials = append(trials, Trial{Run: func() []*mlx.Array { return run([]*mlx.Array{x}) }})
			}
			return trials
		}})
	}
	c.Choose = func(s *Settings, done []CaseResult) string {
		best := clearlyFaster(done, c.Candidates)
		if best != standard {
			s.Compile = best
		}
		return best
	}
	return c
}

// replacementComparisons compare the operations of gomflux with those of MLX.
func replacementComparisons(d dimensions) (list []Comparison) {
	known := mlx.Replacements()
	for _, r := range replacements {
		host := strings.HasPrefix(r.names[0], "host_")
		if host != (d.device == mlx.CPU) {
			continue
		}
		c := Comparison{Name: r.names[0], Candidates: []string{"gomflux", "mlx"}}
		if slices.ContainsFunc(r.names, func(name string) bool { return !slices.Contains(known, name) }) {
			c.LeftOut = "not used here"
			list = append(list, c)
			continue
		}
		for _, n := range d.tokens {
			c.Cases = append(c.Cases, Case{Name: tokensName(n), Prepare: func() []Trial {
				run := r.prepare(d, n)
				without := func() (end func()) {
					must(mlx.TurnOff(r.names...))
					return func() { must(mlx.TurnOff()) }
				}
				return []Trial{{Run: run}, {Begin: without, Run: run}}
			}})
		}
		c.Choose = func(s *Settings, done []CaseResult) string {
			best := clearlyFaster(done, c.Candidates)
			if best == "mlx" {
				s.Without = slices.Sorted(slices.Values(append(s.Without, r.names...)))
			}
			return best
		}
		list = append(list, c)
	}
	return list
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
