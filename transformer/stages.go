package transformer

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// staged makes passes of the model that embeds it run the blocks of a stage; see [nn.Staged].
type staged struct{ stages *nn.Stages }

// Stage implements [nn.Staged].
func (s *staged) Stage(stages *nn.Stages) { s.stages = stages }

// inStages returns a pass with the stages.
func (s *staged) inStages(p Pass) Pass {
	if s.stages == nil {
		return p
	}
	return stagedPass{p, s.stages}
}

// A stagedPass is a pass whose blocks the members of a group run one after the other.
type stagedPass struct {
	Pass
	stages *nn.Stages
}

func (p stagedPass) Blocks(h Hidden, first, end int) Hidden {
	text, x := 0, h.Image
	if h.Text != nil { // both streams are one message
		text, x = h.Text.Dim(1), mlx.Concat(1, h.Text, h.Image)
	}
	x = p.stages.Run(first, end, x, func(first, end int, x *mlx.Array) *mlx.Array {
		before := splitText(x, text, text == 0)
		after := p.Pass.Blocks(before, first, end)
		if text == 0 {
			return after.Image
		}
		if after.Text == nil { // others do not know the shape without it
			after.Text = before.Text
		}
		return mlx.Concat(1, after.Text, after.Image)
	})
	return splitText(x, text, text == 0 || end == p.Len())
}

// The blocks of each model, in the order of its [Pass], for [nn.Staged].

func (m *Cosmos) StageBlocks() [][]any      { return nn.Blocks(m.TransformerBlocks) }
func (m *ErnieImage) StageBlocks() [][]any  { return nn.Blocks(m.Layers) }
func (m *Krea2) StageBlocks() [][]any       { return nn.Blocks(m.TransformerBlocks) }
func (m *QwenImage) StageBlocks() [][]any   { return nn.Blocks(m.TransformerBlocks) }
func (m *QwenImage21) StageBlocks() [][]any { return nn.Blocks(m.TransformerBlocks) }
func (m *ZImage) StageBlocks() [][]any      { return nn.Blocks(m.Layers) }
func (m *Flux) StageBlocks() [][]any {
	return slices.Concat(nn.Blocks(m.TransformerBlocks), nn.Blocks(m.SingleTransformerBlocks))
}
func (m *Flux2) StageBlocks() [][]any {
	return slices.Concat(nn.Blocks(m.TransformerBlocks), nn.Blocks(m.SingleTransformerBlocks))
}

// StageBlocks implements [nn.Staged]. A block of each mode makes one.
func (m *Flux3) StageBlocks() (blocks [][]any) {
	for i, b := range m.TxtModeBlocks {
		blocks = append(blocks, []any{b, m.ModeBlocks.Image[i], m.ModeBlocks.Cond[i]})
	}
	return append(blocks, nn.Blocks(m.SingleBlocks)...)
}
