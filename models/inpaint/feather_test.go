package inpaint

import (
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"testing"
)

// randomMask draws boxes, ellipses, lines, blobs and soft shapes.
func randomMask(rng *rand.Rand, width, height int) *image.Gray {
	mask := image.NewGray(image.Rect(0, 0, width, height))
	for range 1 + rng.IntN(4) {
		w, h := 1+rng.IntN(width), 1+rng.IntN(height)
		if rng.IntN(3) == 0 {
			w = min(w, 1+rng.IntN(3))
		}
		if rng.IntN(3) == 0 {
			h = min(h, 1+rng.IntN(3))
		}
		x, y := rng.IntN(width), rng.IntN(height)
		r := image.Rect(x-w/2, y-h/2, x-w/2+w, y-h/2+h)
		if rng.IntN(2) == 0 {
			drawRect(mask, r)
		} else {
			drawEllipse(mask, r)
		}
	}
	switch rng.IntN(4) {
	case 0: // soft
		for range 1 + rng.IntN(4) {
			mask = softened(mask)
		}
	case 1: // values at random
		for i, v := range mask.Pix {
			mask.Pix[i] = uint8(int(v) * rng.IntN(256) / 255)
		}
	case 2: // holes
		for range 5 {
			mask.Pix[rng.IntN(len(mask.Pix))] = 0
		}
	}
	mask.Pix[rng.IntN(len(mask.Pix))] = 255
	return mask
}

// softened is the mean of each pixel and its eight neighbours.
func softened(mask *image.Gray) *image.Gray {
	out := image.NewGray(mask.Rect)
	for y := range mask.Rect.Dy() {
		for x := range mask.Rect.Dx() {
			sum := 0
			for k := range 9 {
				sum += int(mask.GrayAt(x+k%3-1, y+k/3-1).Y)
			}
			out.Pix[y*out.Stride+x] = uint8(sum / 9)
		}
	}
	return out
}

func randomSize(rng *rand.Rand) (width, height int) {
	side := func() int {
		if rng.IntN(5) == 0 {
			return 1 + rng.IntN(3)
		}
		return 1 + rng.IntN(40)
	}
	return side(), side()
}

// Distances are those of a search through all pixels outside the mask.
func TestDistances(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		w, h := randomSize(rng)
		mask := randomMask(rng, w, h)
		limit := 2 + rng.IntN(20)
		part := bounds(mask)
		f := newField(mask, part, limit)
		for y := range f.height {
			for x, got := range f.row(f.d, y) {
				want := full * min(nearestOutside(mask, part.Min.X+x, part.Min.Y+y)/float64(limit), 1)
				if math.Abs(float64(got)-want) > 0.5+1e-6 {
					t.Fatalf("%v, limit %d: distance %d at %d,%d, want %g", mask.Rect, limit, got, x, y, want)
				}
			}
		}
	}
}

func nearestOutside(mask *image.Gray, x, y int) float64 {
	least := math.Inf(1)
	for i, v := range mask.Pix {
		if v < dark {
			least = min(least, math.Hypot(float64(i%mask.Stride-x), float64(i/mask.Stride-y)))
		}
	}
	return least
}

// Widths are those of a search through all ways inside the mask.
func TestWidths(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		w, h := randomSize(rng)
		mask := randomMask(rng, w, h)
		f := newField(mask, bounds(mask), 2+rng.IntN(30))
		got := f.widths()
		straight, diagonal := full/(4*f.limit), int(full*math.Sqrt2/(4*float64(f.limit)))
		for y := range f.height {
			for x, r := range f.row(got, y) {
				if f.row(f.d, y)[x] == 0 {
					if r != 0 {
						t.Fatalf("width %d outside the mask", r)
					}
					continue
				}
				best := int(f.row(f.d, y)[x])
				for k := range 9 {
					i, j := x+k%3-1, y+k/3-1
					if k == 4 || i < 0 || j < 0 || i >= f.width || j >= f.height || f.row(f.d, j)[i] == 0 {
						continue
					}
					step := straight
					if k%2 == 0 {
						step = diagonal
					}
					best = max(best, int(f.row(got, j)[i])-step)
				}
				if int(r) != best {
					t.Fatalf("%v: width %d at %d,%d, its neighbours give %d", mask.Rect, r, x, y, best)
				}
			}
		}
	}
}

// The feathered mask is 0 where the mask is 0, is nowhere above it, rises with the distance, and
// reaches the mask in each of its parts.
func TestFeathered(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		w, h := randomSize(rng)
		mask := threshold(randomMask(rng, w, h))
		mask.Pix[rng.IntN(len(mask.Pix))] = 255
		feather := 1 + rng.IntN(20)
		got := feathered(mask, feather)
		most := uint8(0)
		for y := range h {
			for x := range w {
				v, m := got.GrayAt(x, y).Y, mask.GrayAt(x, y).Y
				most = max(most, v)
				if v > m {
					t.Fatalf("%d at %d,%d, where the mask is %d", v, x, y, m)
				}
				d := nearestOutside(mask, x, y)
				if d > float64(feather) && d > float64(feather+1) && v != m {
					t.Fatalf("feather %d: %d at a distance of %g", feather, v, d)
				}
				for k := range 9 {
					i, j := x+k%3-1, y+k/3-1
					if k == 4 || !image.Pt(i, j).In(mask.Rect) || mask.GrayAt(i, j).Y == 0 || m == 0 {
						continue
					}
					step := math.Hypot(float64(i-x), float64(j-y))
					further := min(nearestOutside(mask, i, j), float64(feather+1)) - min(d, float64(feather+1))
					// one level for the rounding of distances
					if further >= step/4 && int(got.GrayAt(i, j).Y) < int(v)-1 {
						t.Fatalf("feather %d: %d at %d,%d and %d at %d,%d, farther inside", feather, v, x, y, got.GrayAt(i, j).Y, i, j)
					}
				}
			}
		}
		if most != 255 {
			t.Fatalf("feather %d: at most %d", feather, most)
		}
	}
}

// A mask that is thinner than the feather does not vanish, alone or beside a thick part.
func TestThinMasks(t *testing.T) {
	mask := image.NewGray(image.Rect(0, 0, 200, 100))
	drawRect(mask, image.Rect(5, 10, 150, 13)) // beside the block
	drawRect(mask, image.Rect(20, 20, 80, 80))
	drawRect(mask, image.Rect(80, 50, 190, 53)) // attached to it
	got := feathered(mask, 12)
	for _, c := range []struct{ x, y, want int }{
		{40, 10, 146}, {40, 11, 255}, {40, 12, 146}, {50, 50, 255}, {170, 51, 255}, {170, 50, 146}, {40, 14, 0},
	} {
		if v := int(got.GrayAt(c.x, c.y).Y); v != c.want {
			t.Errorf("%d at %d,%d, want %d", v, c.x, c.y, c.want)
		}
	}
}

// A mask does not fade at the edges of the image.
func TestFeatherAtEdges(t *testing.T) {
	for _, c := range []struct {
		mask     image.Rectangle
		distance func(x, y int) int
	}{
		{image.Rect(0, 0, 30, 20), func(x, y int) int { return 5 }},
		{image.Rect(10, 0, 30, 20), func(x, y int) int { return x - 9 }},
		{image.Rect(0, 0, 25, 20), func(x, y int) int { return 25 - x }},
		{image.Rect(0, 10, 30, 20), func(x, y int) int { return y - 9 }},
		{image.Rect(0, 0, 30, 12), func(x, y int) int { return 12 - y }},
	} {
		mask := image.NewGray(image.Rect(0, 0, 30, 20))
		drawRect(mask, c.mask)
		got := feathered(mask, 4)
		for y := range 20 {
			for x := range 30 {
				d := float64(min(max(c.distance(x, y), 0), 5))
				want := int(math.Round(255 * d / (5*3./4 + d/4)))
				if v := int(got.GrayAt(x, y).Y); v != want {
					t.Fatalf("%v: %d at %d,%d, want %d", c.mask, v, x, y, want)
				}
			}
		}
	}
}

func BenchmarkFeathered(b *testing.B) {
	const w, h = 6000, 4000
	mask := image.NewGray(image.Rect(0, 0, w, h))
	drawEllipse(mask, image.Rect(50, 50, w-50, h-50))
	for _, feather := range []int{1, 16, 200} {
		b.Run(fmt.Sprint(feather), func(b *testing.B) {
			for b.Loop() {
				feathered(mask, feather)
			}
		})
	}
}
