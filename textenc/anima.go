package textenc

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// AnimaConfig is text_conditioner/config.json of diffusers' AnimaTextConditioner.
type AnimaConfig struct {
	SourceDim         int     `json:"source_dim" size:"1"`
	TargetDim         int     `json:"target_dim" size:"1"`
	ModelDim          int     `json:"model_dim" size:"1"`
	NumLayers         int     `json:"num_layers" layers:"1"`
	NumAttentionHeads int     `json:"num_attention_heads" size:"1"`
	MLPRatio          float64 `json:"mlp_ratio"`
	TargetVocabSize   int     `json:"target_vocab_size" size:"1"`
	UseSelfAttention  bool    `json:"use_self_attention"`
	UseLayerNorm      bool    `json:"use_layer_norm"`
	MinSequenceLength int     `json:"min_sequence_length" size:"0"`
}

// DefaultAnimaConfig returns the values that diffusers uses for fields that a config lacks: those of the
// published models.
func DefaultAnimaConfig() AnimaConfig {
	return AnimaConfig{
		SourceDim: 1024, TargetDim: 1024, ModelDim: 1024, NumLayers: 6, NumAttentionHeads: 16, MLPRatio: 4,
		TargetVocabSize: 32128, UseSelfAttention: true, MinSequenceLength: 512,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *AnimaConfig) Validate() error {
	hidden := c.MLPRatio * float64(c.ModelDim)
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.ModelDim%(2*c.NumAttentionHeads) != 0:
		return fmt.Errorf("model_dim %d: expected an even number of features for each of num_attention_heads %d", c.ModelDim,
			c.NumAttentionHeads)
	case !(hidden >= 1 && hidden <= nn.MaxDim):
		return fmt.Errorf("mlp_ratio %g: expected a width of 1 to %d", c.MLPRatio, nn.MaxDim)
	case !c.UseSelfAttention:
		return errors.New("use_self_attention false: expected true")
	case c.UseLayerNorm:
		return errors.New("use_layer_norm true: expected false")
	}
	return nil
}

// AnimaTextConditioner is diffusers' class of this name (ComfyUI's LLM adapter): embeddings of T5's
// tokens that attend to Qwen3's hidden states of the same prompt.
type AnimaTextConditioner struct {
	nn.Module `in:"source_hidden_states target_input_ids"`
	Embed     *nn.Embedding `w:"embed"`
	InProj    nn.Layer      `w:"in_proj"`
	Blocks    []*animaBlock `w:"blocks"`
	OutProj   *nn.Linear    `w:"out_proj"`
	Norm      *nn.RMSNorm   `w:"norm"`

	Config AnimaConfig
	Dtype  mlx.Dtype // in which it computes
}

// NewAnimaTextConditioner declares the model of a validated config. For float16 it computes in float32.
func NewAnimaTextConditioner(c AnimaConfig, dtype mlx.Dtype) *AnimaTextConditioner {
	if dtype == mlx.Float16 {
		dtype = mlx.Float32
	}
	m := &AnimaTextConditioner{
		Embed: nn.NewEmbedding(c.TargetVocabSize, c.TargetDim), InProj: &identity{},
		OutProj: nn.NewLinear(c.ModelDim, c.TargetDim, true), Norm: nn.NewRMSNorm(c.TargetDim, 1e-6), Config: c, Dtype: dtype,
	}
	if c.ModelDim != c.TargetDim {
		m.InProj = nn.NewLinear(c.TargetDim, c.ModelDim, true)
	}
	norm := func() *nn.RMSNorm { return nn.NewRMSNorm(c.ModelDim, 1e-6) }
	hidden := int(c.MLPRatio * float64(c.ModelDim))
	for range c.NumLayers {
		m.Blocks = append(m.Blocks, &animaBlock{
			NormSelfAttn: norm(), SelfAttn: newAnimaAttention(c, c.ModelDim),
			NormCrossAttn: norm(), CrossAttn: newAnimaAttention(c, c.SourceDim),
			NormMLP: norm(), MLP: nn.NewSequential(nn.NewLinear(c.ModelDim, hidden, true),
				&nn.Activation{Func: (*mlx.Array).GELU}, nn.NewLinear(hidden, c.ModelDim, true)),
		})
	}
	return m
}

// Rows returns the number of rows of Forward for so many ids.
func (m *AnimaTextConditioner) Rows(ids int) int { return max(ids, m.Config.MinSequenceLength) }

// Forward returns the embeddings [1, n, target_dim] of T5's ids for Qwen3's hidden states source
// [1, S, source_dim]. The rows after the ids, of which there are min_sequence_length at least, are zeros.
func (m *AnimaTextConditioner) Forward(source *mlx.Array, ids []int32) *mlx.Array {
	if len(ids) == 0 {
		mlx.Throw(errors.New("no token ids for the text conditioner"))
	}
	source = source.AsType(m.Dtype)
	x := m.InProj.Forward(m.Embed.Forward(ids, m.Dtype))
	target, from := m.rope(len(ids)), m.rope(source.Dim(1))
	for _, b := range mlx.Layers(m.Blocks, &x) {
		x = b.Forward(x, source, target, from)
	}
	x = m.Norm.Forward(m.OutProj.Forward(x))
	if more := m.Rows(len(ids)) - len(ids); more > 0 {
		x = mlx.Concat(1, x, mlx.Zeros(x.Dtype(), 1, more, m.Config.TargetDim))
	}
	return m.Tap(x, source, mlx.FromInt32(ids, 1, len(ids)))
}

// rope returns the table of n positions.
func (m *AnimaTextConditioner) rope(n int) nn.Rope {
	positions := make([][]int, n)
	for i := range positions {
		positions[i] = []int{i}
	}
	return nn.NewQwenImageRope(positions, []int{m.Config.ModelDim / m.Config.NumAttentionHeads}, 10000)
}

// identity is torch.nn.Identity.
type identity struct{ nn.Module }

func (i *identity) Forward(x *mlx.Array) *mlx.Array { return i.Tap(x, x) }

// animaBlock is AnimaTextConditionerBlock.
type animaBlock struct {
	nn.Module     `in:"0 1"`
	NormSelfAttn  *nn.RMSNorm     `w:"norm_self_attn"`
	SelfAttn      *animaAttention `w:"self_attn"`
	NormCrossAttn *nn.RMSNorm     `w:"norm_cross_attn"`
	CrossAttn     *animaAttention `w:"cross_attn"`
	NormMLP       *nn.RMSNorm     `w:"norm_mlp"`
	MLP           *nn.Sequential  `w:"mlp"`
}

func (b *animaBlock) Forward(x, source *mlx.Array, target, from nn.Rope) *mlx.Array {
	y := x.Add(b.SelfAttn.Forward(b.NormSelfAttn.Forward(x), nil, target, target))
	y = y.Add(b.CrossAttn.Forward(b.NormCrossAttn.Forward(y), source, target, from))
	y = y.Add(b.MLP.Forward(b.NormMLP.Forward(y)))
	return b.Tap(y, x, source)
}

// animaAttention is AnimaTextConditionerAttention.
type animaAttention struct {
	nn.Module `in:"0 encoder_hidden_states"`
	QProj     *nn.Linear  `w:"q_proj"`
	QNorm     *nn.RMSNorm `w:"q_norm"`
	KProj     *nn.Linear  `w:"k_proj"`
	KNorm     *nn.RMSNorm `w:"k_norm"`
	VProj     *nn.Linear  `w:"v_proj"`
	OProj     *nn.Linear  `w:"o_proj"`

	heads int
}

func newAnimaAttention(c AnimaConfig, context int) *animaAttention {
	dim, head := c.ModelDim, c.ModelDim/c.NumAttentionHeads
	return &animaAttention{
		QProj: nn.NewLinear(dim, dim, false), QNorm: nn.NewRMSNorm(head, 1e-6),
		KProj: nn.NewLinear(context, dim, false), KNorm: nn.NewRMSNorm(head, 1e-6),
		VProj: nn.NewLinear(context, dim, false), OProj: nn.NewLinear(dim, dim, false), heads: c.NumAttentionHeads,
	}
}

// Forward takes x [1, L, dim] and source [1, S, context], nil for attention to x itself.
func (a *animaAttention) Forward(x, source *mlx.Array, target, from nn.Rope) *mlx.Array {
	context := cmp.Or(source, x)
	q := a.QNorm.Forward(nn.SplitHeads(a.QProj.Forward(x), a.heads)).Transpose(0, 2, 1, 3)
	k := a.KNorm.Forward(nn.SplitHeads(a.KProj.Forward(context), a.heads)).Transpose(0, 2, 1, 3)
	o := nn.AttentionOptions{LengthFirst: true, Rotate: target.HalfSplit, RotateK: from.HalfSplit}
	y := a.OProj.Forward(nn.MergeHeads(a.Attend(o, q, k, nn.Heads(a.VProj.Forward(context), a.heads))))
	return a.Tap(y, x, source)
}
