package main

import "github.com/gomflux/gomflux/transformer"

// zimageFLOPs counts one pass of a Z-Image transformer over a picture of so
// many tokens and a caption: two per multiplication and addition in linear
// layers and attention. Norms, activations and rotations are left out, as is
// usual.
func zimageFLOPs(c transformer.ZImageConfig, image, caption int) float64 {
	const timeHidden, multiple = 1024, 32
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

// fluxFLOPs is that of FLUX.1's transformer, with image tokens of 2x2 latents.
func fluxFLOPs(c transformer.FluxConfig, image, text int) float64 {
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	embed := timeFeatures*d + d*d
	macs := embed + float64(c.PooledProjectionDim)*d + d*d
	if c.GuidanceEmbeds {
		macs += embed
	}
	macs += float64(c.NumLayers)*12*d*d + float64(c.NumSingleLayers)*3*d*d // modulation
	macs += jointMACs(d, 4*d, image, text, c.NumLayers+c.NumSingleLayers, 2)
	return 2 * (macs + endMACs(d, c.InChannels, c.JointAttentionDim, image, text))
}

// flux2FLOPs is that of FLUX.2's, whose blocks share their modulation, with tokens
// of references that come out with those of the picture.
func flux2FLOPs(c transformer.Flux2Config, image, text int) float64 {
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	macs := float64(c.TimestepGuidanceChannels)*d + d*d + 15*d*d
	hidden := float64(int(d * c.MLPRatio))
	macs += jointMACs(d, hidden, image, text, c.NumLayers+c.NumSingleLayers, 3)
	return 2 * (macs + endMACs(d, c.InChannels, c.JointAttentionDim, image, text))
}

// qwenImageFLOPs is that of Qwen-Image's, likewise.
func qwenImageFLOPs(c transformer.QwenImageConfig, image, text int) float64 {
	d := float64(c.NumAttentionHeads * c.AttentionHeadDim)
	times := 1.0
	if c.ZeroCondT { // references have a time of their own
		times = 2
	}
	macs := times * (timeFeatures*d + d*d)
	macs += float64(c.NumLayers) * (times + 1) * 6 * d * d // modulation of image and text
	macs += jointMACs(d, 4*d, image, text, c.NumLayers, 2)
	return 2 * (macs + endMACs(d, c.InChannels, c.JointAttentionDim, image, text))
}

// timeFeatures are the sinusoids of a time.
const timeFeatures = 256

// jointMACs are the multiplications of blocks of a width d with joint attention
// over image and text, and feed-forwards of so many matrices, d wide outside and
// hidden inside.
func jointMACs(d, hidden float64, image, text, blocks, matrices int) float64 {
	tokens := float64(image + text)
	return float64(blocks) * (tokens*(4*d*d+float64(matrices)*d*hidden) + 2*tokens*tokens*d)
}

// endMACs are those of what leads into the blocks and out of them.
func endMACs(d float64, channels, textDim, image, text int) float64 {
	return float64(image)*2*float64(channels)*d + float64(text)*float64(textDim)*d + 2*d*d
}
