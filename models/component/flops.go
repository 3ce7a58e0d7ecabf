package component

// FLOPs are counted as two per multiply-accumulate (MAC) in linear layers and
// attention. Norms, activations and rotary embeddings are left out, as is common.

// timeFeatures is the size of a sinusoidal timestep embedding.
const timeFeatures = 256

// jointMACs returns the MACs of blocks of width d with joint attention over image and
// text tokens, and feed-forwards with a number of matrices of size d × hidden.
func jointMACs(d, hidden float64, image, text, blocks, matrices int) float64 {
	tokens := float64(image + text)
	return float64(blocks) * (tokens*(4*d*d+float64(matrices)*d*hidden) + 2*tokens*tokens*d)
}

// endMACs returns the MACs of the layers before and after the blocks.
func endMACs(d float64, channels, textDim, image, text int) float64 {
	return float64(image)*2*float64(channels)*d + float64(text)*float64(textDim)*d + 2*d*d
}
