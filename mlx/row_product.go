package mlx

// A RowProduct multiplies a row with a matrix, as a language model does for each token. A kernel does it with the
// sum and the norm before it and SwiGLU after it, so that MLX queues one array or two instead of four or five.
type RowProduct struct {
	Weight *Array // [N, C]
	Bias   *Array // [N], or nil
	Norm   *Norm  // of the row, or nil. It divides by the root of the mean square, and has a weight only
	Gated  bool   // the result is SwiGLU of the product's halves; there is no bias
}

// Apply returns the product [1, 1, N] of x [1, 1, C], or [1, 1, N/2] if it is gated, or nil if the kernel cannot compute it.
// With a norm, more may be added to x first; sum is x then.
func (p RowProduct) Apply(x, more *Array) (sum, y *Array) {
	c, outputs := x.Dim(-1), p.Weight.Dim(0)
	if p.Gated {
		outputs /= 2
	}
	threads, rows := rowThreads(c, x.Dtype()), 2
	if p.Norm != nil && !p.Gated { // a block reads the norm's weight too
		rows = 4
	}
	arrays := []*Array{x, p.Weight}
	l := launch{
		constants: []constant{{"T", x.Dtype()}, {"C", c}, {"NORM", p.Norm != nil}, {"MORE", more != nil}, {"GATED", p.Gated},
			{"BIAS", p.Bias != nil}, {"ROWS", rows}, {"THREADS", threads}},
		inputs:  []input{{"x", x}, {"weight", p.Weight}},
		ints:    []parameter[int]{{"outputs", outputs}},
		threads: threads,
		blocks:  ceilDiv(outputs, rows),
	}
	optional := []input{{"bias", p.Bias}, {"more", more}}
	if p.Norm != nil {
		optional = append(optional, input{"norm", p.Norm.Weight})
		l.floats = []parameter[float32]{{"eps", p.Norm.Eps}}
	}
	for _, in := range optional {
		if in.array != nil {
			l.inputs, arrays = append(l.inputs, in), append(arrays, in.array)
		}
	}
	if more != nil {
		l.outputs = []output{{"sum", x.Dtype(), x.Shape()}}
	}
	const most = 8 * 32 * rowWarps // packs of a row, so that registers suffice
	fits := x.Ndim() == 3 && x.Size() == c && c%pack(x.Dtype()) == 0 && c <= most*pack(x.Dtype())
	if !fits || !rowProductKernel.usable(arrays...) {
		return nil, nil
	}
	l.outputs = append(l.outputs, output{"y", x.Dtype(), []int{1, 1, outputs}})
	out := rowProductKernel.apply(l)
	if more == nil {
		return x, out[0]
	}
	return out[0], out[1]
}

// rowWarps is how many warps a block has at most. With 20 of them, on an H200, rows of Qwen3-4B in bfloat16 take one or
// two packs of each thread.
const rowWarps = 20

// rowThreads returns the number of a block's threads, which share the columns of a row.
func rowThreads(columns int, d Dtype) int {
	warps := ceilDiv(columns, 32*pack(d)) // of one pack for each thread
	return 32 * ceilDiv(warps, ceilDiv(warps, rowWarps))
}

func (p RowProduct) graph(x, more *Array) (sum, y *Array) {
	if sum = x; more != nil {
		sum = x.Add(more)
	}
	if y = sum; p.Norm != nil {
		y = p.Norm.graph(sum)
	}
	if y = y.Matmul(p.Weight.T()); p.Bias != nil {
		y = y.Add(p.Bias)
	}
	if p.Gated {
		half := y.Dim(2) / 2
		y = activationGraph(nil, silu, Columns{y, 0, half}, Columns{y, half, half})
	}
	return sum, y
}
