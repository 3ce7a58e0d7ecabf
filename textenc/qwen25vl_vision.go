package textenc

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen25VLVisionConfig is vision_config of transformers' Qwen2_5_VLConfig.
type Qwen25VLVisionConfig struct {
	visionConfig
	InChans             *int        `json:"in_chans"` // in_channels in older files
	WindowSize          int         `json:"window_size" size:"1"`
	FullAttBlockIndexes []int       `json:"fullatt_block_indexes"`
	RopeTheta           *float64    `json:"rope_theta"`
	RopeScaling         *qwenVLRope `json:"rope_scaling"`
}

func (c *Qwen25VLVisionConfig) validate() error {
	if err := c.visionConfig.validate(c, "silu", c.rope()); err != nil {
		return err
	}
	switch {
	case c.InChannels != channels || c.InChans != nil && *c.InChans != channels:
		return fmt.Errorf("in_channels or in_chans is not %d", channels)
	case c.windowCells() < 1:
		return fmt.Errorf("window_size %d must be at least %d, the size of merged patches", c.WindowSize, c.SpatialMergeSize*c.PatchSize)
	}
	return nil
}

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen25VLVisionConfig) rope() qwenVLRope {
	return newQwenVLRope(c.RopeScaling, c.RopeParameters, c.RopeTheta, 10000)
}

// windowCells returns the side of a window in merged patches.
func (c *Qwen25VLVisionConfig) windowCells() int {
	return c.WindowSize / c.SpatialMergeSize / c.PatchSize
}

// qwen25VLVision is Qwen2_5_VisionTransformerPretrainedModel.
type qwen25VLVision struct {
	nn.Module    `in:"0 grid_thw" out:"pooler_output"`
	PatchEmbed   *visionPatchEmbed `w:"patch_embed"`
	RotaryPosEmb *rotaryEmbedding  `w:"rotary_pos_emb"`
	Blocks       []*visionBlock    `w:"blocks"`
	Merger       *visionMerger     `w:"merger"`

	config Qwen25VLVisionConfig
}

func newQwen25VLVision(c Qwen25VLVisionConfig) *qwen25VLVision {
	m := &qwen25VLVision{
		PatchEmbed:   newVisionPatchEmbed(c.HiddenSize, c.patches(), false),
		RotaryPosEmb: &rotaryEmbedding{}, Merger: newVisionMerger(c), config: c,
	}
	for i := range c.Depth {
		m.Blocks = append(m.Blocks, newVisionBlock(c, slices.Contains(c.FullAttBlockIndexes, i)))
	}
	return m
}

// Forward implements visionEncoder.
func (m *qwen25VLVision) Forward(images []VisionInput, dtype mlx.Dtype) (features *mlx.Array, deepstack []*mlx.Array) {
	c, pixels := m.config, pixelsOf(images)
	w := newWindows(images, c.SpatialMergeSize, c.windowCells())
	x := m.PatchEmbed.Forward(pixels, dtype).TakeRows(w.patches)

	rope, positions := c.rotary(images, *c.rope().RopeTheta)
	if m.Observed() {
		rope = m.RotaryPosEmb.Forward(rope, mlx.Float32, 0, x, transposed(positions).T())
	}
	rope = nn.Rope{Cos: rope.Cos.TakeRows(w.patches), Sin: rope.Sin.TakeRows(w.patches)}
	byWindow, byImage := newSpans(w.lengths, rope), newSpans(w.images, rope)

	x = nn.WidenFP16(x)
	for _, b := range mlx.Layers(m.Blocks, &x) {
		if b.full {
			x = b.Forward(x, byImage, dtype)
		} else {
			x = b.Forward(x, byWindow, dtype)
		}
	}
	features = m.Merger.Forward(x, dtype).TakeRows(inverse(w.cells))
	_, features = m.Tap2(x, features, pixels, gridsOf(images)) // a hook's replacement of x has no effect
	return features, nil
}

// windows describe the vision encoder's order of patches: window by window. Windows at
// the right and lower edges of an image may be smaller than others.
type windows struct {
	cells, patches  []int32 // indices of merged patches and of patches, in this order
	lengths, images []int   // number of patches of each window and of each image
}

func newWindows(images []VisionInput, merge, side int) windows {
	var w windows
	first := 0
	for _, in := range images {
		height, width := in.Height/merge, in.Width/merge
		for top := 0; top < height; top += side {
			for left := 0; left < width; left += side {
				bottom, right := min(top+side, height), min(left+side, width)
				for y := top; y < bottom; y++ {
					for x := left; x < right; x++ {
						w.cells = append(w.cells, int32(first+y*width+x))
					}
				}
				w.lengths = append(w.lengths, (bottom-top)*(right-left)*merge*merge)
			}
		}
		first += height * width
		w.images = append(w.images, in.Height*in.Width)
	}
	for _, cell := range w.cells {
		for i := range int32(merge * merge) {
			w.patches = append(w.patches, cell*int32(merge*merge)+i)
		}
	}
	return w
}

func newVisionBlock(c Qwen25VLVisionConfig, full bool) *visionBlock {
	return &visionBlock{
		Norm1: nn.NewRMSNorm(c.HiddenSize, visionEps), Norm2: nn.NewRMSNorm(c.HiddenSize, visionEps),
		Attn: newVisionAttention(c.HiddenSize, c.NumHeads),
		MLP:  newQwen3MLP(c.HiddenSize, c.IntermediateSize, true),
		full: full,
	}
}

// visionMerger is Qwen2_5_VLPatchMerger: a norm of each patch, then an MLP of the merged
// patches.
type visionMerger struct {
	nn.Module
	LnQ *nn.RMSNorm    `w:"ln_q"`
	MLP *nn.Sequential `w:"mlp"`

	dim int // of a merged patch
}

func newVisionMerger(c Qwen25VLVisionConfig) *visionMerger {
	dim := c.HiddenSize * c.SpatialMergeSize * c.SpatialMergeSize
	return &visionMerger{
		LnQ: nn.NewRMSNorm(c.HiddenSize, visionEps),
		MLP: nn.NewSequential(nn.NewLinear(dim, dim, true), &nn.Activation{Func: (*mlx.Array).GELU},
			nn.NewLinear(dim, c.OutHiddenSize, true)),
		dim: dim,
	}
}

func (m *visionMerger) Forward(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return m.Tap(m.MLP.Forward(m.LnQ.Forward(x).AsType(dtype).Reshape(-1, m.dim)), x)
}
