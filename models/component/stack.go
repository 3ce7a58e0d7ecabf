package component

// A Stack is the blocks of a transformer or of a text encoder, as far as the memory
// goes that they take. What a block computes is counted in elements for each token.
type Stack struct {
	Blocks, Heads int
	// Made and Read are what the kernels of a block write and read on a GPU.
	Made, Read float64
	// Alive is what a block has in memory at a time on the CPU, beside the scores of
	// attention, Scores times as many as there are.
	Alive, Scores float64
	// Cast is how much of a block's weights are cast or unpacked at that time, and
	// CastAlone how much at another, when there are no scores.
	Cast, CastAlone float64
}

// languageModel is the stack of a language model. Its factors were measured with
// all text encoders that there are.
func languageModel(blocks, heads, width, hidden int) Stack {
	w, h := float64(width), float64(hidden)
	return Stack{Blocks: blocks, Heads: heads, Made: 16*w + 10*h, Read: 16*w + 10*h, Alive: 10*w + 4*h, Scores: 1, Cast: 0.9}
}

// Blocks describes the memory that the component's blocks take.
func (c Component) Blocks() Stack {
	if c.Class.Blocks == nil {
		return DefaultStack(c.Model)
	}
	return c.Class.Blocks(c.Model)
}
