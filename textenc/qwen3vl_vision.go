package textenc

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen3VLVisionConfig is vision_config of transformers' Qwen3VLConfig. Read from JSON, it has
// transformers' values for missing fields.
type Qwen3VLVisionConfig struct {
	visionConfig
	NumPositionEmbeddings  int   `json:"num_position_embeddings" size:"1"`
	DeepstackVisualIndexes []int `json:"deepstack_visual_indexes"`
}

// UnmarshalJSON replaces the config by the defaults and the fields of the JSON.
func (c *Qwen3VLVisionConfig) UnmarshalJSON(data []byte) error {
	type fields Qwen3VLVisionConfig
	own := fields{
		visionConfig: visionConfig{
			Depth: 27, HiddenSize: 1152, IntermediateSize: 4304, NumHeads: 16, HiddenAct: "gelu_pytorch_tanh",
			InChannels: channels, PatchSize: 16, SpatialMergeSize: 2, TemporalPatchSize: 2, OutHiddenSize: 3584,
		},
		NumPositionEmbeddings: 2304, DeepstackVisualIndexes: []int{8, 16, 24},
	}
	if err := json.Unmarshal(data, &own); err != nil {
		return err
	}
	*c = Qwen3VLVisionConfig(own)
	return nil
}

func (c *Qwen3VLVisionConfig) validate() error {
	if err := c.visionConfig.validate(c, "gelu_pytorch_tanh", c.rope()); err != nil {
		return err
	}
	if c.InChannels != channels {
		return fmt.Errorf("in_channels %d, expected %d", c.InChannels, channels)
	}
	layers := slices.Sorted(slices.Values(c.DeepstackVisualIndexes))
	if n := len(layers); n > 0 && (layers[0] < 0 || layers[n-1] >= c.Depth || len(slices.Compact(layers)) < n) {
		return fmt.Errorf("deepstack_visual_indexes %v: expected different numbers from 0 to %d", c.DeepstackVisualIndexes, c.Depth-1)
	}
	return nil
}

// rope returns the settings of the rotary embedding, with defaults for missing fields.
func (c *Qwen3VLVisionConfig) rope() qwenVLRope {
	return newQwenVLRope(nil, c.RopeParameters, nil, 10000)
}

// side returns the number of rows and columns of the grid of learned positions. A table with
// more positions is not used to its end.
func (c *Qwen3VLVisionConfig) side() int { return int(math.Sqrt(float64(c.NumPositionEmbeddings))) }

// qwen3VLVision is Qwen3VLVisionModel.
type qwen3VLVision struct {
	nn.Module           `in:"0 grid_thw" out:"pooler_output deepstack_features.*"`
	PatchEmbed          *visionPatchEmbed    `w:"patch_embed"`
	PosEmbed            *visionPosEmbed      `w:"pos_embed"`
	RotaryPosEmb        *rotaryEmbedding     `w:"rotary_pos_emb"`
	Blocks              []*visionBlock       `w:"blocks"`
	Merger              *qwen3VisionMerger   `w:"merger"`
	DeepstackMergerList []*qwen3VisionMerger `w:"deepstack_merger_list"`

	config Qwen3VLVisionConfig
}

func newQwen3VLVision(c Qwen3VLVisionConfig) *qwen3VLVision {
	m := &qwen3VLVision{
		PatchEmbed:   newVisionPatchEmbed(c.HiddenSize, c.patches(), true),
		PosEmbed:     &visionPosEmbed{Weight: nn.NewEmbedding(c.NumPositionEmbeddings, c.HiddenSize).Weight, side: c.side()},
		RotaryPosEmb: &rotaryEmbedding{}, Merger: newQwen3VisionMerger(c, false), config: c,
	}
	for range c.Depth {
		m.Blocks = append(m.Blocks, newQwen3VisionBlock(c))
	}
	for range c.DeepstackVisualIndexes {
		m.DeepstackMergerList = append(m.DeepstackMergerList, newQwen3VisionMerger(c, true))
	}
	return m
}

// Forward implements visionEncoder.
func (m *qwen3VLVision) Forward(images []VisionInput, dtype mlx.Dtype) (features *mlx.Array, deepstack []*mlx.Array) {
	c, pixels := m.config, pixelsOf(images)
	x := m.PatchEmbed.Forward(pixels, dtype)
	x = x.Add(m.PosEmbed.Forward(images, c.SpatialMergeSize, dtype).AsType(dtype))

	rope, positions := c.rotary(images, *c.rope().RopeTheta)
	if m.Observed() {
		rope = m.RotaryPosEmb.Forward(rope, mlx.Float32, 0, x, transposed(positions).T())
	}
	var lengths []int
	for _, in := range images {
		lengths = append(lengths, in.Height*in.Width)
	}
	byImage := newSpans(lengths, rope)

	x = nn.WidenFP16(x)
	done := 0
	for _, layer := range slices.Sorted(slices.Values(c.DeepstackVisualIndexes)) {
		for _, b := range mlx.Layers(m.Blocks[done:layer+1], &x) {
			x = b.Forward(x, byImage, dtype)
		}
		merger := m.DeepstackMergerList[slices.Index(c.DeepstackVisualIndexes, layer)]
		deepstack = append(deepstack, merger.Forward(x, dtype))
		done = layer + 1
	}
	for _, b := range mlx.Layers(m.Blocks[done:], &x) {
		x = b.Forward(x, byImage, dtype)
	}
	outputs := append([]*mlx.Array{x, m.Merger.Forward(x, dtype)}, deepstack...)
	outputs = m.TapAll(outputs, pixels, gridsOf(images)) // a hook's replacement of x has no effect
	return outputs[1], outputs[2:]
}

// visionPosEmbed is the torch.nn.Embedding of a square grid of learned positions, which is
// stretched to the size of each image: get_vision_interpolation_indices_and_weights.
type visionPosEmbed struct {
	nn.Module
	Weight nn.Param `w:"weight"`

	side int
}

// Forward returns the position embedding of every patch, float32 [n, D].
func (p *visionPosEmbed) Forward(images []VisionInput, merge int, dtype mlx.Dtype) *mlx.Array {
	var near []int32 // the four positions around each patch
	var weights []float32
	for _, in := range images {
		for _, at := range patchPositions([]VisionInput{in}, merge) {
			top, bottom, y := stretched(at[0], in.Height, p.side)
			left, right, x := stretched(at[1], in.Width, p.side)
			for _, row := range []int{top, bottom} {
				near = append(near, int32(row*p.side+left), int32(row*p.side+right))
			}
			weights = append(weights, (1-y)*(1-x), (1-y)*x, y*(1-x), y*x)
		}
	}
	n := len(near) / 4
	rows := p.Weight.TakeRows(near, dtype)
	rows = rows.Reshape(n, 4, rows.Dim(1))
	if p.Observed() {
		rows = p.Tap(rows, mlx.FromInt32(near, n, 4))
	}
	return rows.AsType(mlx.Float32).Mul(mlx.FromFloat32(weights, n, 4, 1)).Sum(1).Squeeze(1)
}

// stretched returns the two indices of an axis of a given side between which index i of an
// axis of n lies, and how far from the first, if the ends of both axes are the same.
func stretched(i, n, side int) (before, after int, fraction float32) {
	at := float32(i) * float32(side-1) / float32(max(n-1, 1))
	before = int(at)
	return before, min(before+1, side-1), at - float32(before)
}

func newQwen3VisionBlock(c Qwen3VLVisionConfig) *visionBlock {
	return &visionBlock{
		Norm1: nn.NewAffineLayerNorm(c.HiddenSize, visionEps), Norm2: nn.NewAffineLayerNorm(c.HiddenSize, visionEps),
		Attn: newVisionAttention(c.HiddenSize, c.NumHeads),
		MLP: &qwen3VisionMLP{
			FC1: nn.NewLinear(c.HiddenSize, c.IntermediateSize, true), FC2: nn.NewLinear(c.IntermediateSize, c.HiddenSize, true),
			ActFn: &nn.Activation{Func: (*mlx.Array).GELUTanh},
		},
	}
}

// qwen3VisionMLP is Qwen3VLVisionMLP.
type qwen3VisionMLP struct {
	nn.Module
	FC1   *nn.Linear     `w:"linear_fc1"`
	FC2   *nn.Linear     `w:"linear_fc2"`
	ActFn *nn.Activation `w:"act_fn"`
}

func (m *qwen3VisionMLP) Forward(x *mlx.Array) *mlx.Array {
	y := m.ActFn.Forward(m.FC1.ForwardWide(x, x.Dtype()))
	return m.Tap(m.FC2.ForwardWide(y, x.Dtype()), x)
}

// qwen3VisionMerger is Qwen3VLVisionPatchMerger: a norm of each patch, or of each merged patch
// if together is set, then an MLP of the merged patches.
type qwen3VisionMerger struct {
	nn.Module
	Norm  *nn.LayerNorm  `w:"norm"`
	FC1   *nn.Linear     `w:"linear_fc1"`
	ActFn *nn.Activation `w:"act_fn"`
	FC2   *nn.Linear     `w:"linear_fc2"`

	dim      int // of a merged patch
	together bool
}

func newQwen3VisionMerger(c Qwen3VLVisionConfig, together bool) *qwen3VisionMerger {
	dim, normed := c.HiddenSize*c.SpatialMergeSize*c.SpatialMergeSize, c.HiddenSize
	if together {
		normed = dim
	}
	return &qwen3VisionMerger{
		Norm: nn.NewAffineLayerNorm(normed, visionEps), FC1: nn.NewLinear(dim, dim, true),
		ActFn: &nn.Activation{Func: (*mlx.Array).GELU}, FC2: nn.NewLinear(dim, c.OutHiddenSize, true),
		dim: dim, together: together,
	}
}

func (m *qwen3VisionMerger) Forward(x *mlx.Array, dtype mlx.Dtype) *mlx.Array {
	normed := x
	if m.together {
		normed = x.Reshape(-1, m.dim)
	}
	y := m.Norm.Forward(normed).AsType(dtype).Reshape(-1, m.dim)
	return m.Tap(m.FC2.Forward(m.ActFn.Forward(m.FC1.Forward(y))), x)
}
