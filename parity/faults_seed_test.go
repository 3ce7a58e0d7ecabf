package parity

import (
	"math"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

const towerMLP = tower + ".mlp"

// garbage is what MLX may return for an index out of bounds.
const garbage = math.SmallestNonzeroFloat32

// replaceAt replaces one value of a vector.
func replaceAt(x *mlx.Array, i int, v float32) *mlx.Array {
	values := x.Floats()
	values[i] = v
	return mlx.FromFloat32(values, x.Shape()...)
}

// flipped reverses an axis.
func flipped(x *mlx.Array, axis int) *mlx.Array {
	var parts []*mlx.Array
	for i := x.Dim(axis) - 1; i >= 0; i-- {
		parts = append(parts, x.Slice(axis, i, i+1))
	}
	return mlx.Concat(axis, parts...)
}

// seedFaults are mistakes that a port of Qwen-Image to MLX has had, and those of the others that
// only they explain.
var seedFaults = []fault{
	{name: "port: the vision tower's MLP is fc1, GELU, fc2", dump: "qwen-vision",
		bug:   given(towerMLP+".down_proj", func(ref lookup) *mlx.Array { return ref(towerMLP + ".gate_proj").GELU() }),
		stage: "text", module: towerMLP, hint: "plain MLP"},
	{name: "port: the vision tower's MLP is of up_proj alone", dump: "qwen-vision",
		bug:   given(towerMLP+".down_proj", func(ref lookup) *mlx.Array { return ref(towerMLP + ".up_proj").GELU() }),
		stage: "text", module: towerMLP, hint: "plain MLP"},
	{name: "port: the vision tower's norm is a LayerNorm", dump: "qwen-vision",
		bug: on(tower+".norm2", func(_ *replay, tap hooks.Tap) *mlx.Array {
			x := tap.Inputs[0].Array
			return x.LayerNorm(nil, nil, 1e-6).Mul(tap.Output.Div(x.RMSNorm(nil, 1e-6)).Slice(0, 0, 1))
		}), stage: "text", module: tower + ".norm2", hint: "norm kind"},
	{name: "port: patches of the vision tower with channels last", dump: "qwen-vision",
		bug: given(visual+".patch_embed.proj", func(ref lookup) *mlx.Array {
			x := ref(visual + ".patch_embed.proj:in.0") // [patches, 3, 2, 4, 4]
			return x.Reshape(x.Dim(0), 2, 4, 4, 3).Transpose(0, 4, 1, 2, 3)
		}), stage: "text", module: visual + ".patch_embed", hint: "layout"},
	{name: "port: the timestep as an index of sigmas, out of bounds", dump: "qwen-inner",
		bug: on("transformer.time_text_embed.time_proj@1", func(_ *replay, tap hooks.Tap) *mlx.Array {
			return mlx.Concat(0, nn.TimestepEmbedding(garbage, 256), tap.Output.Slice(0, 1, 2))
		}), stage: "step 1", module: "transformer.time_text_embed.time_proj@1", hint: "out of bounds"},
	{name: "port: a time out of bounds in Z-Image", bug: embeds(garbage), stage: "step 1", module: "transformer.t_embedder@1",
		hint: "out of bounds"},
	{name: "port: a sigma of 1.4e-45", bug: onto("sigmas", func(x *mlx.Array) *mlx.Array { return replaceAt(x, 1, garbage) }),
		stage: "scheduler", module: "sigmas", hint: "out of bounds"},
	{name: "port: a row of an embedding out of bounds", bug: onto("text_encoder.embed_tokens", func(x *mlx.Array) *mlx.Array {
		row := mlx.Full(garbage, mlx.Float32, x.Dim(0), 1, x.Dim(2))
		return mlx.Concat(1, x.Slice(1, 0, 7), row, x.Slice(1, 8, x.Dim(1)))
	}), stage: "text", module: "text_encoder.embed_tokens", hint: "out of bounds"},

	{name: "modulation missing", fault: on("transformer.layers.0.attention_norm1@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		return tap.Output.Div(chunks(r, layer)[0].Plus(1))
	}), stage: "step 0", module: layer, hint: "modulation missing"},
	{name: "residual twice", bug: on(layer, func(_ *replay, tap hooks.Tap) *mlx.Array { return tap.Output.Add(tap.Inputs[0].Array) }),
		stage: "step 0", module: layer, hint: "term twice"},
	{name: "image upside down", bug: onto("vae.decode.in", func(x *mlx.Array) *mlx.Array { return flipped(x, 2) }), stage: "vae",
		module: "vae.decode.in", hint: "reversed"},
	{name: "timestep of no step", bug: embeds(333), stage: "step 1", module: "transformer.t_embedder@1", hint: "timestep"},
	{name: "timestep times 1000", bug: embeds(250_000), stage: "step 1", module: "transformer.t_embedder@1", hint: "timestep for sigma"},
}
