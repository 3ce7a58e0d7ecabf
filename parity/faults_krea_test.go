package parity

import (
	"slices"

	"github.com/gomflux/gomflux/mlx"
)

const kreaBlock = "transformer.transformer_blocks.0"

// kreaFaults are faults of Krea 2.
var kreaFaults = []fault{
	{name: "krea: a norm's weight without the one", dump: "krea-2-inner",
		edit: weight("transformer", "transformer_blocks.0.norm1.weight", func(_ []int, v []float32) {
			for i := range v {
				v[i]--
			}
		}), stage: "step 0", module: kreaBlock + ".norm1@0"},
	{name: "krea: eps of the norms", dump: "krea-2-inner", edit: config("transformer", "norm_eps", 1e-2), stage: "step 0",
		module: "transformer.text_fusion.layerwise_blocks.0@0"},
	{name: "krea: layers of the text in another order", dump: "krea-2-inner",
		edit:  weight("transformer", "text_fusion.projector.weight", func(_ []int, v []float32) { slices.Reverse(v) }),
		stage: "step 0", module: "transformer.text_fusion.projector@0"},
	{name: "krea: other layers of the text encoder", dump: "krea-2", edit: indexed("text_encoder_select_layers", []int{0, 1, 2}),
		stage: "text", module: "prompt.embeds"},
	{name: "krea: base of the rotary embedding", dump: "krea-2-inner", edit: config("transformer", "rope_theta", 10),
		stage: "step 0", module: "transformer.rotary_emb@0"},
	{name: "krea: scale and shift of a block swapped", dump: "krea-2-inner",
		edit: weight("transformer", "transformer_blocks.0.scale_shift_table", func(shape []int, v []float32) {
			for i := range shape[1] {
				v[i], v[shape[1]+i] = v[shape[1]+i], v[i]
			}
		}), stage: "step 0", module: kreaBlock + "@0"},
	{name: "krea: table of the last layer left out", dump: "krea-2-inner",
		edit: weight("transformer", "final_layer.scale_shift_table", func(_ []int, v []float32) { clear(v) }), stage: "step 0",
		module: "transformer.final_layer@0"},
	{name: "krea: gate of a feed-forward without its activation", dump: "krea-2-inner",
		bug: given(kreaBlock+".ff.down@0", func(ref lookup) *mlx.Array {
			return ref(kreaBlock + ".ff.gate@0").Mul(ref(kreaBlock + ".ff.up@0"))
		}), stage: "step 0", module: kreaBlock + ".ff@0"},
	{name: "krea: gate and up of a feed-forward swapped", dump: "krea-2-inner",
		bug: given(kreaBlock+".ff.down@0", func(ref lookup) *mlx.Array {
			return ref(kreaBlock + ".ff.up@0").SiLU().Mul(ref(kreaBlock + ".ff.gate@0"))
		}), stage: "step 0", module: kreaBlock + ".ff@0", hint: "gate and up swapped"},
	{name: "krea: attention without its gate", dump: "krea-2-inner",
		bug: given(kreaBlock+".attn.to_out.0@0", func(ref lookup) *mlx.Array {
			return ref(kreaBlock + ".attn.to_out.0@0:in.0").Div(ref(kreaBlock + ".attn.to_gate@0").Sigmoid())
		}), stage: "step 0", module: kreaBlock + ".attn@0"},
	{name: "krea: gate of the attention without its sigmoid", dump: "krea-2-inner",
		bug: given(kreaBlock+".attn.to_out.0@0", func(ref lookup) *mlx.Array {
			gate := ref(kreaBlock + ".attn.to_gate@0")
			return ref(kreaBlock + ".attn.to_out.0@0:in.0").Div(gate.Sigmoid()).Mul(gate)
		}), stage: "step 0", module: kreaBlock + ".attn@0"},
	{name: "krea: keys of grouped queries in turn", dump: "krea-2-inner",
		bug: onto(kreaBlock+".attn@0:k", func(x *mlx.Array) *mlx.Array {
			return mlx.Concat(2, x.Slice(2, 0, 1), x.Slice(2, 2, 3), x.Slice(2, 0, 1), x.Slice(2, 2, 3)) // of heads 0 0 1 1
		}), stage: "step 0", module: kreaBlock + ".attn@0"},
	{name: "krea: the text's positions count", dump: "krea-2-inner",
		bug: keyed("transformer@0", "position_ids", func(x *mlx.Array) *mlx.Array {
			p := x.Split(3, -1)
			n := mlx.Arange(0, float64(x.Dim(0)), 1, mlx.Float32).Reshape(-1, 1)
			return mlx.Concat(-1, p[0].Add(n), p[1], p[2])
		}), stage: "step 0", module: "transformer@0", hint: "positions"},
	{name: "krea: the distilled model's schedule by size", dump: "krea-2", edit: indexed("is_distilled", false),
		stage: "scheduler", module: "sigmas", hint: "schedule shift"},
	{name: "krea: guidance from the negative prompt's side", dump: "krea-2-raw",
		bug:   guided(func(p, n *mlx.Array) *mlx.Array { return n.Add(p.Sub(n).Times(2.5)) }),
		stage: "step 0", module: "noise_pred@0", hint: "guidance"},
	{name: "krea: no second pass", dump: "krea-2-raw", bug: guided(func(p, _ *mlx.Array) *mlx.Array { return p }),
		stage: "step 0", module: "noise_pred@0", hint: "guidance"},
}
