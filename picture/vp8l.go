package picture

import (
	"cmp"
	"fmt"
	"image"
	"image/draw"
	"math/bits"
	"slices"
)

// This file writes the lossless bitstream of WebP, as its specification describes it: green is
// subtracted from red and blue, each block of pixels is predicted from its neighbours, and the
// differences are written with LZ77 and one group of prefix codes. Color transforms, palettes,
// color caches and further groups would make files a few percent smaller.

// maxWebPSide is the longest side of a WebP image.
const maxWebPSide = 1 << 14

const (
	vp8lSignature    = 0x2f
	predictTransform = 0
	greenTransform   = 2
	blockBits        = 4 // blocks with a predictor have 16x16 pixels
	black            = 0xff000000

	minMatch    = 4
	maxMatch    = 4096
	maxDistance = 1<<20 - nearbyCodes
	maxTries    = 16  // earlier pixels that are compared
	nearbyCodes = 120 // codes of distances that stand for pixels nearby
	hashBits    = 16
	copyMark    = 1 << 63 // see match

	lengthSymbols   = 24
	distanceSymbols = 40
	maxCode         = 15 // bits of a prefix code
	maxLengthCode   = 7  // bits of a prefix code for lengths of prefix codes
)

// encodeVP8L returns the bitstream of an image, and reports whether the image has transparency.
func encodeVP8L(img image.Image) (data []byte, alpha bool, err error) {
	width, height := img.Bounds().Dx(), img.Bounds().Dy()
	if max(width, height) > maxWebPSide {
		return nil, false, fmt.Errorf("a WebP image has at most %d pixels a side, found %dx%d (use PNG)", maxWebPSide, width, height)
	}
	if min(width, height) < 1 {
		return nil, false, fmt.Errorf("an image of %dx%d pixels cannot be written as WebP", width, height)
	}
	pixels, alpha := argb(img)
	var w bitWriter
	w.write(vp8lSignature, 8)
	w.write(uint32(width-1), 14)
	w.write(uint32(height-1), 14)
	if alpha {
		w.write(1, 1)
	} else {
		w.write(0, 1)
	}
	w.write(0, 3) // version

	w.write(1, 1)
	w.write(greenTransform, 2)
	for i, p := range pixels {
		green := p >> 8 & 0xff
		pixels[i] = subtract(p, green<<16|green)
	}
	w.write(1, 1)
	w.write(predictTransform, 2)
	w.write(blockBits-2, 3)
	modes, differences := predict(pixels, width, height)
	w.pixels(modes, blocks(width), false)
	w.write(0, 1) // no more transforms
	w.pixels(differences, width, true)
	return w.flush(), alpha, nil
}

// argb returns the pixels of an image, each 0xAARRGGBB, and reports whether one is not opaque.
func argb(img image.Image) (pixels []uint32, alpha bool) {
	size := img.Bounds().Size()
	n := image.NewNRGBA(image.Rectangle{Max: size})
	draw.Draw(n, n.Rect, img, img.Bounds().Min, draw.Src)
	pixels = make([]uint32, size.X*size.Y)
	for i := range pixels {
		c := n.Pix[4*i : 4*i+4]
		pixels[i] = uint32(c[3])<<24 | uint32(c[0])<<16 | uint32(c[1])<<8 | uint32(c[2])
	}
	return pixels, !n.Opaque()
}

// Two channels of a pixel, with room between them.
const (
	odd  = 0xff00ff00
	even = 0x00ff00ff
)

// subtract returns a-b for each channel.
func subtract(a, b uint32) uint32 {
	return (a&odd+even-b&odd)&odd | (a&even+odd-b&even)&even
}

// average returns the mean of a and b for each channel.
func average(a, b uint32) uint32 { return a&b + (a^b)>>1&0x7f7f7f7f }

// channels calls a function for each channel, and joins the results, limited to 8 bits.
func channels(a, b, c uint32, f func(a, b, c int32) int32) (out uint32) {
	for shift := 0; shift < 32; shift += 8 {
		v := f(int32(a>>shift&0xff), int32(b>>shift&0xff), int32(c>>shift&0xff))
		out |= uint32(min(max(v, 0), 255)) << shift
	}
	return out
}

// difference returns the sum of a pixel's absolute values, with channels from -128 to 127.
func difference(p uint32) (sum int) {
	for shift := 0; shift < 32; shift += 8 {
		v := int(int8(p >> shift))
		sum += max(v, -v)
	}
	return sum
}

// predictors predict a pixel from those to the left, above, above to the right and above to the
// left.
var predictors = [...]func(l, t, tr, tl uint32) uint32{
	func(_, _, _, _ uint32) uint32 { return black },
	func(l, _, _, _ uint32) uint32 { return l },
	func(_, t, _, _ uint32) uint32 { return t },
	func(_, _, tr, _ uint32) uint32 { return tr },
	func(_, _, _, tl uint32) uint32 { return tl },
	func(l, t, tr, _ uint32) uint32 { return average(average(l, tr), t) },
	func(l, _, _, tl uint32) uint32 { return average(l, tl) },
	func(l, t, _, _ uint32) uint32 { return average(l, t) },
	func(_, t, _, tl uint32) uint32 { return average(tl, t) },
	func(_, t, tr, _ uint32) uint32 { return average(t, tr) },
	func(l, t, tr, tl uint32) uint32 { return average(average(l, tl), average(t, tr)) },
	func(l, t, _, tl uint32) uint32 {
		if distance(t, tl) < distance(l, tl) {
			return l
		}
		return t
	},
	func(l, t, _, tl uint32) uint32 {
		return channels(l, t, tl, func(l, t, tl int32) int32 { return l + t - tl })
	},
	func(l, t, _, tl uint32) uint32 {
		return channels(average(l, t), tl, 0, func(a, tl, _ int32) int32 { return a + (a-tl)/2 })
	},
}

// distance returns the sum of the absolute differences of two pixels' channels.
func distance(a, b uint32) (sum int) {
	for shift := 0; shift < 32; shift += 8 {
		v := int(a>>shift&0xff) - int(b>>shift&0xff)
		sum += max(v, -v)
	}
	return sum
}

// blocks returns the number of blocks along a side.
func blocks(side int) int { return (side + 1<<blockBits - 1) >> blockBits }

// predict returns the predictors of all blocks, as pixels with the number in green, and the
// differences between the pixels and their predictions.
func predict(pixels []uint32, width, height int) (modes, differences []uint32) {
	differences = make([]uint32, len(pixels))
	for y := 0; y < height; y += 1 << blockBits {
		for x := 0; x < width; x += 1 << blockBits {
			area := image.Rect(x, y, x+1<<blockBits, y+1<<blockBits).Intersect(image.Rect(0, 0, width, height))
			best := bestPredictor(pixels, width, area)
			modes = append(modes, black|uint32(best)<<8)
			for y := area.Min.Y; y < area.Max.Y; y++ {
				for i := y*width + area.Min.X; i < y*width+area.Max.X; i++ {
					differences[i] = subtract(pixels[i], predicted(pixels, i, width, best))
				}
			}
		}
	}
	return modes, differences
}

// predicted returns the prediction of a pixel. At the right edge the pixel above to the right is
// the first of the row.
func predicted(pixels []uint32, i, width, mode int) uint32 {
	switch {
	case i == 0:
		return black
	case i < width:
		return pixels[i-1]
	case i%width == 0:
		return pixels[i-width]
	}
	return predictors[mode](pixels[i-1], pixels[i-width], pixels[i-width+1], pixels[i-width-1])
}

// bestPredictor returns the predictor with the smallest differences in an area.
func bestPredictor(pixels []uint32, width int, area image.Rectangle) (best int) {
	least := -1
	for mode, predictor := range predictors {
		sum := 0
		for y := max(area.Min.Y, 1); y < area.Max.Y && (least < 0 || sum < least); y++ {
			for i := y*width + max(area.Min.X, 1); i < y*width+area.Max.X; i++ {
				p := predictor(pixels[i-1], pixels[i-width], pixels[i-width+1], pixels[i-width-1])
				sum += difference(subtract(pixels[i], p))
			}
		}
		if least < 0 || sum < least {
			best, least = mode, sum
		}
	}
	return best
}

// match replaces pixels by copies of earlier ones. An element of the result is a pixel, or
// copyMark, the length in the next bits, and the distance in the last 32.
func match(pixels []uint32) []uint64 {
	var head [1 << hashBits]int32 // 1 more than the last pixel with a hash
	before := make([]int32, len(pixels))
	var out []uint64
	add := func(i int) {
		if i+2 < len(pixels) {
			h := (pixels[i]*0x9e3779b1 ^ pixels[i+1]*0x85ebca77 ^ pixels[i+2]*0xc2b2ae3d) >> (32 - hashBits)
			before[i], head[h] = head[h], int32(i+1)
		}
	}
	for i := 0; i < len(pixels); {
		add(i)
		length, from := 0, 0
		at := int(before[i]) - 1
		for tries := 0; tries < maxTries && at >= 0 && i-at <= maxDistance && length < maxMatch; tries++ {
			n, most := 0, min(maxMatch, len(pixels)-i)
			for n < most && pixels[at+n] == pixels[i+n] {
				n++
			}
			if n > length {
				length, from = n, at
			}
			at = int(before[at]) - 1
		}
		if length < minMatch {
			out = append(out, uint64(pixels[i]))
			i++
			continue
		}
		out = append(out, copyMark|uint64(length)<<32|uint64(i-from))
		for end := i + length; i+1 < end; i++ {
			add(i + 1)
		}
		i++
	}
	return out
}

// distanceCode returns the code of a distance: small ones for some neighbours of a pixel.
func distanceCode(distance, width int) int {
	switch distance {
	case width: // above
		return 1
	case 1: // to the left
		return 2
	case width + 1:
		return 3
	case width - 1:
		return 4
	}
	return nearbyCodes + distance
}

// prefix returns the symbol of a length or of a distance's code, and the bits that follow it.
func prefix(value int) (symbol int, extra uint32, n int) {
	v := value - 1
	if v < 4 {
		return v, 0, 0
	}
	n = bits.Len(uint(v)) - 2
	return 2*(n+1) + v>>n&1, uint32(v & (1<<n - 1)), n
}

// pixels writes the pixels of the image itself, or of one that belongs to a transform.
func (w *bitWriter) pixels(pixels []uint32, width int, itself bool) {
	w.write(0, 1) // no color cache
	if itself {
		w.write(0, 1) // one group of prefix codes
	}
	matched := match(pixels)
	green, red, blue, alpha := make([]int, 256+lengthSymbols), make([]int, 256), make([]int, 256), make([]int, 256)
	distance := make([]int, distanceSymbols)
	for _, m := range matched {
		if m < copyMark {
			green[m>>8&0xff]++
			red[m>>16&0xff]++
			blue[m&0xff]++
			alpha[m>>24]++
			continue
		}
		symbol, _, _ := prefix(int(m &^ copyMark >> 32))
		green[256+symbol]++
		symbol, _, _ = prefix(distanceCode(int(uint32(m)), width))
		distance[symbol]++
	}
	var codes [5][]code
	for i, counts := range [][]int{green, red, blue, alpha, distance} {
		codes[i] = w.codes(counts)
	}
	for _, m := range matched {
		if m < copyMark {
			w.code(codes[0][m>>8&0xff])
			w.code(codes[1][m>>16&0xff])
			w.code(codes[2][m&0xff])
			w.code(codes[3][m>>24])
			continue
		}
		symbol, extra, n := prefix(int(m &^ copyMark >> 32))
		w.code(codes[0][256+symbol])
		w.write(extra, n)
		symbol, extra, n = prefix(distanceCode(int(uint32(m)), width))
		w.code(codes[4][symbol])
		w.write(extra, n)
	}
}

// A code is the prefix code of a symbol, in the order in which its bits are written.
type code struct {
	bits uint32
	n    int
}

func (w *bitWriter) code(c code) { w.write(c.bits, c.n) }

// codes writes the prefix codes for symbols with some counts, and returns them.
func (w *bitWriter) codes(counts []int) []code {
	var used []int
	for symbol, n := range counts {
		if n > 0 {
			used = append(used, symbol)
		}
	}
	if len(used) == 0 {
		used = []int{0}
	}
	lengths := codeLengths(counts, maxCode)
	if len(used) > 2 || used[len(used)-1] > 255 {
		w.lengths(lengths)
		return canonical(lengths)
	}
	w.write(1, 1)
	w.write(uint32(len(used)-1), 1)
	w.write(1, 1) // the first symbol has 8 bits
	for _, symbol := range used {
		w.write(uint32(symbol), 8)
	}
	return canonical(lengths)
}

// lengthOrder is the order in which the lengths of the codes of lengths are written.
var lengthOrder = [...]int{17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

// lengths writes the lengths of prefix codes: symbols up to 15 are lengths, 16 repeats a length 3 to
// 6 times, and 17 and 18 stand for 3 to 10 and 11 to 138 zeros.
func (w *bitWriter) lengths(lengths []int) {
	type run struct {
		symbol int
		extra  uint32
		n      int
	}
	var runs []run
	for i := 0; i < len(lengths); {
		length, count := lengths[i], 1
		for i+count < len(lengths) && lengths[i+count] == length {
			count++
		}
		i += count
		if length > 0 {
			runs = append(runs, run{symbol: length})
			count--
		}
		for count > 0 {
			switch {
			case count < 3:
				runs = append(runs, run{symbol: length})
				count--
			case length > 0:
				n := min(count, 6)
				runs, count = append(runs, run{16, uint32(n - 3), 2}), count-n
			case count < 11:
				runs, count = append(runs, run{17, uint32(count - 3), 3}), 0
			default:
				n := min(count, 138)
				runs, count = append(runs, run{18, uint32(n - 11), 7}), count-n
			}
		}
	}
	counts := make([]int, len(lengthOrder))
	for _, r := range runs {
		counts[r.symbol]++
	}
	sizes := codeLengths(counts, maxLengthCode)
	last := len(lengthOrder)
	for last > 4 && sizes[lengthOrder[last-1]] == 0 {
		last--
	}
	w.write(0, 1)
	w.write(uint32(last-4), 4)
	for _, symbol := range lengthOrder[:last] {
		w.write(uint32(sizes[symbol]), 3)
	}
	w.write(0, 1) // the lengths of all symbols follow
	codes := canonical(sizes)
	for _, r := range runs {
		w.code(codes[r.symbol])
		w.write(r.extra, r.n)
	}
}

// codeLengths returns the lengths of Huffman codes, up to a largest one: symbols that are rarer than
// a threshold count as if they were not, until the codes are short enough.
func codeLengths(counts []int, most int) []int {
	for least := 1; ; least *= 2 {
		if lengths := huffman(counts, least); slices.Max(lengths) <= most {
			return lengths
		}
	}
}

// huffman returns the lengths of Huffman codes, 0 for symbols that are not used. Counts are raised
// to a smallest one.
func huffman(counts []int, least int) []int {
	type node struct{ count, parent, symbol int }
	var nodes []node
	for symbol, count := range counts {
		if count > 0 {
			nodes = append(nodes, node{count: max(count, least), symbol: symbol})
		}
	}
	lengths := make([]int, len(counts))
	if len(nodes) == 1 {
		lengths[nodes[0].symbol] = 1
	}
	if len(nodes) < 2 {
		return lengths
	}
	slices.SortStableFunc(nodes, func(a, b node) int { return cmp.Compare(a.count, b.count) })
	leaves := len(nodes)
	leaf, inner := 0, leaves // the next ones without a parent; inner nodes are made in order of their counts
	next := func() (i int) {
		if leaf < leaves && (inner == len(nodes) || nodes[leaf].count <= nodes[inner].count) {
			i, leaf = leaf, leaf+1
		} else {
			i, inner = inner, inner+1
		}
		nodes[i].parent = len(nodes)
		return i
	}
	for len(nodes) < 2*leaves-1 {
		sum := nodes[next()].count
		sum += nodes[next()].count
		nodes = append(nodes, node{count: sum})
	}
	depths := make([]int, len(nodes))
	for i := len(nodes) - 2; i >= 0; i-- {
		depths[i] = depths[nodes[i].parent] + 1
		if i < leaves {
			lengths[nodes[i].symbol] = depths[i]
		}
	}
	return lengths
}

// canonical returns the prefix codes with some lengths. A single symbol needs no bits.
func canonical(lengths []int) []code {
	codes := make([]code, len(lengths))
	next, used := uint32(0), 0
	for n := 1; n <= maxCode; n++ {
		next <<= 1
		for symbol, length := range lengths {
			if length == n {
				codes[symbol] = code{bits.Reverse32(next) >> (32 - n), n}
				next++
				used++
			}
		}
	}
	if used == 1 {
		clear(codes)
	}
	return codes
}

// A bitWriter writes bits, the lowest of each byte first.
type bitWriter struct {
	out   []byte
	held  uint64 // bits that are no byte yet
	holds int
}

func (w *bitWriter) write(value uint32, n int) {
	w.held |= uint64(value) << w.holds
	for w.holds += n; w.holds >= 8; w.holds -= 8 {
		w.out = append(w.out, byte(w.held))
		w.held >>= 8
	}
}

// flush returns all bytes.
func (w *bitWriter) flush() []byte {
	if w.holds > 0 {
		w.write(0, 8-w.holds)
	}
	return w.out
}
