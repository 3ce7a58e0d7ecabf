package component

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/vae"
)

// A Projection projects latents to colours without a decoder: red, green and blue, in
// [-1, 1], are a linear function of the latents at each position.
type Projection struct {
	Factors [][3]float64 `json:"latent_rgb_factors"` // for each channel
	Bias    [3]float64   `json:"latent_rgb_factors_bias"`
}

// projectionFile is a file in an autoencoder's folder with its projection.
const projectionFile = "latent_rgb_factors.json"

// readProjection reads the projection in an autoencoder's folder. Without a file, it
// returns the published projection, or nil if there is no such projection.
func readProjection(fsys fs.FS, dir string, class *Class, a vae.Autoencoder) (*Projection, error) {
	file := path.Join(dir, projectionFile)
	if _, err := fs.Stat(fsys, file); err != nil {
		if class.Preview == nil {
			return nil, nil
		}
		return class.Preview(a), nil
	}
	// slices, because decoding into an array accepts lists of any length
	var read struct {
		Factors [][]float64 `json:"latent_rgb_factors"`
		Bias    []float64   `json:"latent_rgb_factors_bias"`
	}
	if err := checkpoint.ReadJSON(fsys, file, &read); err != nil {
		return nil, err
	}
	wrong := func(format string, args ...any) (*Projection, error) {
		return nil, fmt.Errorf("%s: %s", checkpoint.FullName(fsys, file), fmt.Sprintf(format, args...))
	}
	channels := a.LatentChannels()
	if len(read.Factors) != channels {
		return wrong("%d latent_rgb_factors, expected %d, the number of the VAE's latent channels", len(read.Factors), channels)
	}
	p := &Projection{Factors: make([][3]float64, channels)}
	for i, f := range read.Factors {
		if len(f) != 3 {
			return wrong("latent_rgb_factors of channel %d: %d numbers, expected 3", i, len(f))
		}
		p.Factors[i] = [3]float64(f)
	}
	switch len(read.Bias) {
	case 0:
	case 3:
		p.Bias = [3]float64(read.Bias)
	default:
		return wrong("latent_rgb_factors_bias: %d numbers, expected 3", len(read.Bias))
	}
	return p, nil
}
