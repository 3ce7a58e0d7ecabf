package modeltest

import (
	"image"
	"image/color"
)

// CountedGray is a grey image that counts how often its first pixel is read.
type CountedGray struct {
	*image.Gray
	Reads int
}

// At returns a pixel, as [image.Image] does.
func (c *CountedGray) At(x, y int) color.Color {
	if x == 0 && y == 0 {
		c.Reads++
	}
	return c.Gray.At(x, y)
}
