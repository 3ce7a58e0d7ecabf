package component

// Operations of transformers are counted as two per multiplication and addition in
// linear layers and attention. Norms, activations and rotations are left out, as is
// usual.

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
