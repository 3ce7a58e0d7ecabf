package textenc

import "image"

// Positions are those of the tokens of pictures of some sizes, in patches.
func (c *Qwen25VLConfig) Positions(ids []int32, images []VisionInput) ([][]int, error) {
	return c.positions(ids, images)
}

// Windows are the merged patches of pictures in the order of windows, and how
// many patches each window has.
func Windows(sizes []image.Point, merge, side int) (cells []int32, lengths []int) {
	var images []VisionInput
	for _, s := range sizes {
		images = append(images, VisionInput{Width: s.X, Height: s.Y})
	}
	w := newWindows(images, merge, side)
	return w.cells, w.lengths
}
