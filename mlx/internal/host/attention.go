package host

import "math"

// Heads is a tensor [batch, heads, length, dim] in any order of its axes, except that the elements
// of a vector of dim follow each other. Strides are those of the first three axes.
type Heads struct {
	Data                []float32
	Batch, Heads, Len   int
	Dim                 int
	BatchStride, Stride int // between batches, and between heads
	Row                 int // between the rows of a head
}

// head returns head h of batch b, from its first row on.
func (t Heads) head(b, h int) []float32 { return t.Data[b*t.BatchStride+h*t.Stride:] }

// A Mask is added to the scores [batch, heads, queries, keys], with a stride of 0 along the axes that
// it repeats.
type Mask struct {
	Data    []float32
	Strides [4]int
}

// scoresAtOnce is how many scores a core computes at a time. They stay in its second cache.
const scoresAtOnce = 1 << 17

// Attention is softmax(q·kᵀ·scale + mask)·v. Query head h uses head h/(q.Heads/k.Heads) of k and v.
// If causal is set, no query sees a later key; the last query sees all keys. mask may be nil.
// The scores of some queries at a time are computed for all keys.
func Attention(dst, q, k, v Heads, scale float32, mask *Mask, causal bool) {
	if q.Batch*q.Heads*q.Len == 0 || dst.Dim == 0 {
		return
	}
	shared := q.Heads / k.Heads
	block := max(height, min(roundUp(q.Len, height), scoresAtOnce/max(1, k.Len)/height*height))
	blocks := (q.Len + block - 1) / block
	for b := range q.Batch {
		keys, values := packHeads(k, v, b)
		parallel(q.Heads*blocks, func(task int) {
			h, from := task/blocks, task%blocks*block
			a := attention{dst: dst.head(b, h), row: dst.Row, keys: keys[h/shared], values: values[h/shared], scale: scale, hidden: -1}
			if causal {
				a.hidden = k.Len - q.Len
			}
			if mask != nil {
				a.mask = mask
				a.maskFrom = b*mask.Strides[0] + h*mask.Strides[1]
			}
			a.causal = causal
			a.run(q.head(b, h), q.Row, from, min(block, q.Len-from))
		})
		for h := range keys {
			keys[h].free()
			values[h].free()
		}
	}
}

// packHeads packs the keys and values of all heads of a batch.
func packHeads(k, v Heads, b int) (keys, values []panels) {
	keys, values = make([]panels, k.Heads), make([]panels, k.Heads)
	parallel(2*k.Heads, func(task int) {
		if h := task / 2; task%2 == 0 {
			keys[h] = newPanels(k.Dim, k.Len)
			keys[h].packColumns(k.head(b, h), k.Row)
		} else {
			values[h] = newPanels(v.Len, v.Dim)
			values[h].packRows(v.head(b, h), v.Row)
		}
	})
	return keys, values
}

// attention is the attention of a head.
type attention struct {
	dst          []float32
	row          int // stride of dst
	keys, values panels
	scale        float32
	causal       bool
	hidden       int // query i sees keys up to i+hidden, if causal
	mask         *Mask
	maskFrom     int
}

// run computes the given rows of q.
func (a *attention) run(q []float32, stride, from, rows int) {
	n := roundUp(a.keys.n, width)
	dim := roundUp(a.values.n, width)
	scores, out := scratch(rows*n), scratch(rows*dim)
	defer release(scores, out)
	a.keys.multiply(scores, n, q[from*stride:], stride, rows)
	sums := make([]float32, rows)
	for i := range rows {
		sums[i] = a.weigh(scores[i*n:(i+1)*n], from+i)
	}
	a.values.multiply(out, dim, scores, n, rows)
	for i := range rows {
		factor := 1 / sums[i]
		dst := a.dst[(from+i)*a.row:][:a.values.n]
		for j, y := range out[i*dim:][:len(dst)] {
			dst[j] = y * factor
		}
	}
}

// weigh replaces the scores of a query by their exponentials, and returns their sum.
func (a *attention) weigh(scores []float32, query int) float32 {
	seen, scale := a.keys.n, a.scale
	if a.causal {
		seen = max(0, min(seen, query+a.hidden+1))
	}
	if a.mask != nil {
		at, step := a.maskFrom+query*a.mask.Strides[2], a.mask.Strides[3]
		for i := range seen {
			scores[i] = scores[i]*scale + a.mask.Data[at+i*step]
		}
		scale = 1
	}
	padded := roundUp(max(seen, 1), lanes)
	for i := seen; i < padded; i++ {
		scores[i] = float32(math.Inf(-1))
	}
	clear(scores[padded:])
	return softmax(scores[:padded], scores[:padded], scale)
}
