// Package textenc holds the text encoders and their tokenizers, one file per
// transformers class.
package textenc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/nn"
)

// Qwen3Config is text_encoder/config.json of transformers' Qwen3Model, as
// version 4 (rope_theta) and version 5 (rope_parameters) write it.
type Qwen3Config struct {
	VocabSize         int      `json:"vocab_size" size:"1"`
	HiddenSize        int      `json:"hidden_size" size:"1"`
	IntermediateSize  int      `json:"intermediate_size" size:"1"`
	NumHiddenLayers   int      `json:"num_hidden_layers" layers:"1"`
	NumAttentionHeads int      `json:"num_attention_heads" size:"1"`
	NumKeyValueHeads  int      `json:"num_key_value_heads"`
	HeadDim           int      `json:"head_dim"`
	HiddenAct         string   `json:"hidden_act"`
	RMSNormEps        float64  `json:"rms_norm_eps" number:"nonnegative"`
	AttentionBias     bool     `json:"attention_bias"`
	UseSlidingWindow  bool     `json:"use_sliding_window"`
	RopeTheta         *float64 `json:"rope_theta"`
	// RopeParameters are those of transformers 5, and RopeScaling those of version 4.
	RopeParameters *ropeParameters `json:"rope_parameters"`
	RopeScaling    *ropeParameters `json:"rope_scaling"`
	LayerTypes     []string        `json:"layer_types"`
	// TieWordEmbeddings reports that the language model's head has the weights of the embeddings.
	TieWordEmbeddings bool `json:"tie_word_embeddings"`
}

// DefaultQwen3Config returns the values that transformers uses for fields that a
// config lacks.
func DefaultQwen3Config() Qwen3Config {
	return Qwen3Config{
		VocabSize: 151936, HiddenSize: 4096, IntermediateSize: 22016, NumHiddenLayers: 32,
		NumAttentionHeads: 32, NumKeyValueHeads: 32, HeadDim: 128, HiddenAct: "silu", RMSNormEps: 1e-6,
	}
}

// Validate returns an error if the model cannot be run with the config.
func (c *Qwen3Config) Validate() error {
	switch err := nn.CheckConfig(c); {
	case err != nil:
		return err
	case !(c.ropeTheta() > 0):
		return fmt.Errorf("rope_theta %g must be positive", c.ropeTheta())
	case c.NumKeyValueHeads < 1 || c.NumAttentionHeads%c.NumKeyValueHeads != 0:
		return fmt.Errorf("num_attention_heads %d must be a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	case c.HeadDim < 2 || c.HeadDim%2 != 0 || c.HeadDim > nn.MaxDim:
		return fmt.Errorf("head_dim %d: expected an even number, 2 to %d", c.HeadDim, nn.MaxDim)
	case c.HiddenAct != "silu":
		return fmt.Errorf("hidden_act %q, expected silu", c.HiddenAct)
	case c.AttentionBias:
		return errors.New("attention_bias true: expected false")
	case c.UseSlidingWindow:
		return errors.New("use_sliding_window true: expected false")
	case slices.ContainsFunc(c.LayerTypes, func(t string) bool { return t != "full_attention" }):
		return fmt.Errorf("layer_types %q, expected full_attention only", c.LayerTypes)
	}
	return c.ropeParameters().validate()
}

// ropeParameters returns the settings of the rotary embedding.
func (c *Qwen3Config) ropeParameters() *ropeParameters {
	return cmp.Or(c.RopeScaling, c.RopeParameters, &ropeParameters{})
}

// rope returns the table of positions.
func (c *Qwen3Config) rope(positions [][]int) nn.Rope {
	return c.ropeParameters().rope(positions, c.HeadDim, c.ropeTheta())
}

func (c *Qwen3Config) ropeTheta() float64 {
	switch {
	case c.RopeParameters != nil && c.RopeParameters.RopeTheta != nil:
		return *c.RopeParameters.RopeTheta
	case c.RopeTheta != nil:
		return *c.RopeTheta
	}
	return 10000
}

// Qwen3 is transformers' Qwen3Model, used as a text encoder that returns hidden states of
// some of its layers.
type Qwen3 struct {
	nn.Module    `in:"input_ids"`
	qwen3Decoder `w:"."`

	Config       Qwen3Config
	HiddenStates []int
	Dtype        mlx.Dtype // in which it computes

	scaled bool // of Ministral 3, whose queries grow with their positions
}

// LastBeforeNorm, as the number of a hidden state, stands for the output of the last layer
// before the final norm. Version 5 of transformers has the output of the norm instead.
const LastBeforeNorm = -1

// NewQwen3 declares the model of a validated config that returns some of transformers'
// hidden_states, at least one: 0 is the embeddings, i the output of layer i-1, and
// num_hidden_layers the output of the final norm; or [LastBeforeNorm]. Layers that these
// states do not need are neither loaded nor run.
func NewQwen3(c Qwen3Config, hiddenStates []int, dtype mlx.Dtype) *Qwen3 {
	return &Qwen3{qwen3Decoder: newQwen3Decoder(c, hiddenStates, newQwen3Layer), Config: c, HiddenStates: hiddenStates, Dtype: dtype}
}

// Unused returns patterns of the checkpoint's tensors that the hidden states do not need.
func (m *Qwen3) Unused() []string {
	return append([]string{"lm_head.weight"}, m.unused("", m.Config.NumHiddenLayers)...)
}

// Forward returns the hidden states of ids, concatenated on the last axis:
// [1, len(ids), hidden_size·len(HiddenStates)]. In float16 they are float32, as the residual
// stream.
func (m *Qwen3) Forward(ids []int32) *mlx.Array { return m.ForwardPadded(ids, len(ids)) }

// ForwardPadded is Forward with padding after the first valid ids, at least one. No token
// sees the padding. The rows of padding see all valid tokens.
func (m *Qwen3) ForwardPadded(ids []int32, valid int) *mlx.Array {
	if valid < 1 || valid > len(ids) {
		mlx.Throw(fmt.Errorf("%d valid ones of %d token ids for Qwen3, expected at least one", valid, len(ids)))
	}
	p := newPass(nil, 1, len(ids), m.Dtype)
	p.valid = valid
	out := besides(m.states(m.EmbedTokens.Forward(ids, m.Dtype), p), m.HiddenStates)
	if len(m.HiddenStates) == 1 && m.HiddenStates[0] == m.Config.NumHiddenLayers { // as transformers returns it
		out = m.Tap(out, mlx.FromInt32(ids, 1, len(ids)))
	}
	return out
}

// states returns hidden states of embeddings by their numbers.
func (m *Qwen3) states(x *mlx.Array, p *pass) map[int]*mlx.Array {
	m.begin(p)
	return m.run(x, nil, p)
}

func (m *Qwen3) begin(p *pass) {
	positions := p.positions(1)
	p.rope = m.Config.rope(positions).Batched(p.tokens)
	if m.scaled {
		p.queries = m.Config.ropeParameters().queryFactors(positions, p.tokens)
	}
}

// NewQwen3ForCausalLM declares the model with its head. Its hidden states are also those that
// [NewQwen3] would return.
func NewQwen3ForCausalLM(c Qwen3Config, hiddenStates []int, dtype mlx.Dtype) *CausalLM {
	m := NewQwen3(c, append([]int{c.NumHiddenLayers}, hiddenStates...), dtype)
	m.HiddenStates = hiddenStates
	return newCausalLM(m, c.TieWordEmbeddings, nil, dtype)
}

func (m *Qwen3) hidden(ids *mlx.Array, _ []VisionInput, p *pass) *mlx.Array {
	p.check(ids, m.EmbedTokens.Len())
	return m.Tap(m.states(m.EmbedTokens.Gather(ids, m.Dtype), p)[m.Config.NumHiddenLayers], ids)
}

// qwen3Decoder has the layers of Qwen3 and of Qwen3-VL's language model that some hidden
// states need.
type qwen3Decoder struct {
	EmbedTokens *nn.Embedding `w:"embed_tokens"`
	Layers      []*qwen3Layer `w:"layers"`
	Norm        *nn.RMSNorm   `w:"norm"` // nil if it is not needed

	needed []int // the numbers of the layers after which a hidden state is needed, ascending
	stages *nn.Stages
}

func (d *qwen3Decoder) decoder() *qwen3Decoder { return d }

// StageBlocks implements [nn.Staged].
func (d *qwen3Decoder) StageBlocks() [][]any { return nn.Blocks(d.Layers) }

// Stage implements [nn.Staged].
func (d *qwen3Decoder) Stage(s *nn.Stages) { d.stages = s }

// Staged returns what of a text encoder can be divided into stages, nil for one without.
func Staged(model any) nn.Staged {
	switch m := model.(type) {
	case *T5Encoder:
		return m.Encoder
	case network:
		return m.decoder()
	}
	return nil
}

// Sizes returns the numbers of layers and heads of a language model, and the widths of the stream and inside feed-forwards.
func Sizes(model any) (layers, heads, width, hidden int) {
	d := model.(network).decoder()
	for _, l := range d.Layers {
		if l.SelfAttn != nil {
			heads = l.SelfAttn.heads
		}
	}
	return len(d.Layers), heads, d.EmbedTokens.Dim(), d.Layers[0].MLP.GateProj.Out()
}

func newQwen3Decoder(c Qwen3Config, hiddenStates []int, layer func(Qwen3Config, int) *qwen3Layer) qwen3Decoder {
	d := qwen3Decoder{EmbedTokens: nn.NewEmbedding(c.VocabSize, c.HiddenSize)}
	for _, i := range hiddenStates {
		if i == LastBeforeNorm {
			i = c.NumHiddenLayers
		}
		d.needed = append(d.needed, i)
	}
	slices.Sort(d.needed)
	for i := range slices.Max(d.needed) {
		d.Layers = append(d.Layers, layer(c, i))
	}
	if slices.Contains(hiddenStates, c.NumHiddenLayers) {
		d.Norm = nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps)
	}
	return d
}

// unused returns patterns of the tensors after prefix that the hidden states do not need,
// of a checkpoint of all layers.
func (d *qwen3Decoder) unused(prefix string, all int) (unused []string) {
	if d.Norm == nil {
		unused = append(unused, prefix+"norm.weight")
	}
	for i := len(d.Layers); i < all; i++ {
		unused = append(unused, fmt.Sprintf("%slayers.%d.*", prefix, i))
	}
	return unused
}

// run returns the needed hidden states of embeddings x by their numbers. If enter is set, it
// changes what enters each layer or the final norm, given the number of layers before. Hidden
// states are those before enter, but LastBeforeNorm is what enters the norm.
func (d *qwen3Decoder) run(x *mlx.Array, enter func(layers int, x *mlx.Array) *mlx.Array, p *pass) map[int]*mlx.Array {
	if enter == nil {
		enter = func(_ int, x *mlx.Array) *mlx.Array { return x }
	}
	x = nn.WidenFP16(x)
	states := map[int]*mlx.Array{}
	done := 0
	for _, i := range d.needed {
		x = d.stages.Run(done, i, x, func(first, end int, x *mlx.Array) *mlx.Array {
			for at, l := range mlx.Layers(d.Layers[first:end], &x) {
				x = l.Forward(enter(first+at, x), p)
			}
			return x
		})
		states[i], done = x, i
	}
	states[LastBeforeNorm] = enter(done, x)
	if d.Norm != nil {
		states[done] = d.Norm.Forward(states[LastBeforeNorm])
	}
	return states
}

// besides concatenates some of the hidden states on the last axis.
func besides(states map[int]*mlx.Array, numbers []int) *mlx.Array {
	out := make([]*mlx.Array, len(numbers))
	for i, n := range numbers {
		out[i] = states[n]
	}
	if len(out) == 1 {
		return out[0]
	}
	return mlx.Concat(-1, out...)
}

// qwen3Layer is Qwen3DecoderLayer, or that of other models of its kind.
type qwen3Layer struct {
	nn.Module
	SelfAttn               *qwen3Attention `w:"self_attn"`
	LinearAttn             *gatedDeltaNet  `w:"linear_attn"` // or nil, as SelfAttn with it
	MLP                    *qwen3MLP       `w:"mlp"`
	InputLayerNorm         *nn.RMSNorm     `w:"input_layernorm"`
	PostAttentionLayerNorm *nn.RMSNorm     `w:"post_attention_layernorm"`
}

func newQwen3Layer(c Qwen3Config, index int) *qwen3Layer {
	heads, kv := c.NumAttentionHeads*c.HeadDim, c.NumKeyValueHeads*c.HeadDim
	a := &qwen3Attention{
		QProj: nn.NewLinear(c.HiddenSize, heads, false), KProj: nn.NewLinear(c.HiddenSize, kv, false),
		VProj: nn.NewLinear(c.HiddenSize, kv, false), OProj: nn.NewLinear(heads, c.HiddenSize, false),
		QNorm: nn.NewRMSNorm(c.HeadDim, c.RMSNormEps), KNorm: nn.NewRMSNorm(c.HeadDim, c.RMSNormEps),
		heads: c.NumAttentionHeads, kvHeads: c.NumKeyValueHeads, layer: index,
	}
	a.QKV = nn.NewStack(a.QProj, a.KProj, a.VProj)
	return &qwen3Layer{
		SelfAttn:               a,
		MLP:                    newQwen3MLP(c.HiddenSize, c.IntermediateSize, false),
		InputLayerNorm:         nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps),
		PostAttentionLayerNorm: nn.NewRMSNorm(c.HiddenSize, c.RMSNormEps),
	}
}

func (l *qwen3Layer) Forward(x *mlx.Array, p *pass) *mlx.Array {
	y := l.attend(l.InputLayerNorm.Forward(x).AsType(p.dtype), p)
	y, more := l.after(x, y, p.dtype)
	return l.Tap(y.Add(more), x)
}

// attend returns the output of the layer's attention.
func (l *qwen3Layer) attend(x *mlx.Array, p *pass) *mlx.Array {
	if l.LinearAttn != nil {
		return l.LinearAttn.Forward(x, p)
	}
	return l.SelfAttn.Forward(x, p)
}

// after returns two summands of the output of the layer, given its input and the output of its attention.
func (l *qwen3Layer) after(x, attention *mlx.Array, dtype mlx.Dtype) (*mlx.Array, *mlx.Array) {
	both := l.FusedAll("qwen3Layer.after", func() []*mlx.Array {
		sum, y := addThenNorm(l.PostAttentionLayerNorm, x, attention)
		return []*mlx.Array{sum, y}
	}, func() []*mlx.Array {
		sum := x.Add(attention)
		return []*mlx.Array{sum, l.PostAttentionLayerNorm.Forward(sum)}
	})
	return both[0], l.MLP.Forward(both[1].AsType(dtype))
}

// addThenNorm returns a sum and its norm. y may be nil, for 0. Hooks do not see it.
func addThenNorm(norm *nn.RMSNorm, x, y *mlx.Array) (sum, normed *mlx.Array) {
	switch {
	case y == nil:
		return x, norm.Forward(x)
	case norm.Offset != 0: // the factors would be rounded
		sum = x.Add(y)
		return sum, norm.Forward(sum)
	}
	return norm.Plain(x.Dtype(), nil, nil).AddThenApply(x, nil, y.AsType(x.Dtype()))
}

// qwen3Attention is Qwen3Attention, with grouped queries and a norm per head before the rotation, or
// Qwen2_5_VLAttention, without the norms.
type qwen3Attention struct {
	nn.Module `in:"hidden_states"`

	QProj *nn.Linear  `w:"q_proj"`
	KProj *nn.Linear  `w:"k_proj"`
	VProj *nn.Linear  `w:"v_proj"`
	OProj *nn.Linear  `w:"o_proj"`
	QNorm *nn.RMSNorm `w:"q_norm"` // may be nil
	KNorm *nn.RMSNorm `w:"k_norm"` // may be nil
	QKV   nn.Stack

	heads, kvHeads int
	gated          bool // q_proj also has a gate for the output of each head (Qwen3_5Attention)
	layer          int  // number in the cache
}

func (a *qwen3Attention) Forward(x *mlx.Array, p *pass) *mlx.Array {
	return a.Tap(a.attend(a.QKV.Forward(x), p), x)
}

// attend is Forward for the projections of x.
func (a *qwen3Attention) attend(qkv []mlx.Columns, p *pass) *mlx.Array {
	if y := a.attendProjected(qkv, p); y != nil {
		return a.OProj.ForwardWide(y, p.dtype)
	}
	in := a.project(qkv, p.rope)
	var y *mlx.Array
	if p.position != nil {
		y, p.cache.layers[a.layer][2] = p.tokenCache(a.layer).Attend(in.q, in.k, in.v)
	} else {
		y = a.Attend(p.attention(a.layer), in.q, in.k, in.v)
	}
	if y = nn.MergeHeads(y); in.gate != nil {
		y = y.Mul(in.gate.Reshape(y.Shape()...).Sigmoid())
	}
	return a.OProj.ForwardWide(y, p.dtype)
}

// attendProjected is the attention [B, 1, H·D] of a step, nil if there is no kernel that norms and rotates too.
func (a *qwen3Attention) attendProjected(qkv []mlx.Columns, p *pass) *mlx.Array {
	if p.position == nil || a.gated {
		return nil
	}
	table := mlx.RopeTable{Cos: p.rope.Cos, Sin: p.rope.Sin, Layout: mlx.RopeHalves}
	y, tail := p.tokenCache(a.layer).AttendProjected(a.plain(qkv), a.heads, table)
	if y != nil {
		p.cache.layers[a.layer][2] = tail
	}
	return y
}

// plain describes queries and keys for kernels.
func (a *qwen3Attention) plain(qkv []mlx.Columns) mlx.QK {
	qk, dtype := mlx.QK{Q: qkv[0], K: qkv[1]}, qkv[0].X.Dtype()
	if a.QNorm != nil {
		q, k := a.QNorm.Plain(dtype, nil, nil), a.KNorm.Plain(dtype, nil, nil)
		qk.NormQ, qk.NormK, qk.Eps = q.Weight, k.Weight, q.Eps
	}
	return qk
}

// A projected has rotated queries and keys, and values [B, H, L, D], and the gate of the output, which may
// be nil.
type projected struct{ q, k, v, gate *mlx.Array }

func (a *qwen3Attention) project(columns []mlx.Columns, rope nn.Rope) (in projected) {
	in.v = nn.Heads(columns[2].Array(), a.kvHeads)
	modules := func() []*mlx.Array {
		q, k := nn.SplitHeads(columns[0].Array(), a.heads), nn.SplitHeads(columns[1].Array(), a.kvHeads)
		if a.gated {
			halves := q.Split(2, -1)
			q, in.gate = halves[0], halves[1]
		}
		if a.QNorm != nil {
			q, k = a.QNorm.Forward(q), a.KNorm.Forward(k)
		}
		q, k = a.RotateQK(nn.AttentionOptions{Rotate: rope.HalfSplit}, q.Transpose(0, 2, 1, 3), k.Transpose(0, 2, 1, 3))
		return []*mlx.Array{q, k}
	}
	fused := func() []*mlx.Array {
		q, k := mlx.NormRope(mlx.QK{}, a.plain(columns), a.heads, mlx.RopeTable{Cos: rope.Cos, Sin: rope.Sin, Layout: mlx.RopeHalves})
		return []*mlx.Array{q.Transpose(0, 2, 1, 3), k.Transpose(0, 2, 1, 3)}
	}
	if a.gated { // the rotation is partial, and the norms' factors would be rounded
		fused = modules
	}
	qk := a.FusedAll("qwen3Attention.project", fused, modules)
	in.q, in.k = qk[0], qk[1]
	return in
}

// qwen3MLP is Qwen3MLP, Qwen2MLP or Qwen2_5_VLMLP: down(silu(gate x)·up x).
type qwen3MLP struct {
	nn.Module
	GateProj *nn.Linear `w:"gate_proj"`
	UpProj   *nn.Linear `w:"up_proj"`
	DownProj *nn.Linear `w:"down_proj"`
	ActFn    *nn.SiLU   `w:"act_fn"`
	GateUp   nn.Stack
}

func newQwen3MLP(dim, hidden int, bias bool) *qwen3MLP {
	m := &qwen3MLP{
		GateProj: nn.NewLinear(dim, hidden, bias), UpProj: nn.NewLinear(dim, hidden, bias),
		DownProj: nn.NewLinear(hidden, dim, bias), ActFn: &nn.SiLU{},
	}
	m.GateUp = nn.NewStack(m.GateProj, m.UpProj)
	return m
}

func (m *qwen3MLP) Forward(x *mlx.Array) *mlx.Array {
	in := m.GateUp.Forward(x)
	y := m.Fused("qwen3MLP.Forward", func() *mlx.Array { return nn.WideSwiGLU(nil, in[0], in[1]) }, func() *mlx.Array {
		return nn.WidenFP16(m.ActFn.Forward(in[0].Array())).Mul(nn.WidenFP16(in[1].Array()))
	})
	return m.Tap(m.DownProj.ForwardWide(y, x.Dtype()), x)
}
