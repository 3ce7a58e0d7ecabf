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

// fluxFLOPs is that of FLUX.1's transformer.
func fluxFLOPs(c transformer.FluxConfig, image, text int) float64 {
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	// q, k, v and the output, and a feed-forward of four times the width, in both
	// kinds of blocks
	const perToken, modulations = 12, 12
	macs := jointMACs(d, float64(image), float64(text), c.NumLayers+c.NumSingleLayers, perToken)
	macs += float64(c.NumLayers)*modulations*d*d + float64(c.NumSingleLayers)*3*d*d
	macs += float64(image)*2*float64(c.InChannels)*d + float64(text)*float64(c.JointAttentionDim)*d
	return 2 * macs
}

// flux2FLOPs is that of FLUX.2's, whose blocks share their modulation.
func flux2FLOPs(c transformer.Flux2Config, image, text int) float64 {
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	perToken := 4 + 3*c.MLPRatio // gate, up and down
	macs := jointMACs(d, float64(image), float64(text), c.NumLayers+c.NumSingleLayers, perToken) + 15*d*d
	macs += float64(image)*2*float64(c.InChannels)*d + float64(text)*float64(c.JointAttentionDim)*d
	return 2 * macs
}

// jointMACs are the multiplications of blocks of a width d with joint attention
// over image and text, whose linear layers have so many times d² weights.
func jointMACs(d, image, text float64, blocks int, linear float64) float64 {
	tokens := image + text
	return float64(blocks) * (tokens*linear*d*d + 2*tokens*tokens*d)
}
