package models

import (
	"crypto/sha256"
	"fmt"
	"image"
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// An encodedPrompt is the output of all text encoders for a prompt. It is kept under everything
// that the output depends on.
type encodedPrompt struct {
	prompt string
	limit  int         // Request.MaxSequenceLength
	images []imageHash // of the reference images, if a text encoder sees them
	embeds []*mlx.Array
}

// An encodedReference has the latents of a reference image.
type encodedReference struct {
	hash    imageHash
	latents *mlx.Array
}

// An imageHash is a SHA-256 of an image's size and pixels.
type imageHash [sha256.Size]byte

// A reference is a reference image of an edit.
type reference struct {
	*image.RGBA
	hash imageHash
}

func newReference(img *image.RGBA) reference {
	hash := sha256.New()
	fmt.Fprint(hash, img.Bounds().Size())
	for y := img.Rect.Min.Y; y < img.Rect.Max.Y; y++ {
		at := img.PixOffset(img.Rect.Min.X, y)
		hash.Write(img.Pix[at : at+4*img.Rect.Dx()])
	}
	return reference{img, imageHash(hash.Sum(nil))}
}

func images(references []reference) []image.Image {
	var all []image.Image
	for _, r := range references {
		all = append(all, r.RGBA)
	}
	return all
}

// An lru is an LRU cache, with the most recently used value at the end.
type lru[T any] []T

// find returns the value that matches and makes it the most recently used one.
func (c lru[T]) find(matches func(T) bool) (value T, ok bool) {
	i := slices.IndexFunc(c, matches)
	if i < 0 {
		return value, false
	}
	value = c[i]
	copy(c[i:], c[i+1:])
	c[len(c)-1] = value
	return value, true
}

// add adds a value and drops the least recently used ones beyond the limit.
func (c *lru[T]) add(value T, limit int) {
	*c = append(*c, value)
	*c = slices.Delete(*c, 0, max(0, len(*c)-limit))
}
