package inpaint

import (
	"errors"
	"fmt"
	"image"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/picture"
)

// A Border is the number of pixels that outpainting adds on each side of an image.
type Border struct{ Left, Top, Right, Bottom int }

// ParseBorder reads a border as LEFT,TOP,RIGHT,BOTTOM.
func ParseBorder(text string) (Border, error) {
	v, err := integers(text, ",", 4)
	if err != nil {
		return Border{}, fmt.Errorf("border %s: expected LEFT,TOP,RIGHT,BOTTOM in pixels, such as 0,0,256,0", quote.Text(text))
	}
	return Border{v[0], v[1], v[2], v[3]}, nil
}

// ParseCanvas reads the size of a canvas as WIDTHxHEIGHT or WIDTHxHEIGHT@X,Y and returns the border
// around an image of some size. X and Y are the place of the image's top left pixel; without them, the
// image is in the centre.
func ParseCanvas(text string, img image.Point) (Border, error) {
	dimensions, place, placed := strings.Cut(text, "@")
	size, err := integers(dimensions, "x", 2)
	at := []int{0, 0}
	if err == nil && placed {
		at, err = integers(place, ",", 2)
	}
	if err != nil {
		return Border{}, fmt.Errorf("canvas %s: expected WIDTHxHEIGHT or WIDTHxHEIGHT@X,Y in pixels, such as 1536x1024@0,0",
			quote.Text(text))
	}
	w, h := size[0], size[1]
	if w < img.X || h < img.Y {
		return Border{}, fmt.Errorf("canvas %dx%d is smaller than the image of %dx%d pixels", w, h, img.X, img.Y)
	}
	if !placed {
		at = []int{(w - img.X) / 2, (h - img.Y) / 2}
	}
	x, y := at[0], at[1]
	if x < 0 || y < 0 || x > w-img.X || y > h-img.Y {
		return Border{}, fmt.Errorf("the image of %dx%d pixels at %d,%d is not all inside the canvas of %dx%d",
			img.X, img.Y, x, y, w, h)
	}
	return Border{x, y, w - img.X - x, h - img.Y - y}, nil
}

// integers reads n integers with a separator between them.
func integers(text, separator string, n int) ([]int, error) {
	parts := strings.Split(text, separator)
	if len(parts) != n {
		return nil, errors.New("another number of values")
	}
	values := make([]int, n)
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 32)
		if err != nil {
			return nil, err
		}
		values[i] = int(v)
	}
	return values, nil
}

// String returns the border in the form that [ParseBorder] reads.
func (b Border) String() string { return fmt.Sprintf("%d,%d,%d,%d", b.Left, b.Top, b.Right, b.Bottom) }

// Size returns the size of the canvas for an image of some size.
func (b Border) Size(img image.Point) image.Point {
	return image.Pt(b.Left+img.X+b.Right, b.Top+img.Y+b.Bottom)
}

// Check returns an error if a border cannot be added to an image of some size.
func (b Border) Check(img image.Point) error {
	for _, side := range []int{b.Left, b.Top, b.Right, b.Bottom} {
		if side < 0 {
			return fmt.Errorf("border %v: must not be negative", b)
		}
		if side > picture.MaxSide { // their sum may overflow
			return fmt.Errorf("border %v: expected at most %d pixels on each side", b, picture.MaxSide)
		}
	}
	if b == (Border{}) {
		return fmt.Errorf("border %v adds nothing to the image", b)
	}
	size := b.Size(img)
	if size.X > picture.MaxSide || size.Y > picture.MaxSide {
		return fmt.Errorf("border %v: the canvas of %dx%d pixels has a side of more than %d", b, size.X, size.Y, picture.MaxSide)
	}
	if size.X*size.Y > picture.MaxPixels {
		return fmt.Errorf("border %v: the canvas of %dx%d has more than %d million pixels",
			b, size.X, size.Y, picture.MaxPixels/1_000_000)
	}
	return nil
}

// expand adds the border of Options.Expand to image and mask.
func (in *Input) expand() error {
	photo := in.Photo.Size()
	if err := in.Expand.Check(photo); err != nil {
		return err
	}
	canvas := image.Rectangle{Max: in.Expand.Size(photo)}
	in.Photo = in.Photo.Add(image.Pt(in.Expand.Left, in.Expand.Top))
	in.Image = padded(in.Image, canvas, in.Photo)
	mask := image.NewGray(canvas)
	fill(mask.Pix, 255)
	for y := range photo.Y {
		inside := mask.Pix[mask.PixOffset(in.Photo.Min.X, in.Photo.Min.Y+y):][:photo.X]
		clear(inside)
		if in.Mask != nil {
			copy(inside, row(in.Mask, y))
		}
	}
	in.Mask = mask
	return nil
}

// padded returns a canvas with an image at a place, whose border continues the edges of the image,
// the more blurred the farther away from it.
func padded(img *image.RGBA, canvas, place image.Rectangle) *image.RGBA {
	out := image.NewRGBA(canvas)
	for y := range place.Dy() {
		copy(out.Pix[out.PixOffset(place.Min.X, place.Min.Y+y):][:4*place.Dx()], img.Pix[y*img.Stride:])
	}
	w, h := place.Dx(), place.Dy()
	top := newEdge(img.Pix, 4, w)
	bottom := newEdge(img.Pix[(h-1)*img.Stride:], 4, w)
	left := newEdge(img.Pix, img.Stride, h)
	right := newEdge(img.Pix[4*(w-1):], img.Stride, h)
	for y := range canvas.Dy() {
		v, dy, horizontal := nearest(y, place.Min.Y, place.Max.Y, top, bottom)
		to := out.Pix[y*out.Stride:]
		for x := 0; x < canvas.Dx(); x++ {
			if dy == 0 && x == place.Min.X {
				x = place.Max.X
				if x >= canvas.Dx() {
					break
				}
			}
			u, dx, vertical := nearest(x, place.Min.X, place.Max.X, left, right)
			p := to[4*x : 4*x+4 : 4*x+4]
			p[3] = 255
			var a, b [3]uint32
			if dy > 0 {
				a = horizontal.mean(u, dy/2)
			}
			if dx > 0 {
				b = vertical.mean(v, dx/2)
			}
			for k := range 3 {
				n := uint32(dx + dy)
				p[k] = uint8((a[k]*uint32(dy) + b[k]*uint32(dx) + n/2) / n)
			}
		}
	}
	return out
}

// nearest returns the index of the pixel of an interval that is nearest to x, the distance to it, and
// the edge of the image there.
func nearest(x, low, high int, first, last *edge) (i, distance int, at *edge) {
	switch {
	case x < low:
		return 0, low - x, first
	case x >= high:
		return high - 1 - low, x - high + 1, last
	}
	return x - low, 0, nil
}

// An edge has the sums of the first pixels of a side of an image, for each number of them.
type edge struct{ sums [][3]uint32 }

func newEdge(pix []uint8, step, n int) *edge {
	e := &edge{make([][3]uint32, n+1)}
	for i := range n {
		for k := range 3 {
			e.sums[i+1][k] = e.sums[i][k] + uint32(pix[i*step+k])
		}
	}
	return e
}

// mean returns the mean of the pixels around i, as far as radius.
func (e *edge) mean(i, radius int) [3]uint32 {
	low, high := max(i-radius, 0), min(i+radius+1, len(e.sums)-1)
	n := uint32(high - low)
	var out [3]uint32
	for k := range out {
		out[k] = (e.sums[high][k] - e.sums[low][k] + n/2) / n
	}
	return out
}
