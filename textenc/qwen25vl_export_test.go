package textenc

import "image"

// The vision encoders and their feed-forwards, whose weights tests change.
type (
	Qwen25Vision    = qwen25VLVision
	Qwen3Vision     = qwen3VLVision
	Qwen25VisionMLP = qwen3MLP
	Qwen3VisionMLP  = qwen3VisionMLP
)

// Positions returns the positions of tokens.
func (c *Qwen25VLConfig) Positions(ids []int32, images []VisionInput) ([][]int, error) {
	return c.imageTokens().place(ids, images, newPass(nil, 1, len(ids), 0))
}

// Windows returns the merged patches of images in the order of windows, and the number of
// patches of each window.
func Windows(sizes []image.Point, merge, side int) (cells []int32, lengths []int) {
	var images []VisionInput
	for _, s := range sizes {
		images = append(images, VisionInput{Width: s.X, Height: s.Y})
	}
	w := newWindows(images, merge, side)
	return w.cells, w.lengths
}
