package models

import (
	"crypto/sha256"
	"fmt"
	"image"
	"slices"
	"sync"

	"github.com/gomflux/gomflux/internal/pixels"
	"github.com/gomflux/gomflux/mlx"
)

// An encodedPrompt is the output of all text encoders for a prompt. It is kept under everything
// that the output depends on.
type encodedPrompt struct {
	prompt string
	limit  int         // Request.MaxSequenceLength
	images []imageHash // of the reference images, if a text encoder sees them
	staged bool        // all processes of the group have it
	embeds []*mlx.Array
}

func (e encodedPrompt) free() {
	for _, a := range e.embeds {
		a.Free()
	}
}

// An inputKey has everything of a run that the latents of an input image depend on.
type inputKey struct {
	image imageHash
	size  image.Point // in which it is encoded
	mask  imageHash   // of the part that is grey, zero without one
}

// An encodedInput has the latents of an input image.
type encodedInput struct {
	key     inputKey
	latents *mlx.Array
}

func (e encodedInput) free() { e.latents.Free() }

// An imageHash is a SHA-256 of an image's size and pixels.
type imageHash [sha256.Size]byte

// An input is an input image, as [Autoencoder.input] returns it.
type input struct {
	image.Image // an opaque *image.RGBA, or an *image.NRGBA
	hash        imageHash
}

// Conversions keep input images as autoencoders take them, for several runs with the same images. Their
// pixels must not change between the runs. nil keeps nothing.
type Conversions struct {
	mu    sync.Mutex
	alpha bool // see Autoencoder.HasAlpha
	made  []conversion
}

type conversion struct {
	of image.Image
	input
}

// keep forgets all images but those of a request.
func (c *Conversions) keep(r *Request) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = slices.DeleteFunc(c.made, func(made conversion) bool {
		return !pixels.Same(made.of, r.Image) &&
			!slices.ContainsFunc(r.References, func(img image.Image) bool { return pixels.Same(made.of, img) })
	})
}

// convert converts an image for an autoencoder.
func (c *Conversions) convert(a *Autoencoder, img image.Image) input {
	if c == nil {
		return newInput(a.input(img))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alpha != a.HasAlpha() {
		c.alpha, c.made = a.HasAlpha(), nil
	}
	i := slices.IndexFunc(c.made, func(made conversion) bool { return pixels.Same(made.of, img) })
	if i < 0 {
		i = len(c.made)
		c.made = append(c.made, conversion{img, newInput(a.input(img))})
	}
	return c.made[i].input
}

// newInput returns an image from [Autoencoder.input] with its hash.
func newInput(img image.Image) input {
	m, ok := img.(*image.NRGBA)
	if !ok {
		m = (*image.NRGBA)(img.(*image.RGBA)) // the same bytes, since it is opaque
	}
	hash := sha256.New()
	fmt.Fprint(hash, m.Rect.Size())
	for y := m.Rect.Min.Y; y < m.Rect.Max.Y; y++ {
		at := m.PixOffset(m.Rect.Min.X, y)
		hash.Write(m.Pix[at : at+4*m.Rect.Dx()])
	}
	return input{img, imageHash(hash.Sum(nil))}
}

func images(references []input) []image.Image {
	var all []image.Image
	for _, r := range references {
		all = append(all, r.Image)
	}
	return all
}

// An lru is an LRU cache, with the most recently used value at the end. It owns the arrays of its
// values.
type lru[T interface{ free() }] []T

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

// add adds a value, and frees and drops the least recently used ones beyond the limit.
func (c *lru[T]) add(value T, limit int) {
	*c = append(*c, value)
	c.shrink(limit)
}

// shrink frees and drops the least recently used values beyond a limit.
func (c *lru[T]) shrink(limit int) {
	n := max(0, len(*c)-limit)
	for _, value := range (*c)[:n] {
		value.free()
	}
	*c = slices.Delete(*c, 0, n)
}
