package models

import (
	"fmt"
	"image"
	"image/color"
	"math"
	"math/rand/v2"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/picture"
)

// Preview returns an image of latents for a preview: that of the preview decoder, if there is one, or
// the projection of the latents. It must run on the MLX thread.
func (a *Autoencoder) Preview(l Latents) (*image.RGBA, error) {
	if a.closed {
		return nil, ErrClosed
	}
	if a.previewer != nil {
		return a.previewer.Decode(l, false)
	}
	p, err := a.Projection()
	if err != nil {
		return nil, err
	}
	return p.Picture(l)
}

// loadPreviewer loads the autoencoder that decodes previews, if there is one in the options, and checks
// that it takes the model's latents.
func (p *Pipeline) loadPreviewer(o LoadOptions) error {
	if o.PreviewDecoder == nil {
		return nil
	}
	fsys, err := o.PreviewDecoder(p.component)
	if err == nil && fsys == nil {
		return nil
	}
	var a *Autoencoder
	if err == nil {
		a, err = LoadAutoencoder(fsys, LoadOptions{Device: &p.device, Dtype: &p.dtype})
	}
	if err != nil {
		return fmt.Errorf("preview decoder: %w", err)
	}
	p.previewer = a
	if a.vae.LatentChannels() != p.vae.LatentChannels() || a.ScaleFactor() != p.ScaleFactor() {
		const format = "preview decoder: %s: takes latents with %d channels at 1/%d of the size, " +
			"but this model's have %d channels at 1/%d"
		return errs.Requestf(format, checkpoint.FullName(fsys, ""), a.vae.LatentChannels(), a.ScaleFactor(),
			p.vae.LatentChannels(), p.ScaleFactor())
	}
	return nil
}

// weightsSize returns the size of the weights of modules in memory.
func weightsSize(modules ...any) (n int64) {
	for _, m := range modules {
		for _, p := range nn.Parameters(m) {
			for _, x := range p.Arrays() {
				n += int64(x.Nbytes())
			}
		}
	}
	return n
}

// Projection returns the projection of the autoencoder's latents to colours. If the model does not
// come with one, the first call fits it to a chart of colours, which it encodes. It must run on the
// MLX thread.
func (a *Autoencoder) Projection() (*Projection, error) {
	if a.projection != nil {
		return a.projection, nil
	}
	p, err := a.FitProjection(colourChart(32 * a.ScaleFactor()))
	a.projection = p
	return p, err
}

// FitProjection fits a projection of the autoencoder's latents to the colours of some images, by
// least squares.
func (a *Autoencoder) FitProjection(pictures ...*image.RGBA) (*Projection, error) {
	scale, n := a.ScaleFactor(), a.vae.LatentChannels()+1
	normal := make([][]float64, n) // the normal equations, followed by three right-hand sides
	for i := range normal {
		normal[i] = make([]float64, n+3)
	}
	row := make([]float64, n+3)
	samples := 0
	for _, img := range pictures {
		img = picture.Opaque(img)
		latents, err := a.Encode(img)
		if err != nil {
			return nil, err
		}
		h, w := latents.Shape[1], latents.Shape[2]
		for y := range h {
			for x := range w {
				for c := range n - 1 {
					row[c] = float64(latents.Data[(c*h+y)*w+x])
				}
				row[n-1] = 1
				mean := meanColour(img, image.Rect(x*scale, y*scale, (x+1)*scale, (y+1)*scale).Add(img.Rect.Min))
				copy(row[n:], mean[:])
				for i := range n {
					for j := range row {
						normal[i][j] += row[i] * row[j]
					}
				}
			}
		}
		samples += h * w
	}
	for i := range n - 1 {
		normal[i][i] += 1e-3 * float64(samples) // keeps the factors of meaningless channels at 0
	}
	solution := solve(normal)
	return &Projection{Factors: solution[:n-1], Bias: solution[n-1]}, nil
}

// colourChart returns a square image of many colours, half of them in uniform patches and half in
// gradients.
func colourChart(side int) *image.RGBA {
	r := rand.New(rand.NewPCG(1, 2))
	colour := func() (c [3]float64) {
		for k := range c {
			c[k] = r.Float64()
		}
		return c
	}
	const patches = 8
	img := image.NewRGBA(image.Rect(0, 0, side, side))
	size := side / patches
	for py := range patches {
		for px := range patches {
			from, right, down := colour(), colour(), colour()
			if (px+py)%2 == 0 {
				right, down = from, from
			}
			for y := range size {
				for x := range size {
					u, v := float64(x)/float64(size), float64(y)/float64(size)
					var c [3]uint8
					for k := range c {
						c[k] = uint8(math.Round(255 * min(1, max(0, from[k]+u*(right[k]-from[k])+v*(down[k]-from[k])))))
					}
					img.SetRGBA(px*size+x, py*size+y, color.RGBA{c[0], c[1], c[2], 255})
				}
			}
		}
	}
	return img
}

// meanColour returns the means of red, green and blue in r, from -1 to 1.
func meanColour(img *image.RGBA, r image.Rectangle) (mean [3]float64) {
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			at := img.PixOffset(x, y)
			for k := range mean {
				mean[k] += float64(img.Pix[at+k])
			}
		}
	}
	for k := range mean {
		mean[k] = mean[k]/(127.5*float64(r.Dx()*r.Dy())) - 1
	}
	return mean
}

// solve solves n equations with a positive definite matrix and three right-hand sides, in the last
// three columns, by Gaussian elimination, which needs no pivoting for such matrices.
func solve(m [][]float64) [][3]float64 {
	n := len(m)
	for i := range n {
		for j := i + 1; j < n; j++ {
			f := m[j][i] / m[i][i]
			for k := i; k < n+3; k++ {
				m[j][k] -= f * m[i][k]
			}
		}
	}
	out := make([][3]float64, n)
	for i := n - 1; i >= 0; i-- {
		for k := range 3 {
			v := m[i][n+k]
			for j := i + 1; j < n; j++ {
				v -= m[i][j] * out[j][k]
			}
			out[i][k] = v / m[i][i]
		}
	}
	return out
}
