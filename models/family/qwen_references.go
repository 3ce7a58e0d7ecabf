package family

import (
	"fmt"
	"image"
	"math"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/textenc"
)

// qwenReferences has the methods that the editors of the families of Qwen share: a reference image is
// resized to an area, in multiples of 32, and the text encoder sees a copy of it.
type qwenReferences struct {
	visionInputs
	area int // in pixels
}

// show has reference images resized to an area, and shown to a text encoder in the same size.
func (q *qwenReferences) show(l *Configs, config textenc.ImageConfig, encoder component.Component, area int) {
	q.area, q.config, q.encoder, q.points, q.copied = area, config, encoder, l.Points, q.resized
	q.open(l)
}

// CheckReferences refuses images that the text encoder cannot see.
func (q *qwenReferences) CheckReferences(n int) error {
	if n > 0 {
		return q.blind
	}
	return nil
}

// qwenSize returns the size of an image that is resized to an area in pixels, in multiples of 32
// (calculate_dimensions).
func qwenSize(size image.Point, area int) image.Point {
	ratio := float64(size.X) / float64(size.Y)
	width := math.Sqrt(float64(area) * ratio)
	height := width / ratio
	round := func(v float64) int { return int(math.RoundToEven(v/32)) * 32 }
	return image.Pt(round(width), round(height))
}

func (q *qwenReferences) resized(size image.Point) image.Point { return qwenSize(size, q.area) }

func (q *qwenReferences) ReferenceSize(size image.Point, _ int) image.Point { return q.resized(size) }

// EditSize returns the size of the last image.
func (q *qwenReferences) EditSize(sizes []image.Point, _ int) image.Point {
	return q.resized(sizes[len(sizes)-1])
}

func (q *qwenReferences) CheckReference(size image.Point) error {
	fit, copied := q.resized(size), q.copied(size)
	if min(fit.X, fit.Y, copied.X, copied.Y) < 32 {
		return fmt.Errorf("has %dx%d pixels: the long side is %d times the short side, which is too much for this model "+
			"(crop it)", size.X, size.Y, max(size.X, size.Y)/min(size.X, size.Y))
	}
	if q.processor == nil {
		return nil
	}
	if _, err := q.processor.Resized(copied); err != nil {
		return fmt.Errorf("has %dx%d pixels: its copy for the text encoder %w", size.X, size.Y, err)
	}
	return nil
}
