package textenc

import (
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// CLIPTextConfig is text_encoder/config.json of transformers' CLIPTextModel.
type CLIPTextConfig struct {
	VocabSize             int     `json:"vocab_size" size:"1"`
	HiddenSize            int     `json:"hidden_size" size:"1"`
	IntermediateSize      int     `json:"intermediate_size" size:"1"`
	NumHiddenLayers       int     `json:"num_hidden_layers" layers:"1"`
	NumAttentionHeads     int     `json:"num_attention_heads" size:"1"`
	MaxPositionEmbeddings int     `json:"max_position_embeddings" size:"1"`
	HiddenAct             string  `json:"hidden_act"`
	LayerNormEps          float64 `json:"layer_norm_eps" number:"nonnegative"`
	EOSTokenID            int     `json:"eos_token_id"`
}

// DefaultCLIPTextConfig returns the values that transformers uses for fields that
// a config lacks.
func DefaultCLIPTextConfig() CLIPTextConfig {
	return CLIPTextConfig{
		VocabSize: 49408, HiddenSize: 512, IntermediateSize: 2048, NumHiddenLayers: 12, NumAttentionHeads: 8,
		MaxPositionEmbeddings: 77, HiddenAct: "quick_gelu", LayerNormEps: 1e-5, EOSTokenID: 49407,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *CLIPTextConfig) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case c.HiddenSize%c.NumAttentionHeads != 0:
		return fmt.Errorf("hidden_size %d must be a multiple of num_attention_heads %d", c.HiddenSize, c.NumAttentionHeads)
	case clipActivations[c.HiddenAct] == nil:
		return fmt.Errorf("hidden_act %q, expected quick_gelu, gelu or gelu_new", c.HiddenAct)
	}
	return nil
}

var clipActivations = map[string]func(*mlx.Array) *mlx.Array{
	"quick_gelu": (*mlx.Array).QuickGELU,
	"gelu":       (*mlx.Array).GELU,
	"gelu_new":   (*mlx.Array).GELUTanh,
}

// CLIPText is transformers' CLIPTextModel. It returns the pooled output.
type CLIPText struct {
	nn.Module
	Embeddings     *clipEmbeddings `w:"embeddings"`
	Encoder        *clipEncoder    `w:"encoder"`
	FinalLayerNorm *nn.LayerNorm   `w:"final_layer_norm"`

	Config CLIPTextConfig
	Dtype  mlx.Dtype // in which it computes
}

// NewCLIPText declares the model of a validated config.
func NewCLIPText(c CLIPTextConfig, dtype mlx.Dtype) *CLIPText {
	m := &CLIPText{
		Embeddings: &clipEmbeddings{
			TokenEmbedding:    nn.NewEmbedding(c.VocabSize, c.HiddenSize),
			PositionEmbedding: nn.NewEmbedding(c.MaxPositionEmbeddings, c.HiddenSize),
		},
		Encoder:        &clipEncoder{},
		FinalLayerNorm: nn.NewAffineLayerNorm(c.HiddenSize, c.LayerNormEps),
		Config:         c, Dtype: dtype,
	}
	for range c.NumHiddenLayers {
		m.Encoder.Layers = append(m.Encoder.Layers, newCLIPLayer(c))
	}
	return m
}

// Unused returns patterns of tensors that a checkpoint may have and that are not needed: a
// table of 0, 1, 2, … that old versions of transformers saved, and the projection that
// other models apply to the pooled output.
func (m *CLIPText) Unused() []string {
	return []string{"embeddings.position_ids", "text_projection.weight"}
}

// Forward returns the pooled output [1, hidden_size] of at most max_position_embeddings
// ids: the row of their end token after the final norm. No token sees a later one, so the
// padding after the end token is not computed.
func (m *CLIPText) Forward(ids []int32) *mlx.Array {
	if n := len(ids); n == 0 || n > m.Config.MaxPositionEmbeddings {
		mlx.Throw(fmt.Errorf("%d token ids for CLIP, expected 1 to %d", n, m.Config.MaxPositionEmbeddings))
	}
	ids = ids[:m.end(ids)+1]
	x := m.FinalLayerNorm.Forward(m.Encoder.Forward(m.Embeddings.Forward(ids, m.Dtype)))
	x = m.Tap(x, mlx.FromInt32(ids, 1, len(ids)))
	return x.Slice(1, len(ids)-1, len(ids)).Squeeze(1)
}

// end returns the index of the first end token, or 0 without one. Older configs have the
// wrong end token 2; as in transformers, it stands for the first token with the highest
// id.
func (m *CLIPText) end(ids []int32) int {
	token := int32(m.Config.EOSTokenID)
	if token == 2 {
		token = slices.Max(ids)
	}
	return max(0, slices.Index(ids, token))
}

// clipEmbeddings is CLIPTextEmbeddings.
type clipEmbeddings struct {
	nn.Module `in:"input_ids"`

	TokenEmbedding    *nn.Embedding `w:"token_embedding"`
	PositionEmbedding *nn.Embedding `w:"position_embedding"`
}

func (e *clipEmbeddings) Forward(ids []int32, dtype mlx.Dtype) *mlx.Array {
	positions := make([]int32, len(ids))
	for i := range positions {
		positions[i] = int32(i)
	}
	y := e.TokenEmbedding.Forward(ids, dtype).Add(e.PositionEmbedding.Forward(positions, dtype))
	return e.Tap(y, mlx.FromInt32(ids, 1, len(ids)))
}

// clipEncoder is CLIPEncoder.
type clipEncoder struct {
	nn.Module `in:"inputs_embeds"`

	Layers []*clipLayer `w:"layers"`
}

func (e *clipEncoder) Forward(x *mlx.Array) *mlx.Array {
	return e.Tap(mlx.Chain(x, e.Layers, (*clipLayer).Forward), x)
}

// clipLayer is CLIPEncoderLayer.
type clipLayer struct {
	nn.Module
	SelfAttn   *clipAttention `w:"self_attn"`
	LayerNorm1 *nn.LayerNorm  `w:"layer_norm1"`
	MLP        *clipMLP       `w:"mlp"`
	LayerNorm2 *nn.LayerNorm  `w:"layer_norm2"`
}

func newCLIPLayer(c CLIPTextConfig) *clipLayer {
	d := c.HiddenSize
	return &clipLayer{
		SelfAttn: &clipAttention{
			KProj: nn.NewLinear(d, d, true), VProj: nn.NewLinear(d, d, true), QProj: nn.NewLinear(d, d, true),
			OutProj: nn.NewLinear(d, d, true), heads: c.NumAttentionHeads,
		},
		LayerNorm1: nn.NewAffineLayerNorm(d, c.LayerNormEps),
		MLP: &clipMLP{
			ActivationFn: &nn.Activation{Func: clipActivations[c.HiddenAct]},
			FC1:          nn.NewLinear(d, c.IntermediateSize, true), FC2: nn.NewLinear(c.IntermediateSize, d, true),
		},
		LayerNorm2: nn.NewAffineLayerNorm(d, c.LayerNormEps),
	}
}

func (l *clipLayer) Forward(x *mlx.Array) *mlx.Array {
	y := x.Add(l.SelfAttn.Forward(l.LayerNorm1.Forward(x)))
	y = y.Add(l.MLP.Forward(l.LayerNorm2.Forward(y)))
	return l.Tap(y, x)
}

// clipAttention is CLIPAttention.
type clipAttention struct {
	nn.Module `in:"hidden_states"`

	KProj   *nn.Linear `w:"k_proj"`
	VProj   *nn.Linear `w:"v_proj"`
	QProj   *nn.Linear `w:"q_proj"`
	OutProj *nn.Linear `w:"out_proj"`

	heads int
}

func (a *clipAttention) Forward(x *mlx.Array) *mlx.Array {
	q := nn.Heads(a.QProj.Forward(x), a.heads)
	k := nn.Heads(a.KProj.Forward(x), a.heads)
	v := nn.Heads(a.VProj.Forward(x), a.heads)
	y := a.Attend(nn.AttentionOptions{Causal: true}, q, k, v)
	return a.Tap(a.OutProj.Forward(nn.MergeHeads(y)), x)
}

// clipMLP is CLIPMLP.
type clipMLP struct {
	nn.Module
	ActivationFn *nn.Activation `w:"activation_fn"`
	FC1          *nn.Linear     `w:"fc1"`
	FC2          *nn.Linear     `w:"fc2"`
}

func (m *clipMLP) Forward(x *mlx.Array) *mlx.Array {
	return m.Tap(m.FC2.Forward(m.ActivationFn.Forward(m.FC1.Forward(x))), x)
}
