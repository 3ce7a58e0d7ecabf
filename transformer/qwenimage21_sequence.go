package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// QwenImage21Sequence is the layout of an image size with a prompt and some reference images. It is
// the same for all steps.
type QwenImage21Sequence struct {
	shared
	h, w     int
	parts    []qwenImage21Part // of the prompt
	segments []segment         // the same parts in the sequence
	slots    []float32         // of images, as the reference's mask: 1 for 4 tokens, 0 for a token of text
	image    []float32         // 1 for each token of an image, else 0
	rope     nn.Rope           // of all tokens
}

// A qwenImage21Part is a part of the prompt: from start to end-1 of the text's embeddings or, if
// image is set, of the tokens of the reference images.
type qwenImage21Part struct {
	start, end int
	image      bool
}

// The positions for which the reference has rotary embeddings.
const qwenImage21Positions, qwenImage21MaxSide = 8192, 2048

// Sequence lays out latents of height×width after a prompt with reference images of the given
// heights and widths, all even. slots has an element for each of the prompt's embeddings: true at
// the slots of reference images, one for 4 latents. Text token k is at (n, n, n), where n counts
// text tokens and the longer side of each image before it. In an image of h×w latents, the latent
// in row y and column x is at (n, y-⌈h/2⌉, x-⌈w/2⌉), with the n of a text token in its place.
func (m *QwenImage21) Sequence(height, width int, slots []bool, references ...[2]int) (*QwenImage21Sequence, error) {
	s := &QwenImage21Sequence{h: height, w: width}
	var positions [][]int
	n, tokens := 0, 0 // the next position, and the tokens of the reference images before
	for at := 0; at < len(slots); {
		start, first := at, len(positions)
		if !slots[at] {
			for ; at < len(slots) && !slots[at]; at, n = at+1, n+1 {
				positions = append(positions, []int{n, n, n})
			}
			s.add(qwenImage21Part{start: start, end: at}, first)
			continue
		}
		if len(references) == 0 {
			return nil, errors.New("the prompt has image slots for more reference images than there are")
		}
		h, w := references[0][0], references[0][1]
		for at < len(slots) && slots[at] && at < start+h*w/4 {
			at++
		}
		if 4*(at-start) != h*w {
			return nil, fmt.Errorf("the prompt has %d image slots for a reference image of %d×%d latents, expected %d",
				at-start, h, w, h*w/4)
		}
		var err error
		if positions, err = centred(positions, h, w, n); err != nil {
			return nil, err
		}
		s.add(qwenImage21Part{start: tokens, end: tokens + h*w, image: true}, first)
		n, tokens, references = n+max(h, w), tokens+h*w, references[1:]
	}
	if len(references) > 0 {
		return nil, fmt.Errorf("the prompt has no image slots for %d reference images", len(references))
	}
	if n >= qwenImage21Positions {
		return nil, fmt.Errorf("too large for this model: position %d of the image after prompt and reference images, "+
			"the last one is %d", n, qwenImage21Positions-1)
	}
	positions, err := centred(positions, height, width, n)
	if err != nil {
		return nil, err
	}
	s.mark(height*width, true)
	s.rope = nn.NewQwenImageRope(positions, m.Config.AxesDimsRope, qwenImageTheta)
	return s, nil
}

// Fits returns an error if latents of height×width or a prompt of so many tokens are too large.
func (m *QwenImage21) Fits(height, width, tokens int) error {
	if tokens >= qwenImage21Positions || max(height, width) > qwenImage21MaxSide {
		return fmt.Errorf("latents of %d×%d and a prompt of %d tokens, expected at most %d on a side and %d tokens",
			height, width, tokens, qwenImage21MaxSide, qwenImage21Positions-1)
	}
	return nil
}

// centred appends the positions of an image of h×w latents at n, about its centre.
func centred(positions [][]int, h, w, n int) ([][]int, error) {
	if h < 2 || w < 2 || h%2 != 0 || w%2 != 0 || max(h, w) > qwenImage21MaxSide {
		return nil, fmt.Errorf("latents of %d×%d: expected even sides of at most %d", h, w, qwenImage21MaxSide)
	}
	grid := appendGrid(nil, h, w, n, 3)
	for _, p := range grid {
		p[1] -= h - h/2
		p[2] -= w - w/2
	}
	return append(positions, grid...), nil
}

// add appends a part, whose first token is the given one of the sequence.
func (s *QwenImage21Sequence) add(part qwenImage21Part, first int) {
	n := part.end - part.start
	s.parts = append(s.parts, part)
	s.segments = append(s.segments, segment{start: first, end: first + n, causal: !part.image})
	s.mark(n, part.image)
}

// mark appends the tokens of an image or of text to the masks.
func (s *QwenImage21Sequence) mark(n int, image bool) {
	value, slots := float32(0), n
	if image {
		value, slots = 1, n/4
	}
	s.slots = append(s.slots, slices.Repeat([]float32{value}, slots)...)
	s.image = append(s.image, slices.Repeat([]float32{value}, n)...)
}

// prefix returns the number of tokens before those of the image.
func (s *QwenImage21Sequence) prefix() int { return (&blockCausal{segments: s.segments}).prefix() }

// join puts the text c [B, T, dim] and the tokens x [B, R+h·w, dim] of images into their order.
func (s *QwenImage21Sequence) join(c, x *mlx.Array) *mlx.Array {
	var all []*mlx.Array
	for _, part := range s.parts {
		from := c
		if part.image {
			from = x
		}
		all = append(all, from.Slice(1, part.start, part.end))
	}
	return mlx.Concat(1, append(all, x.Slice(1, x.Dim(1)-s.h*s.w, x.Dim(1)))...)
}
