package textenc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen25VLVisionConfig is vision_config of transformers' Qwen2_5_VLConfig.
type Qwen25VLVisionConfig struct {
	Depth               int           `json:"depth"`
	HiddenSize          int           `json:"hidden_size"`
	IntermediateSize    int           `json:"intermediate_size"`
	NumHeads            int           `json:"num_heads"`
	HiddenAct           string        `json:"hidden_act"`
	InChannels          int           `json:"in_channels"`
	InChans             *int          `json:"in_chans"` // in_channels in older files
	PatchSize           int           `json:"patch_size"`
	SpatialMergeSize    int           `json:"spatial_merge_size"`
	TemporalPatchSize   int           `json:"temporal_patch_size"`
	WindowSize          int           `json:"window_size"`
	OutHiddenSize       int           `json:"out_hidden_size"`
	FullAttBlockIndexes []int         `json:"fullatt_block_indexes"`
	RopeTheta           *float64      `json:"rope_theta"`
	RopeScaling         *qwen25VLRope `json:"rope_scaling"`
	RopeParameters      *qwen25VLRope `json:"rope_parameters"`
}

func (c *Qwen25VLVisionConfig) validate() error {
	if err := validatePatches(c.PatchSize, c.SpatialMergeSize, c.TemporalPatchSize); err != nil {
		return err
	}
	rope := c.rope()
	switch {
	case min(c.Depth, c.HiddenSize, c.IntermediateSize, c.NumHeads, c.OutHiddenSize) < 1:
		return errors.New("depth, hidden_size, intermediate_size, num_heads and out_hidden_size must be positive")
	case c.Depth > nn.MaxLayers || max(c.HiddenSize, c.IntermediateSize, c.NumHeads, c.OutHiddenSize, c.WindowSize) > nn.MaxDim:
		return fmt.Errorf("more than %d layers, or a size above %d", nn.MaxLayers, nn.MaxDim)
	case c.HiddenSize%c.NumHeads != 0 || c.headDim()%4 != 0:
		return fmt.Errorf("hidden_size %d must be num_heads %d times a multiple of 4", c.HiddenSize, c.NumHeads)
	case c.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q, expected silu", c.HiddenAct)
	case c.InChannels != channels || c.InChans != nil && *c.InChans != channels:
		return fmt.Errorf("in_channels or in_chans is not %d", channels)
	case c.windowCells() < 1:
		return fmt.Errorf("window_size %d must be at least %d, the size of merged patches", c.WindowSize, c.SpatialMergeSize*c.PatchSize)
	case rope.RopeType != "default" && rope.RopeType != "axial": // transformers treats default as axial
		return fmt.Errorf("rope_type %q, expected axial", rope.RopeType)
	case !(*rope.RopeTheta > 0):
		return fmt.Errorf("rope_theta %g must be positive", *rope.RopeTheta)
	}
	return nil
}

// channels is the number of channels of an image.
const channels = 3

// validatePatches returns an error for sizes of patches that no image has.
func validatePatches(patch, merge, temporal int) error {
	const most = 1 << 8
	if min(patch, merge, temporal) < 1 || max(patch, merge, temporal) > most {
		return fmt.Errorf("patch size %d, merge size %d and temporal patch size %d must be from 1 to %d", patch, merge, temporal, most)
	}
	return nil
}

func (c *Qwen25VLVisionConfig) headDim() int { return c.HiddenSize / c.NumHeads }

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen25VLVisionConfig) rope() qwen25VLRope {
	return newQwen25VLRope(c.RopeScaling, c.RopeParameters, c.RopeTheta, 10000)
}

// windowCells returns the side of a window in merged patches.
func (c *Qwen25VLVisionConfig) windowCells() int {
	return c.WindowSize / c.SpatialMergeSize / c.PatchSize
}

// check returns an error for an image that the vision encoder cannot take.
func (c *Qwen25VLVisionConfig) check(in VisionInput) error {
	row := channels * c.TemporalPatchSize * c.PatchSize * c.PatchSize
	switch merge := c.SpatialMergeSize; {
	case in.Height < 1 || in.Width < 1 || in.Height%merge != 0 || in.Width%merge != 0:
		return fmt.Errorf("an image of %dx%d patches, expected multiples of %d", in.Width, in.Height, merge)
	case len(in.Pixels) != in.Height*in.Width*row:
		return fmt.Errorf("%d values for an image of %dx%d patches, expected %d for each", len(in.Pixels), in.Width, in.Height, row)
	}
	return nil
}

// tokens returns the number of features of an image.
func (c *Qwen25VLVisionConfig) tokens(in VisionInput) int {
	return in.Height * in.Width / (c.SpatialMergeSize * c.SpatialMergeSize)
}

// A VisionInput is an input image of the vision encoder (transformers' pixel_values and
// image_grid_thw), from [Qwen2VLImageProcessor.Process].
type VisionInput struct {
	// Pixels has one row per patch: [Height·Width, 3·frames·size·size]. Patches that are
	// merged into one are consecutive.
	Pixels []float32
	// Height and Width are the size in patches, multiples of the merge size.
	Height, Width int
}

// pixelsOf returns the patches of all images, float32 [patches, row].
func pixelsOf(images []VisionInput) *mlx.Array {
	var pixels []float32
	n := 0
	for _, in := range images {
		pixels = append(pixels, in.Pixels...)
		n += in.Height * in.Width
	}
	return mlx.FromFloat32(pixels, n, len(pixels)/n)
}

// gridsOf returns the sizes of images in time, height and width, int32 [n, 3].
func gridsOf(images []VisionInput) *mlx.Array {
	var grids []int32
	for _, in := range images {
		grids = append(grids, 1, int32(in.Height), int32(in.Width))
	}
	return mlx.FromInt32(grids, len(images), 3)
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
		PatchEmbed: &visionPatchEmbed{Proj: &patchConv{
			Weight: nn.NewParam(c.HiddenSize, channels, c.TemporalPatchSize, c.PatchSize, c.PatchSize),
		}},
		RotaryPosEmb: &rotaryEmbedding{}, Merger: newVisionMerger(c), config: c,
	}
	for i := range c.Depth {
		m.Blocks = append(m.Blocks, newVisionBlock(c, slices.Contains(c.FullAttBlockIndexes, i)))
	}
	return m
}

// visionEps is the epsilon of all norms of the vision encoder. It is in no config.
const visionEps = 1e-6

// Forward returns the features [n, out_hidden_size] of checked images in dtype, one image
// after the other.
func (m *qwen25VLVision) Forward(images []VisionInput, dtype mlx.Dtype) *mlx.Array {
	c, pixels := m.config, pixelsOf(images)
	w := newWindows(images, c.SpatialMergeSize, c.windowCells())
	x := m.PatchEmbed.Forward(pixels, dtype).TakeRows(w.patches)

	positions := patchPositions(images, c.SpatialMergeSize)
	rope := nn.NewRope(positions, []int{c.headDim() / 2, c.headDim() / 2}, *c.rope().RopeTheta)
	if m.Observed() {
		rope = m.RotaryPosEmb.Forward(rope, mlx.Float32, false, x, transposed(positions).T())
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
	features := m.Merger.Forward(x, dtype).TakeRows(inverse(w.cells))
	_, features = m.Tap2(x, features, pixels, gridsOf(images)) // a hook's replacement of x has no effect
	return features
}

// patchPositions returns the row and column of every patch in its image.
func patchPositions(images []VisionInput, merge int) [][]int {
	var positions [][]int
	for _, in := range images {
		for y := 0; y < in.Height; y += merge {
			for x := 0; x < in.Width; x += merge {
				for i := range merge * merge {
					positions = append(positions, []int{y + i/merge, x + i%merge})
				}
			}
		}
	}
	return positions
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

// inverse returns the inverse of a permutation.
func inverse(p []int32) []int32 {
	out := make([]int32, len(p))
	for i, v := range p {
		out[v] = int32(i)
	}
	return out
}

// spans are ranges of patches that attend only to each other. Spans of equal length are
// computed in one batch, so patches are reordered to group them.
type spans struct {
	order, back []int32 // permutation that groups spans and its inverse; nil if not needed
	groups      []spanGroup
}

// A spanGroup has n spans of the same length.
type spanGroup struct {
	n, length int
	rope      nn.Rope // [n, 1, length, D/2]
}

// newSpans returns consecutive spans of the given lengths. rope has the rotary table of
// all patches.
func newSpans(lengths []int, rope nn.Rope) *spans {
	s := &spans{}
	starts := map[int][]int{}
	at := 0
	var kinds []int
	for _, n := range lengths {
		if starts[n] == nil {
			kinds = append(kinds, n)
		}
		starts[n] = append(starts[n], at)
		at += n
	}
	for _, length := range kinds {
		for _, start := range starts[length] {
			for i := range length {
				s.order = append(s.order, int32(start+i))
			}
		}
	}
	if slices.IsSorted(s.order) {
		s.order = nil
	} else {
		s.back = inverse(s.order)
		rope = nn.Rope{Cos: rope.Cos.TakeRows(s.order), Sin: rope.Sin.TakeRows(s.order)}
	}
	first := 0
	for _, length := range kinds {
		n := len(starts[length])
		part := func(x *mlx.Array) *mlx.Array {
			return x.Slice(0, first, first+n*length).Reshape(n, 1, length, x.Dim(1))
		}
		s.groups = append(s.groups, spanGroup{n, length, nn.Rope{Cos: part(rope.Cos), Sin: part(rope.Sin)}})
		first += n * length
	}
	return s
}

// visionPatchEmbed is Qwen2_5_VisionPatchEmbed.
type visionPatchEmbed struct {
	nn.Module
	Proj *patchConv `w:"proj"`
}

func (p *visionPatchEmbed) Forward(pixels *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return p.Tap(p.Proj.Forward(pixels.AsType(dtype)), pixels)
}

// patchConv is a torch.nn.Conv3d whose kernel covers a whole patch: weight
// [dim, channels, frames, size, size], applied to [n, row] as a matrix.
type patchConv struct {
	nn.Module
	Weight nn.Param `w:"weight"`
}

func (c *patchConv) Forward(x *mlx.Array) *mlx.Array {
	s := c.Weight.Shape()
	y := x.Matmul(c.Weight.As(x.Dtype()).Reshape(s[0], -1).T())
	if !c.Observed() {
		return y
	}
	y = c.Tap(y.Reshape(-1, s[0], 1, 1, 1), x.Reshape(-1, s[1], s[2], s[3], s[4]))
	return y.Reshape(-1, s[0])
}

// visionBlock is Qwen2_5_VLVisionBlock.
type visionBlock struct {
	nn.Module
	Norm1 *nn.RMSNorm      `w:"norm1"`
	Norm2 *nn.RMSNorm      `w:"norm2"`
	Attn  *visionAttention `w:"attn"`
	MLP   *qwen25VLMLP     `w:"mlp"`

	full bool // attention over whole images, not windows
}

func newVisionBlock(c Qwen25VLVisionConfig, full bool) *visionBlock {
	return &visionBlock{
		Norm1: nn.NewRMSNorm(c.HiddenSize, visionEps), Norm2: nn.NewRMSNorm(c.HiddenSize, visionEps),
		Attn: &visionAttention{
			QKV: nn.NewLinear(c.HiddenSize, 3*c.HiddenSize, true), Proj: nn.NewLinear(c.HiddenSize, c.HiddenSize, true),
			heads: c.NumHeads,
		},
		MLP:  newQwen25VLMLP(c.HiddenSize, c.IntermediateSize, true),
		full: full,
	}
}

func (b *visionBlock) Forward(x *mlx.Array, s *spans, dtype mlx.Dtype) *mlx.Array {
	y := x.Add(b.Attn.Forward(b.Norm1.Forward(x).AsType(dtype), s))
	y = y.Add(b.MLP.Forward(b.Norm2.Forward(y).AsType(dtype)))
	return b.Tap(y, x)
}

// visionAttention is Qwen2_5_VLVisionAttention.
type visionAttention struct {
	nn.Module
	QKV  *nn.Linear `w:"qkv"`
	Proj *nn.Linear `w:"proj"`

	heads int
}

func (a *visionAttention) Forward(x *mlx.Array, s *spans) *mlx.Array {
	qkv := a.QKV.Forward(x)
	if s.order != nil {
		qkv = qkv.TakeRows(s.order)
	}
	dim := x.Dim(1)
	var parts []*mlx.Array
	first := 0
	for i, g := range s.groups {
		rows := qkv.Slice(0, first, first+g.n*g.length).Reshape(g.n, g.length, 3*dim).Split(3, -1)
		q, k, v := g.rope.HalfSplit(nn.Heads(rows[0], a.heads)), g.rope.HalfSplit(nn.Heads(rows[1], a.heads)), nn.Heads(rows[2], a.heads)
		if i == 0 && a.Observed() {
			q, k, v = a.tapFirst(q, k, v)
		}
		parts = append(parts, nn.MergeHeads(nn.Attention(q, k, v)).Reshape(g.n*g.length, dim))
		first += g.n * g.length
	}
	y := mlx.Concat(0, parts...)
	if s.back != nil {
		y = y.TakeRows(s.back)
	}
	return a.Tap(a.Proj.ForwardWide(y, x.Dtype()), x)
}

// tapFirst passes the first of several spans through the hook: the reference computes
// attention for each span, and dumps record the first call.
func (a *visionAttention) tapFirst(q, k, v *mlx.Array) (*mlx.Array, *mlx.Array, *mlx.Array) {
	first := func(x *mlx.Array) *mlx.Array { return x.Slice(0, 0, 1) }
	q0, k0, v0 := a.TapQKV(nn.AttentionOptions{}, first(q), first(k), first(v))
	n := q.Dim(0)
	rest := func(x0, x *mlx.Array) *mlx.Array {
		if n == 1 {
			return x0
		}
		return mlx.Concat(0, x0, x.Slice(0, 1, n))
	}
	return rest(q0, q), rest(k0, k), rest(v0, v)
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
