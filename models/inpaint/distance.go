package inpaint

import (
	"image"
	"math"
	"slices"
)

// dark is the least value of a mask that is not outside of it for distances. Less is the noise of
// lossy compression, which would make distances to the outside small.
const dark = 8

// A field has the distance of each pixel in a part of a mask to the nearest one outside of the mask.
// What is beyond the edges of the image does not count.
type field struct {
	width, height int
	limit         int      // largest distance, in pixels
	d             []uint16 // as multiples of limit/full pixels, with a line of 0 around the part
}

// full is the largest distance in a field.
const full = 60000

// newField computes the distances in a part of a mask that has all of its values from dark on. It
// takes time in proportion to the number of pixels: distances along columns, then along each row the
// lower envelope of the parabolas of all columns (Meijster, Roerdink and Hesselink, "A general
// algorithm for computing distance transforms in linear time", 2000).
func newField(mask *image.Gray, part image.Rectangle, limit int) *field {
	f := &field{width: part.Dx(), height: part.Dy(), limit: limit}
	f.d = make([]uint16, (f.width+2)*(f.height+2))
	most := uint16(limit)
	above := make([]uint16, f.width)
	if part.Min.Y == mask.Rect.Min.Y {
		fill(above, most)
	}
	for y := range f.height {
		d := f.row(f.d, y)
		for x, v := range mask.Pix[mask.PixOffset(part.Min.X, part.Min.Y+y):][:f.width] {
			if v >= dark {
				d[x] = min(above[x]+1, most)
			}
		}
		above = d
	}
	below := make([]uint16, f.width)
	if part.Max.Y == mask.Rect.Max.Y {
		fill(below, most)
	}
	e := envelope{limit: limit, first: part.Min.X > mask.Rect.Min.X, last: part.Max.X < mask.Rect.Max.X}
	for y := f.height - 1; y >= 0; y-- {
		d := f.row(f.d, y)
		for x, v := range d {
			if v > below[x] {
				d[x] = below[x] + 1
			}
		}
		copy(below, d)
		e.along(d)
	}
	return f
}

// row returns the values of a row of a field.
func (f *field) row(values []uint16, y int) []uint16 {
	return values[(y+1)*(f.width+2)+1:][:f.width]
}

// An envelope computes the distances along rows.
type envelope struct {
	limit       int
	first, last bool // there is an outside before and after each row
	sites       []site
}

// A site is a column whose parabola is the lowest one from some column on.
type site struct{ from, at, square int }

func (s site) over(x int) int { return (x-s.at)*(x-s.at) + s.square }

// along replaces the distances in a row along its columns, in pixels, by the distances of a field.
func (e *envelope) along(d []uint16) {
	e.sites = e.sites[:0]
	if e.first {
		e.add(-1, 0, len(d))
	}
	for x, v := range d {
		if int(v) < e.limit {
			e.add(x, int(v)*int(v), len(d))
		}
	}
	if e.last {
		e.add(len(d), 0, len(d))
	}
	if len(e.sites) == 0 {
		fill(d, full)
		return
	}
	k, unit := len(e.sites)-1, full/float64(e.limit)
	for x := len(d) - 1; x >= 0; x-- {
		square := min(e.sites[k].over(x), e.limit*e.limit)
		d[x] = uint16(math.Sqrt(float64(square))*unit + 0.5)
		if x == e.sites[k].from {
			k--
		}
	}
}

// add adds a site to the right of all others, in a row of n pixels.
func (e *envelope) add(at, square, n int) {
	s := site{0, at, square}
	for len(e.sites) > 0 {
		last := e.sites[len(e.sites)-1]
		if last.over(last.from) <= s.over(last.from) {
			s.from = (at*at-last.at*last.at+square-last.square)/(2*(at-last.at)) + 1
			break
		}
		e.sites = e.sites[:len(e.sites)-1]
	}
	if s.from < n {
		e.sites = append(e.sites, s)
	}
}

// widths returns the largest distance that can be reached from each pixel inside the mask, less a
// quarter of the length of the way: along rows, columns and diagonals.
func (f *field) widths() []uint16 {
	r := slices.Clone(f.d)
	straight := int32(full / (4 * f.limit))
	diagonal := int32(full * math.Sqrt2 / (4 * float64(f.limit)))
	for changed := true; changed; {
		forth := f.sweep(r, straight, diagonal, 1)
		back := f.sweep(r, straight, diagonal, -1)
		changed = forth || back
	}
	return r
}

// sweep raises the widths to what the four neighbours give that were visited before, by rows from the
// first pixel on (step 1) or from the last one back (step -1). It reports whether one has changed.
func (f *field) sweep(r []uint16, straight, diagonal int32, step int) (changed bool) {
	line := f.width + 2
	first, last := line+1, (f.height+1)*line-2
	if step < 0 {
		first, last = last, first
	}
	line *= step
	for i := first; i != last+step; i += step {
		if d := f.d[i]; d == 0 || d == full {
			continue
		}
		best := max(int32(r[i-step])-straight, int32(r[i-line])-straight,
			int32(r[i-line-step])-diagonal, int32(r[i-line+step])-diagonal)
		if best > int32(r[i]) {
			r[i] = uint16(best)
			changed = true
		}
	}
	return changed
}
