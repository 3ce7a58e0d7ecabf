package main

import "github.com/gomflux/gomflux/transformer"

// zimageFLOPs counts one pass of a Z-Image transformer over a picture of so
// many tokens and a caption: two per multiplication and addition in linear
// layers and attention. Norms, activations and rotations are left out, as is
// usual.
func zimageFLOPs(c transformer.ZImageConfig, image, caption int) float64 {
	const timeFeatures, timeHidden, multiple = 256, 1024, 32
	pad := func(n int) float64 { return float64((n + multiple - 1) / multiple * multiple) }
	x, t := pad(image), pad(caption)
	d := float64(c.Dim)
	adaLN := min(d, 256)
	hidden := float64(int(d / 3 * 8))
	features := float64(c.AllPatchSize[0] * c.AllPatchSize[0] * c.InChannels)

	block := func(tokens float64, modulated bool) float64 {
		macs := tokens*(4*d*d+3*d*hidden) + 2*tokens*tokens*d
		if modulated {
			macs += adaLN * 4 * d
		}
		return macs
	}
	macs := timeFeatures*timeHidden + timeHidden*adaLN
	macs += x*features*d + t*float64(c.CapFeatDim)*d
	macs += float64(c.NRefinerLayers) * (block(x, true) + block(t, false))
	macs += float64(c.NLayers) * block(x+t, true)
	macs += adaLN*d + (x+t)*d*features
	return 2 * macs
}
