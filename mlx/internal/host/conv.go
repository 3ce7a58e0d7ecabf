package host

import "unsafe"

// A Conv is a convolution of images [n, h, w, in] in steps of Stride in both directions, with
// Padding zeros on each side, a weight [out, kernel, kernel, in] and a bias [out], which may be nil. Negative
// results are multiplied by those of Slope [out], unless it is nil.
type Conv struct {
	Weight, Bias    []float32
	Slope           []float32
	In, Out, Kernel int
	Stride, Padding int
}

// Size returns the height or width of the output for that of the input.
func (c *Conv) Size(n int) int { return (n+2*c.Padding-c.Kernel)/c.Stride + 1 }

// Run convolves images x [n, h, w, in].
func (c *Conv) Run(dst, x []float32, n, h, w int) {
	if len(dst) == 0 {
		return
	}
	bias := make([]float32, roundUp(c.Out, width))
	copy(bias, c.Bias)
	if c.Kernel == 3 && c.Stride == 1 && c.In%lanes == 0 {
		wg := newWinograd(c, bias)
		defer wg.free()
		wg.run(dst, x, n, h, w)
		return
	}
	c.unfolded(dst, x, bias, n, h, w)
}

// pixelsAtOnce is how many pixels or tiles are multiplied at a time, a multiple of the kernel's rows.
const pixelsAtOnce = 96

// unfolded is the convolution as a product: each row has the inputs of one pixel of the output.
func (c *Conv) unfolded(dst, x, bias []float32, n, h, w int) {
	k := c.Kernel * c.Kernel * c.In
	weight := newPanels(k, c.Out)
	defer weight.free()
	weight.packColumns(c.Weight, k)
	oh, ow, ld := c.Size(h), c.Size(w), len(bias)
	ranges(n*oh*ow, pixelsAtOnce, func(lo, hi int) {
		rows, out := scratch((hi-lo)*k), scratch((hi-lo)*ld)
		defer release(rows, out)
		clear(rows)
		for p := lo; p < hi; p++ {
			c.unfold(rows[(p-lo)*k:(p-lo+1)*k], x[p/(oh*ow)*h*w*c.In:], h, w, p/ow%oh, p%ow)
		}
		weight.multiply(out, ld, rows, k, hi-lo)
		for p := lo; p < hi; p++ {
			for i, y := range out[(p-lo)*ld:][:c.Out] {
				dst[p*c.Out+i] = y + bias[i]
			}
			c.slope(dst[p*c.Out : (p+1)*c.Out])
		}
	})
}

// slope multiplies the negative ones of a pixel's channels.
func (c *Conv) slope(pixel []float32) {
	if c.Slope == nil {
		return
	}
	slope := c.Slope[:len(pixel)]
	for i, y := range pixel {
		pixel[i] = max(y, 0) + slope[i]*min(y, 0)
	}
}

// unfold copies the inputs of the pixel at row oy and column ox of the output. dst is all zeros.
func (c *Conv) unfold(dst, x []float32, h, w, oy, ox int) {
	left := ox*c.Stride - c.Padding
	from, to := max(0, -left), min(c.Kernel, w-left)
	if from >= to {
		return
	}
	for ky := range c.Kernel {
		if y := oy*c.Stride - c.Padding + ky; y >= 0 && y < h {
			copy(dst[(ky*c.Kernel+from)*c.In:], x[(y*w+left+from)*c.In:(y*w+left+to)*c.In])
		}
	}
}

// winograd is Winograd's F(2×2, 3×3): a tile of 2×2 outputs takes 16 products of its 4×4 inputs,
// transformed, instead of 36. The factors of the transforms are 1 and ½, so its rounding errors
// are like those of the plain sums.
type winograd struct {
	*Conv
	bias    []float32
	weights [16]panels
}

func newWinograd(c *Conv, bias []float32) *winograd {
	wg := &winograd{Conv: c, bias: bias}
	parallel(16, func(i int) { wg.weights[i] = newPanels(c.In, c.Out) })
	ranges(c.Out, 8, func(lo, hi int) {
		for o := lo; o < hi; o++ {
			for in := range c.In {
				var g [9]float32
				for i := range g {
					g[i] = c.Weight[(o*9+i)*c.In+in]
				}
				at := (o/width*c.In+in)*width + o%width
				for i, u := range transformWeight(g) {
					wg.weights[i].data[at] = u
				}
			}
		}
	})
	return wg
}

func (wg *winograd) free() {
	for _, w := range wg.weights {
		w.free()
	}
}

// transformWeight is G·g·Gᵀ for a 3×3 kernel g, where the rows of G are (1, 0, 0), (½, ½, ½),
// (½, -½, ½) and (0, 0, 1).
func transformWeight(g [9]float32) (u [16]float32) {
	var rows [12]float32
	for x := range 3 {
		a, b, c := g[x], g[3+x], g[6+x]
		rows[x], rows[3+x], rows[6+x], rows[9+x] = a, (a+b+c)/2, (a-b+c)/2, c
	}
	for y := range 4 {
		a, b, c := rows[3*y], rows[3*y+1], rows[3*y+2]
		u[4*y], u[4*y+1], u[4*y+2], u[4*y+3] = a, (a+b+c)/2, (a-b+c)/2, c
	}
	return u
}

func (wg *winograd) run(dst, x []float32, n, h, w int) {
	oh, ow := wg.Size(h), wg.Size(w)
	across := (ow + 1) / 2
	tiles := (oh + 1) / 2 * across
	for i := range n {
		in, out := x[i*h*w*wg.In:(i+1)*h*w*wg.In], dst[i*oh*ow*wg.Out:(i+1)*oh*ow*wg.Out]
		ranges(tiles, pixelsAtOnce, func(lo, hi int) {
			count, ld := hi-lo, len(wg.bias)
			inputs, products := scratch(16*count*wg.In), scratch(16*count*ld)
			defer release(inputs, products)
			zeros := make([]float32, wg.In)
			for t := lo; t < hi; t++ {
				wg.input(inputs[(t-lo)*wg.In:], count*wg.In, in, zeros, h, w, t/across, t%across)
			}
			for j := range 16 {
				wg.weights[j].multiply(products[j*count*ld:], ld, inputs[j*count*wg.In:], wg.In, count)
			}
			spare := make([]float32, 4*ld)
			for t := lo; t < hi; t++ {
				wg.output(out, products[(t-lo)*ld:], count*ld, spare, oh, ow, t/across, t%across)
			}
		})
	}
}

// input writes the 16 transformed inputs of a tile, stride elements apart.
func (wg *winograd) input(dst []float32, stride int, x, zeros []float32, h, w, ty, tx int) {
	var pixels [16]*float32
	for i := range pixels {
		y, x0 := 2*ty-wg.Padding+i/4, 2*tx-wg.Padding+i%4
		if y < 0 || y >= h || x0 < 0 || x0 >= w {
			pixels[i] = &zeros[0]
			continue
		}
		pixels[i] = &x[(y*w+x0)*wg.In : (y*w+x0+1)*wg.In][0]
	}
	_ = dst[15*stride+wg.In-1]
	winogradInput(&dst[0], stride, &pixels, wg.In)
}

// output writes the 2×2 pixels of a tile from its 16 products. spare has room for four pixels: those
// beyond the image's edge, and all if the kernel, which writes multiples of 8 channels, would
// write too many.
func (wg *winograd) output(dst, src []float32, stride int, spare []float32, oh, ow, ty, tx int) {
	ld := len(wg.bias)
	direct := wg.Out%lanes == 0
	var pixels [4]*float32
	var inside [4][]float32
	for i := range pixels {
		pixels[i] = &spare[i*ld]
		y, x := 2*ty+i/2, 2*tx+i%2
		if y >= oh || x >= ow {
			continue
		}
		inside[i] = dst[(y*ow+x)*wg.Out : (y*ow+x+1)*wg.Out]
		if direct {
			pixels[i] = &inside[i][0]
		}
	}
	_ = src[15*stride+ld-1]
	winogradOutput(&pixels, &src[0], stride, &wg.bias[0], roundUp(wg.Out, lanes))
	for i, out := range inside {
		if !direct {
			copy(out, spare[i*ld:(i+1)*ld])
		}
		wg.slope(out)
	}
}

// winogradInput is Bᵀ·d·B for n channels of the 4×4 pixels d. The rows of Bᵀ are (1, 0, -1, 0),
// (0, 1, 1, 0), (0, -1, 1, 0) and (0, 1, 0, -1).
func winogradInput(dst *float32, stride int, pixels *[16]*float32, n int) {
	if vector {
		winogradInputAVX2(dst, stride, pixels, n)
		return
	}
	out := unsafe.Slice(dst, 15*stride+n)
	for c := range n {
		var d [16]float32
		for i, p := range pixels {
			d[i] = unsafe.Slice(p, n)[c]
		}
		for i := range 4 { // the columns
			e0, e1, e2, e3 := d[i], d[4+i], d[8+i], d[12+i]
			d[i], d[4+i], d[8+i], d[12+i] = e0-e2, e1+e2, e2-e1, e1-e3
		}
		for i := range 4 { // the rows
			e := d[4*i:]
			e[0], e[1], e[2], e[3] = e[0]-e[2], e[1]+e[2], e[2]-e[1], e[1]-e[3]
		}
		for i, v := range d {
			out[i*stride+c] = v
		}
	}
}

// winogradOutput is Aᵀ·m·A + bias for n channels of the 16 products m. The rows of Aᵀ are
// (1, 1, 1, 0) and (0, 1, -1, -1).
func winogradOutput(pixels *[4]*float32, src *float32, stride int, bias *float32, n int) {
	if vector {
		winogradOutputAVX2(pixels, src, stride, bias, n)
		return
	}
	in, b := unsafe.Slice(src, 15*stride+n), unsafe.Slice(bias, n)
	for c := range n {
		var rows [8]float32
		for y := range 4 {
			m := func(x int) float32 { return in[(4*y+x)*stride+c] }
			rows[2*y], rows[2*y+1] = m(0)+m(1)+m(2), m(1)-m(2)-m(3)
		}
		for x := range 2 {
			unsafe.Slice(pixels[x], n)[c] = rows[x] + rows[2+x] + rows[4+x] + b[c]
			unsafe.Slice(pixels[2+x], n)[c] = rows[2+x] - rows[4+x] - rows[6+x] + b[c]
		}
	}
}
