package textenc

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// This file has what the vision encoders of Qwen2.5-VL and Qwen3-VL share.

// channels is the number of channels of an image.
const channels = 3

// visionConfig has the fields of vision_config that both have.
type visionConfig struct {
	Depth             int         `json:"depth" layers:"1"`
	HiddenSize        int         `json:"hidden_size" size:"1"`
	IntermediateSize  int         `json:"intermediate_size" size:"1"`
	NumHeads          int         `json:"num_heads" size:"1"`
	HiddenAct         string      `json:"hidden_act"`
	InChannels        int         `json:"in_channels"`
	PatchSize         int         `json:"patch_size"`
	SpatialMergeSize  int         `json:"spatial_merge_size"`
	TemporalPatchSize int         `json:"temporal_patch_size"`
	OutHiddenSize     int         `json:"out_hidden_size" size:"1"`
	RopeParameters    *qwenVLRope `json:"rope_parameters"`
}

// validate returns an error for sizes in a whole config that no model has, or another activation than act. rope has the
// settings of the rotary embedding.
func (c *visionConfig) validate(whole any, act string, rope qwenVLRope) error {
	if err := c.patches().validate(); err != nil {
		return err
	}
	switch err := nn.CheckConfig(whole); {
	case err != nil:
		return err
	case c.HiddenSize%c.NumHeads != 0 || c.headDim()%4 != 0:
		return fmt.Errorf("hidden_size %d must be num_heads %d times a multiple of 4", c.HiddenSize, c.NumHeads)
	case c.HiddenAct != act:
		return fmt.Errorf("hidden_act %q, expected %s", c.HiddenAct, act)
	case rope.RopeType != "default" && rope.RopeType != "axial": // transformers treats default as axial
		return fmt.Errorf("rope_type %q, expected axial", rope.RopeType)
	case !(*rope.RopeTheta > 0):
		return fmt.Errorf("rope_theta %g must be positive", *rope.RopeTheta)
	}
	return nil
}

// validateVision returns an error for a config whose features have another width than the language model.
func validateVision(c interface{ validate() error }, out, hidden int) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("vision_config: %w", err)
	}
	if out != hidden {
		return fmt.Errorf("vision_config: out_hidden_size %d must be hidden_size %d", out, hidden)
	}
	return nil
}

func (c *visionConfig) patches() visionPatches {
	return visionPatches{c.PatchSize, c.SpatialMergeSize, c.TemporalPatchSize}
}

func (c *visionConfig) headDim() int { return c.HiddenSize / c.NumHeads }

// rotary returns the rotary embedding of all patches of images, and their positions.
func (c *visionConfig) rotary(images []VisionInput, theta float64) (rope nn.Rope, positions [][]int) {
	positions = patchPositions(images, c.SpatialMergeSize)
	return nn.NewRope(positions, []int{c.headDim() / 2, c.headDim() / 2}, theta), positions
}

// visionPatches describe how a vision encoder divides images: patches of size x size pixels,
// of which merge x merge become one feature, and which are repeated for each of several frames.
type visionPatches struct {
	size, merge, temporal int
}

// validate returns an error for sizes of patches that no image has.
func (p visionPatches) validate() error {
	const most = 1 << 8
	if min(p.size, p.merge, p.temporal) < 1 || max(p.size, p.merge, p.temporal) > most {
		return fmt.Errorf("patch size %d, merge size %d and temporal patch size %d must be from 1 to %d", p.size, p.merge, p.temporal, most)
	}
	return nil
}

// check returns an error for images that the vision encoder cannot take.
func (p visionPatches) check(images []VisionInput) error {
	row := channels * p.temporal * p.size * p.size
	for _, in := range images {
		switch {
		case in.Height < 1 || in.Width < 1 || in.Height%p.merge != 0 || in.Width%p.merge != 0:
			return fmt.Errorf("an image of %dx%d patches, expected multiples of %d", in.Width, in.Height, p.merge)
		case len(in.Pixels) != in.Height*in.Width*row:
			return fmt.Errorf("%d values for an image of %dx%d patches, expected %d for each", len(in.Pixels), in.Width, in.Height, row)
		}
	}
	return nil
}

// tokens returns the number of features of an image.
func (p visionPatches) tokens(in VisionInput) int { return in.Height * in.Width / (p.merge * p.merge) }

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

// visionEps is the epsilon of all norms of the vision encoder. It is in no config.
const visionEps = 1e-6

// visionPatchEmbed is Qwen2_5_VisionPatchEmbed or Qwen3VLVisionPatchEmbed.
type visionPatchEmbed struct {
	nn.Module
	Proj *patchConv `w:"proj"`
}

func newVisionPatchEmbed(dim int, p visionPatches, bias bool) *visionPatchEmbed {
	proj := &patchConv{Weight: nn.NewParam(dim, channels, p.temporal, p.size, p.size)}
	if bias {
		proj.Bias = nn.NewParam(dim)
	}
	return &visionPatchEmbed{Proj: proj}
}

func (p *visionPatchEmbed) Forward(pixels *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	return p.Tap(p.Proj.Forward(pixels.AsType(dtype)), pixels)
}

// patchConv is a torch.nn.Conv3d whose kernel covers a whole patch: weight
// [dim, channels, frames, size, size], applied to [n, row] as a matrix.
type patchConv struct {
	nn.Module
	Weight nn.Param `w:"weight"`
	Bias   nn.Param `w:"bias"` // may be absent
}

func (c *patchConv) Forward(x *mlx.Array) *mlx.Array {
	s := c.Weight.Shape()
	y := x.Matmul(c.Weight.As(x.Dtype()).Reshape(s[0], -1).T())
	if c.Bias.Array != nil {
		y = y.Add(c.Bias.As(x.Dtype()))
	}
	if !c.Observed() {
		return y
	}
	y = c.Tap(y.Reshape(-1, s[0], 1, 1, 1), x.Reshape(-1, s[1], s[2], s[3], s[4]))
	return y.Reshape(-1, s[0])
}

// visionBlock is Qwen2_5_VLVisionBlock or Qwen3VLVisionBlock.
type visionBlock struct {
	nn.Module
	Norm1 nn.Layer         `w:"norm1"`
	Norm2 nn.Layer         `w:"norm2"`
	Attn  *visionAttention `w:"attn"`
	MLP   nn.Layer         `w:"mlp"`

	full bool // of Qwen2.5-VL: attention over whole images, not windows
}

func (b *visionBlock) Forward(x *mlx.Array, s *spans, dtype mlx.Dtype) *mlx.Array {
	y := x.Add(b.Attn.Forward(b.Norm1.Forward(x).AsType(dtype), s))
	y = y.Add(b.MLP.Forward(b.Norm2.Forward(y).AsType(dtype)))
	return b.Tap(y, x)
}

// visionAttention is Qwen2_5_VLVisionAttention or Qwen3VLVisionAttention.
type visionAttention struct {
	nn.Module
	QKV  *nn.Linear `w:"qkv"`
	Proj *nn.Linear `w:"proj"`

	heads int
}

func newVisionAttention(dim, heads int) *visionAttention {
	return &visionAttention{QKV: nn.NewLinear(dim, 3*dim, true), Proj: nn.NewLinear(dim, dim, true), heads: heads}
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

// inverse returns the inverse of a permutation.
func inverse(p []int32) []int32 {
	out := make([]int32, len(p))
	for i, v := range p {
		out[v] = int32(i)
	}
	return out
}
