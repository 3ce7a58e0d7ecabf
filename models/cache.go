package models

import (
	"crypto/sha256"
	"fmt"
	"image"
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

// An encoding is a prompt and what each text makes of it, and of the pictures
// that one looks at.
type encoding struct {
	prompt   string
	limit    int
	pictures []pictureHash
	embeds   []*mlx.Array
}

// A pictureHash tells pictures apart.
type pictureHash [sha256.Size]byte

// A shown is a picture that the model is shown.
type shown struct {
	*image.RGBA
	hash pictureHash // of its size and pixels
}

func newShown(img *image.RGBA) shown {
	hash := sha256.New()
	fmt.Fprint(hash, img.Bounds().Size())
	for y := img.Rect.Min.Y; y < img.Rect.Max.Y; y++ {
		at := img.PixOffset(img.Rect.Min.X, y)
		hash.Write(img.Pix[at : at+4*img.Rect.Dx()])
	}
	return shown{img, pictureHash(hash.Sum(nil))}
}

func images(pictures []shown) []image.Image {
	var all []image.Image
	for _, s := range pictures {
		all = append(all, s.RGBA)
	}
	return all
}

// An encoded is a picture that was encoded.
type encoded struct {
	hash    pictureHash
	latents *mlx.Array
}

// An lru is a cache of the values that were used last, the latest at the end.
type lru[T any] []T

// find returns the value that is meant, if it is kept, and makes it the latest.
func (c lru[T]) find(meant func(T) bool) (value T, ok bool) {
	i := slices.IndexFunc(c, meant)
	if i < 0 {
		return value, false
	}
	value = c[i]
	copy(c[i:], c[i+1:])
	c[len(c)-1] = value
	return value, true
}

// add keeps a value, and at most so many in all.
func (c *lru[T]) add(value T, most int) {
	*c = append(*c, value)
	*c = slices.Delete(*c, 0, max(0, len(*c)-most))
}
