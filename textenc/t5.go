package textenc

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// T5Config is text_encoder_2/config.json of transformers' T5EncoderModel.
type T5Config struct {
	VocabSize                    int     `json:"vocab_size" size:"1"`
	DModel                       int     `json:"d_model" size:"1"`
	DKV                          int     `json:"d_kv" size:"1"`
	DFF                          int     `json:"d_ff" size:"1"`
	NumLayers                    int     `json:"num_layers" layers:"1"`
	NumHeads                     int     `json:"num_heads" size:"1"`
	RelativeAttentionNumBuckets  int     `json:"relative_attention_num_buckets" size:"4"`
	RelativeAttentionMaxDistance int     `json:"relative_attention_max_distance" size:"1"`
	LayerNormEpsilon             float64 `json:"layer_norm_epsilon" number:"nonnegative"`
	FeedForwardProj              string  `json:"feed_forward_proj"`
	DenseActFn                   string  `json:"dense_act_fn"` // default: follows from feed_forward_proj
	IsGatedAct                   *bool   `json:"is_gated_act"` // likewise
	IsDecoder                    bool    `json:"is_decoder"`
}

// DefaultT5Config returns the values that transformers uses for fields that a
// config lacks.
func DefaultT5Config() T5Config {
	return T5Config{
		VocabSize: 32128, DModel: 512, DKV: 64, DFF: 2048, NumLayers: 6, NumHeads: 8,
		RelativeAttentionNumBuckets: 32, RelativeAttentionMaxDistance: 128, LayerNormEpsilon: 1e-6, FeedForwardProj: "relu",
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *T5Config) Validate() error {
	gated, act := c.gated(), "relu"
	if gated {
		act = "gelu_new"
	}
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.RelativeAttentionMaxDistance <= c.RelativeAttentionNumBuckets/4:
		return fmt.Errorf("relative_attention_max_distance %d must be above a quarter of relative_attention_num_buckets %d",
			c.RelativeAttentionMaxDistance, c.RelativeAttentionNumBuckets)
	case !gated && c.FeedForwardProj != "relu":
		return fmt.Errorf("feed_forward_proj %q, expected gated-gelu or relu", c.FeedForwardProj)
	case c.DenseActFn != "" && c.DenseActFn != act:
		return fmt.Errorf("dense_act_fn %q, expected %s with feed_forward_proj %s", c.DenseActFn, act, c.FeedForwardProj)
	case c.IsGatedAct != nil && *c.IsGatedAct != gated:
		return fmt.Errorf("is_gated_act %v, expected %v with feed_forward_proj %s", *c.IsGatedAct, gated, c.FeedForwardProj)
	case c.IsDecoder:
		return errors.New("is_decoder true")
	}
	return nil
}

func (c *T5Config) gated() bool { return c.FeedForwardProj == "gated-gelu" }

// T5Encoder is transformers' T5EncoderModel.
type T5Encoder struct {
	nn.Module
	Encoder *t5Stack `w:"encoder"`

	Config T5Config
	Dtype  mlx.Dtype // in which it computes
}

// NewT5Encoder declares the model of a validated config. For float16 it computes in
// float32, since the activations of the large models overflow float16. There transformers
// keeps the last matrix of every feed-forward in float32 and clamps the sums. In bfloat16
// neither transformers nor this model does so.
func NewT5Encoder(c T5Config, dtype mlx.Dtype) *T5Encoder {
	if dtype == mlx.Float16 {
		dtype = mlx.Float32
	}
	stack := &t5Stack{EmbedTokens: nn.NewEmbedding(c.VocabSize, c.DModel), FinalLayerNorm: nn.NewRMSNorm(c.DModel, c.LayerNormEpsilon)}
	stack.EmbedTokens.Weight = stack.EmbedTokens.Weight.Or("shared.weight") // its name in checkpoints
	for range c.NumLayers {
		stack.Block = append(stack.Block, newT5Block(c))
	}
	stack.Block[0].SelfAttention.SelfAttention.RelativeAttentionBias = &t5Bias{
		Weight:  nn.NewEmbedding(c.RelativeAttentionNumBuckets, c.NumHeads).Weight,
		buckets: c.RelativeAttentionNumBuckets, distance: c.RelativeAttentionMaxDistance,
	}
	return &T5Encoder{Encoder: stack, Config: c, Dtype: dtype}
}

// Unused returns patterns of tensors that a checkpoint may have and that are not needed:
// the embeddings under their second name, and the decoder.
func (m *T5Encoder) Unused() []string {
	return []string{"shared.weight", "decoder.*", "lm_head.weight"}
}

// Forward returns the last hidden states [1, len(ids), d_model] after the final norm.
// Every token sees all others, so ids must have the same padding as in the reference.
func (m *T5Encoder) Forward(ids []int32) *mlx.Array {
	if len(ids) == 0 {
		mlx.Throw(errors.New("no token ids for T5"))
	}
	return m.Tap(m.Encoder.Forward(ids, m.Dtype), mlx.FromInt32(ids, 1, len(ids)))
}

// t5Stack is T5Stack as an encoder.
type t5Stack struct {
	nn.Module      `in:"input_ids"`
	EmbedTokens    *nn.Embedding `w:"embed_tokens"`
	Block          []*t5Block    `w:"block"`
	FinalLayerNorm *nn.RMSNorm   `w:"final_layer_norm"`

	stages *nn.Stages
}

// StageBlocks implements [nn.Staged]. All processes have the bias of the first block, which is that of all.
func (s *t5Stack) StageBlocks() (blocks [][]any) {
	for _, b := range s.Block {
		a := b.SelfAttention.SelfAttention
		blocks = append(blocks, []any{a.Q, a.K, a.V, a.O, b.SelfAttention.LayerNorm, b.FF})
	}
	return blocks
}

// Stage implements [nn.Staged].
func (s *t5Stack) Stage(stages *nn.Stages) { s.stages = stages }

func (s *t5Stack) Forward(ids []int32, dtype mlx.Dtype) *mlx.Array {
	x := s.EmbedTokens.Forward(ids, dtype)
	bias := s.Block[0].SelfAttention.SelfAttention.RelativeAttentionBias.Forward(len(ids), dtype)
	x = s.stages.Run(0, len(s.Block), x, func(first, end int, x *mlx.Array) *mlx.Array {
		for _, b := range mlx.Layers(s.Block[first:end], &x) {
			x = b.Forward(x, bias)
		}
		return x
	})
	return s.Tap(s.FinalLayerNorm.Forward(x), mlx.FromInt32(ids, 1, len(ids)))
}

// t5Block is T5Block in an encoder.
type t5Block struct {
	nn.Module     `in:"0 2"`
	SelfAttention *t5LayerSelfAttention `w:"layer.0"`
	FF            *t5LayerFF            `w:"layer.1"`
}

func newT5Block(c T5Config) *t5Block {
	inner := c.NumHeads * c.DKV
	in := func() *nn.Linear { return nn.NewLinear(c.DModel, c.DFF, false) }
	dense := &t5Dense{WO: nn.NewLinear(c.DFF, c.DModel, false), Act: &nn.Activation{Func: (*mlx.Array).GELUTanh}}
	if c.gated() {
		dense.WI0, dense.WI1 = in(), in()
	} else {
		dense.WI = in()
		dense.Act.Func = func(x *mlx.Array) *mlx.Array { return x.Maximum(mlx.Scalar(0, x.Dtype())) }
	}
	return &t5Block{
		SelfAttention: &t5LayerSelfAttention{
			SelfAttention: &t5Attention{
				Q: nn.NewLinear(c.DModel, inner, false), K: nn.NewLinear(c.DModel, inner, false), V: nn.NewLinear(c.DModel, inner, false),
				O: nn.NewLinear(inner, c.DModel, false), heads: c.NumHeads,
			},
			LayerNorm: nn.NewRMSNorm(c.DModel, c.LayerNormEpsilon),
		},
		FF: &t5LayerFF{DenseReluDense: dense, LayerNorm: nn.NewRMSNorm(c.DModel, c.LayerNormEpsilon)},
	}
}

func (b *t5Block) Forward(x, bias *mlx.Array) *mlx.Array {
	return b.Tap(b.FF.Forward(b.SelfAttention.Forward(x, bias)), x, bias)
}

// t5LayerSelfAttention is T5LayerSelfAttention.
type t5LayerSelfAttention struct {
	nn.Module     `in:"0 position_bias"`
	SelfAttention *t5Attention `w:"SelfAttention"`
	LayerNorm     *nn.RMSNorm  `w:"layer_norm"`
}

func (l *t5LayerSelfAttention) Forward(x, bias *mlx.Array) *mlx.Array {
	return l.Tap(x.Add(l.SelfAttention.Forward(l.LayerNorm.Forward(x), bias)), x, bias)
}

// t5Attention is T5Attention: its scores are not scaled and have a bias that depends on
// the distance of the tokens.
type t5Attention struct {
	nn.Module             `in:"0 position_bias"`
	Q                     *nn.Linear `w:"q"`
	K                     *nn.Linear `w:"k"`
	V                     *nn.Linear `w:"v"`
	O                     *nn.Linear `w:"o"`
	RelativeAttentionBias *t5Bias    `w:"relative_attention_bias"` // in the first block only, used by all

	heads int
}

func (a *t5Attention) Forward(x, bias *mlx.Array) *mlx.Array {
	q := nn.Heads(a.Q.Forward(x), a.heads)
	k := nn.Heads(a.K.Forward(x), a.heads)
	v := nn.Heads(a.V.Forward(x), a.heads)
	y := a.Attend(nn.AttentionOptions{Scale: 1, Mask: bias}, q, k, v)
	return a.Tap(a.O.Forward(nn.MergeHeads(y)), x, bias)
}

// t5Bias is the embedding of T5Attention's relative positions, with a weight
// [buckets, heads].
type t5Bias struct {
	nn.Module
	Weight nn.Param `w:"weight"`

	buckets, distance int
}

// Forward returns the bias [1, heads, n, n] of n tokens in dtype.
func (b *t5Bias) Forward(n int, dtype mlx.Dtype) *mlx.Array {
	table := make([]int32, 2*n-1)
	for i := range table {
		table[i] = relativeBucket(i-n+1, b.buckets, b.distance)
	}
	ids := make([]int32, 0, n*n)
	for query := range n {
		ids = append(ids, table[n-1-query:2*n-1-query]...)
	}
	y := b.Tap(b.Weight.TakeRows(ids, dtype).Reshape(n, n, -1), mlx.FromInt32(ids, n, n))
	return y.Transpose(2, 0, 1).ExpandDims(0)
}

// relativeBucket returns the bucket of a key at the given position relative to its query.
// Half of the buckets are for keys before the query. In each half, the first half of the
// buckets have one position each, and the others cover the positions up to distance, evenly
// in the logarithm. It computes in float32, to have the same borders as the reference.
func relativeBucket(relative, buckets, distance int) int32 {
	buckets /= 2
	first := 0
	if relative > 0 {
		first = buckets
	}
	n := max(relative, -relative)
	exact := buckets / 2
	if n < exact {
		return int32(first + n)
	}
	log := float32(math.Log(float64(float32(n) / float32(exact))))
	log /= float32(math.Log(float64(distance) / float64(exact)))
	return int32(first + min(exact+int(log*float32(buckets-exact)), buckets-1))
}

// t5LayerFF is T5LayerFF.
type t5LayerFF struct {
	nn.Module
	DenseReluDense *t5Dense    `w:"DenseReluDense"`
	LayerNorm      *nn.RMSNorm `w:"layer_norm"`
}

func (l *t5LayerFF) Forward(x *mlx.Array) *mlx.Array {
	return l.Tap(x.Add(l.DenseReluDense.Forward(l.LayerNorm.Forward(x))), x)
}

// t5Dense is T5DenseGatedActDense, wo(act(wi_0 x)·wi_1 x), or T5DenseActDense of the first T5, wo(act(wi x)).
type t5Dense struct {
	nn.Module
	WI  *nn.Linear     `w:"wi"`
	WI0 *nn.Linear     `w:"wi_0"`
	WI1 *nn.Linear     `w:"wi_1"`
	WO  *nn.Linear     `w:"wo"`
	Act *nn.Activation `w:"act"`
}

func (d *t5Dense) Forward(x *mlx.Array) *mlx.Array {
	y := d.Act.Forward(cmp.Or(d.WI0, d.WI).Forward(x))
	if d.WI1 != nil {
		y = y.Mul(d.WI1.Forward(x))
	}
	return d.Tap(d.WO.Forward(y), x)
}
