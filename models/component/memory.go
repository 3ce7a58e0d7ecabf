package component

import "github.com/gomflux/gomflux/textenc"

// A BlockMemory is the memory model of the blocks of a transformer or text encoder.
// Activations are counted in elements per token.
type BlockMemory struct {
	Blocks int // the number of blocks
	Heads  int // attention heads of a block
	// Written and Read are the elements per token that the kernels of a block write and
	// read on a GPU.
	Written, Read float64
	// Live is the number of elements per token that a block has in memory at its peak
	// on the CPU, without attention scores.
	Live float64
	// Scores is the number of copies of the attention scores in memory at that peak, if MLX
	// computes attention (mlx.ConvolvesOnHost is false).
	Scores float64
	// Cast is the fraction of a block's weights that are cast or dequantized at the
	// peak with attention scores, CastAlone that at a peak without them.
	Cast, CastAlone float64
}

// languageModel returns the memory model of a language model. Its factors were
// measured with all supported text encoders.
func languageModel(blocks, heads, width, hidden int) BlockMemory {
	w, h := float64(width), float64(hidden)
	return BlockMemory{
		Blocks: blocks, Heads: heads,
		Written: 16*w + 10*h, Read: 16*w + 10*h,
		Live: 10*w + 4*h, Scores: 1, Cast: 0.9,
	}
}

// decoderBlocks is the [Class.Blocks] of language models.
func decoderBlocks(model any) BlockMemory { return languageModel(textenc.Sizes(model)) }

// Blocks returns the memory model of the component's blocks.
func (c Component) Blocks() BlockMemory {
	if c.Class.Blocks == nil {
		return DefaultBlockMemory(c.Model)
	}
	return c.Class.Blocks(c.Model)
}
