package mlx

// The checks of the kernels: small inputs in float32, for which kernel and graph must agree.

func init() {
	normRopeKernel.check = func() (found, expected []*Array) {
		w := func(seed uint64) *Array { return Normal(Key(seed), Float32, 64) }
		columns := func(x *Array, from int) Columns { return Columns{x, from, 128} }
		x, y := Normal(Key(1), Float32, 2, 3, 384), Normal(Key(2), Float32, 2, 5, 512)
		text := QK{columns(x, 0), columns(x, 128), columns(x, 256), w(3), w(4), 1e-6}
		image := QK{columns(y, 128), columns(y, 256), columns(y, 384), w(5), w(6), 1e-5}
		apart := QK{columns(y, 256), columns(y, 0), columns(y, 384), w(5), w(6), 1e-5}
		grouped := QK{columns(y, 64), Columns{y, 192, 64}, Columns{y, 256, 64}, w(5), w(6), 1e-5} // two heads share a key
		angles := Normal(Key(7), Float32, 8, 32)
		cos, sin := angles.Cos(), angles.Sin()
		plain := QK{Q: columns(y, 0), K: columns(y, 128)}
		for _, c := range []struct {
			text, image QK
			tokens      int
			layout      RopeLayout
		}{
			{text, image, 8, RopePairs}, {QK{}, image, 5, RopeHalves}, {text, apart, 8, RopeAcross}, {QK{}, grouped, 5, RopeHalves},
			{QK{}, grouped, 5, RopeAcross}, {QK{}, plain, 5, RopeHalves},
		} {
			rope := RopeTable{cos.Slice(0, 0, c.tokens), sin.Slice(0, 0, c.tokens), c.layout}
			q, k := NormRope(c.text, c.image, 2, rope)
			wantQ, wantK := normRopeGraph(c.text, c.image, rope)
			found, expected = append(found, q, k), append(expected, wantQ, wantK)
			if c.image.V.X != nil {
				q, kv := NormRopeKV(c.text, c.image, 2, rope)
				values := joinValues(c.text, c.image, wantK.Dim(2))
				found, expected = append(found, q, kv), append(expected, wantQ, Concat(2, wantK, values))
			}
		}
		return found, expected
	}
	modulatedNormKernel.check = func() (found, expected []*Array) {
		x, residual := Normal(Key(1), Float32, 2, 3, 72), Normal(Key(2), Float32, 2, 3, 72)
		rows, one := Normal(Key(3), Float32, 2, 1, 72), Normal(Key(4), Float32, 1, 1, 72)
		layer := Norm{Center: true, Eps: 1e-6, Scale: rows, Shift: one}
		square := Norm{Weight: Normal(Key(5), Float32, 72), Eps: 1e-5, Scale: one}
		sum, y := layer.AddThenApply(residual, rows, x)
		added := residual.Add(rows.Mul(x))
		sum2, y2 := square.AddThenApply(residual, nil, x)
		return []*Array{layer.Apply(x), square.Apply(x), square.ApplyThenAdd(residual, one, x), sum, y, sum2, y2},
			[]*Array{layer.graph(x), square.graph(x), residual.Add(one.Mul(square.graph(x))), added, layer.graph(added),
				residual.Add(x), square.graph(residual.Add(x))}
	}
	gatedSumKernel.check = func() (found, expected []*Array) {
		a, b, gate := Normal(Key(1), Float32, 2, 3, 8), Normal(Key(2), Float32, 2, 3, 8), Normal(Key(3), Float32, 2, 1, 8)
		return []*Array{GatedSum(a, gate, b)}, []*Array{a.Add(gate.Mul(b))}
	}
	activationKernel.check = func() (found, expected []*Array) {
		x, first := Normal(Key(1), Float32, 2, 3, 48).Times(3), Normal(Key(2), Float32, 2, 3, 8)
		a, b, all := Columns{x, 8, 16}, Columns{x, 24, 16}, AllColumns(x)
		return []*Array{SwiGLU(nil, a, b), SwiGLU(first, a, b), ConcatGELU(first, a), ConcatGELU(nil, all), WideSiLU(x), GEGLU(a, b),
				GEGLU(all, Columns{})},
			[]*Array{activationGraph(nil, silu, a, b), activationGraph(first, silu, a, b), activationGraph(first, geluTanh, a, Columns{}),
				activationGraph(nil, geluTanh, all, Columns{}), activationGraph(nil, silu, all, Columns{}),
				activationGraph(nil, gelu, a, b), activationGraph(nil, gelu, all, Columns{})}
	}
	// the three kernels of a group norm are checked together
	group := func() (found, expected []*Array) {
		const n, h, w, c, groups = 2, 19, 17, 24, 3
		x, vector := Normal(Key(1), Float32, n, h, w, c).Plus(2), func(seed uint64) *Array { return Normal(Key(seed), Float32, c) }
		for _, before := range []*Array{nil, vector(4)} {
			g := GroupNorm{Groups: groups, Eps: 1e-5, Weight: vector(2), Bias: vector(3), Before: before}
			found = append(found, g.Factors(x).Apply(x, before != nil))
			expected = append(expected, g.graph(x, before != nil))
		}
		return found, expected
	}
	groupStatisticsKernel.check, groupFactorsKernel.check, groupApplyKernel.check = group, group, group
	biasSumKernel.check = func() (found, expected []*Array) {
		x, bias := Normal(Key(1), Float32, 2, 3, 8), Normal(Key(2), Float32, 8)
		slope := Normal(Key(3), Float32, 8)
		two := []Columns{AllColumns(x), {Concat(-1, x, x), 8, 8}}
		return []*Array{AddBias(x, bias, nil), AddBias(x, bias, x), AddBiasLeaky(x, bias, slope), SumColumns(two, bias, nil, slope)},
			[]*Array{x.Add(bias), x.Add(x.Add(bias)), x.Add(bias).LeakyReLU(slope),
				x.Add(x).Add(bias).LeakyReLU(slope)}
	}
	upsampleKernel.check = func() (found, expected []*Array) {
		x := Normal(Key(1), Float32, 2, 3, 5, 8)
		return []*Array{Upsample(x)}, []*Array{x.Reshape(2, 3, 1, 5, 1, 8).BroadcastTo(2, 3, 2, 5, 2, 8).Reshape(2, 6, 10, 8)}
	}
	dequantizeKernel.check = func() (found, expected []*Array) {
		for _, bits := range []int{4, 8} {
			q := Normal(Key(1), Float32, 6, 128).Quantize(Quantization{Mode: "affine", Bits: bits, Group: 64})
			found, expected = append(found, q.dequantizeAffine(Float32)), append(expected, q.dequantizeGraph(Float32))
		}
		return found, expected
	}
	rowProductKernel.check, tokenAttentionKernel.check = checkRowProduct, checkTokenAttention
}

func checkRowProduct() (found, expected []*Array) {
	x := func(seed uint64, shape ...int) *Array { return Normal(Key(seed), Float32, shape...) }
	row, more, norm := x(1, 1, 1, 300), x(2, 1, 1, 300), Norm{Weight: x(3, 300), Eps: 1e-6}
	for _, p := range []RowProduct{{Bias: x(4, 20)}, {Norm: &norm}, {Norm: &norm, Gated: true}} {
		p.Weight = x(5, 20, 300)
		after := more
		if p.Norm == nil {
			after = nil
		}
		sum, y := p.Apply(row, after)
		wantSum, wantY := p.graph(row, after)
		found, expected = append(found, sum, y), append(expected, wantSum, wantY)
	}
	return found, expected
}

func checkTokenAttention() (found, expected []*Array) {
	x := func(seed uint64, shape ...int) *Array { return Normal(Key(seed), Float32, shape...) }
	q, k, v := x(1, 2, 4, 1, 64), x(2, 2, 2, 1, 64), x(3, 2, 2, 1, 64)
	c := TokenCache{Keys: x(4, 2, 2, 150, 64), Values: x(5, 2, 2, 150, 64), Tail: x(6, 2, 2, 2, TailTokens, 64)}
	all, angles := x(7, 2, 1, 8*64), x(8, 1, 32)
	token := QK{Columns{all, 0, 256}, Columns{all, 256, 128}, Columns{all, 384, 128}, x(9, 64), x(10, 64), 1e-6}
	rope := RopeTable{angles.Cos(), angles.Sin(), RopeHalves}
	for _, at := range [][2]int{{150, 5}, {3, 0}} {
		c.Position = NewPositions(at[0]).Slice(0, at[1], at[1]+1)
		y, tail := c.Attend(q, k, v)
		wantY, wantTail := c.graph(q, k, v, 0.125)
		found, expected = append(found, y, tail), append(expected, wantY, wantTail)
		y, tail = c.AttendProjected(token, 4, rope)
		wantY, wantTail = c.projectedGraph(token, rope, func(x *Array) *Array { return x })
		found, expected = append(found, y, tail), append(expected, wantY, wantTail)
	}
	return found, expected
}

// graph computes what the kernels of a group norm do, followed by SiLU if silu is set.
func (g GroupNorm) graph(x *Array, silu bool) *Array {
	n, h, w, c := x.Dim(0), x.Dim(1), x.Dim(2), x.Dim(3)
	sum := x
	if g.Before != nil {
		sum = x.Add(g.Before)
	}
	grouped := sum.Reshape(n, h*w, g.Groups, c/g.Groups)
	centered := grouped.Sub(grouped.Mean(3).Mean(1))
	y := centered.Mul(centered.Square().Mean(3).Mean(1).Plus(float64(g.Eps)).Rsqrt()).Reshape(n, h, w, c).Mul(g.Weight).Add(g.Bias)
	if silu {
		return y.SiLU()
	}
	return y
}
