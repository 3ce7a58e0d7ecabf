package transformer

import "github.com/gomflux/gomflux/mlx"

// A Pass is a forward pass for some inputs in parts, so that a caller can leave out blocks:
//
//	h := p.Embed()
//	h = p.Blocks(h, 0, p.Len())
//	y := p.Output(h.Image)
//
// Nothing is computed for parts that are not called.
type Pass interface {
	// Embed returns the hidden states before the first block.
	Embed() Hidden
	// Len returns the number of blocks.
	Len() int
	// Blocks returns the hidden states after the blocks from first to end-1. After the last
	// block they have no text. The image's have the shape of those before.
	Blocks(h Hidden, first, end int) Hidden
	// Output returns the model's output for the image's hidden states after the last block.
	Output(image *mlx.Array) *mlx.Array
}

// Hidden are the hidden states between two blocks: of the text [B, T, dim], and of the image with
// its reference images [B, L, dim]. In a model with a single stream, Text is nil and Image has all
// tokens.
type Hidden struct{ Text, Image *mlx.Array }

// Inputs are the inputs of a forward pass. A model takes those that its Pass names; the others are nil. Text,
// Pooled, References and Channels may have a batch of 1 for all latents.
type Inputs struct {
	Latents  *mlx.Array // [B, C, H, W]
	Timestep *mlx.Array // sinusoids [1, n] from the model's method Timestep
	Target   *mlx.Array // sinusoids of the timestep that the step of a flow map leads to
	Guidance *mlx.Array // sinusoids of a guidance scale from the model's method Guidance
	Text     *mlx.Array // embeddings of the prompt [B, T, D]
	Pooled   *mlx.Array // pooled embeddings of the prompt [B, D]
	// References are tokens [B, R, D] of reference images, and Channels what each token [B, H·W/4, D] has
	// after the channels of the latents.
	References, Channels *mlx.Array
	// Projections are the rows [n, D] of a step from the model's method Projections, which replace Timestep,
	// Guidance and Pooled.
	Projections *mlx.Array
	Cache       KVCache // for CachedPass
}

// Run runs all parts of a pass.
func Run(p Pass) *mlx.Array {
	return p.Output(p.Blocks(p.Embed(), 0, p.Len()).Image)
}

// cut returns the blocks from first to end-1 of two lists, of which the second follows the first.
func cut[A, B any](a []A, b []B, first, end int) ([]A, []B) {
	n := len(a)
	return a[min(first, n):min(end, n)], b[max(first-n, 0):max(end-n, 0)]
}

// splitText returns the hidden states of a joint sequence x [B, T+L, dim], without the text after
// the last block.
func splitText(x *mlx.Array, text int, last bool) Hidden {
	h := Hidden{Image: x.Slice(1, text, x.Dim(1))}
	if !last {
		h.Text = x.Slice(1, 0, text)
	}
	return h
}
