package parity

import (
	"math"
	"strings"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

const (
	double = "transformer.transformer_blocks.0"
	single = "transformer.single_transformer_blocks.0"
	clip   = "text_encoder.encoder.layers.0"
	t5     = "text_encoder_2.encoder.block.0.layer.0.SelfAttention"
	t5MLP  = "text_encoder_2.encoder.block.0.layer.1.DenseReluDense"
	qwen   = "text_encoder.model.layers.0"
)

// A lookup is the reference's tensor of a name.
type lookup func(name string) *mlx.Array

// given makes a module get, as its first input, what is wrongly computed from the
// reference's tensors.
func given(name string, f func(ref lookup) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(r *replay, tap hooks.Tap) *mlx.Array {
		tap.Inputs[0].Array = f(r.ref.Array).Reshape(tap.Inputs[0].Shape()...)
		return nil
	})
}

// makes is the same for an output.
func makes(name string, f func(ref lookup) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(r *replay, tap hooks.Tap) *mlx.Array { return f(r.ref.Array).Reshape(tap.Output.Shape()...) })
}

// keyed changes an input that has a key.
func keyed(name, key string, f func(x *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on(name, func(_ *replay, tap hooks.Tap) *mlx.Array {
		for i, in := range tap.Inputs {
			if in.Key == key {
				tap.Inputs[i].Array = f(in.Array)
			}
		}
		return nil
	})
}

// parts are the chunks of a modulation [1, n·dim].
func parts(ref lookup, name string, n int) []*mlx.Array { return ref(name).ExpandDims(1).Split(n, -1) }

func modulated(x, scale, shift *mlx.Array) *mlx.Array { return x.Mul(scale.Plus(1)).Add(shift) }

// joint is what enters the attention of a double block before rotation, each
// [1, heads, text+image, dim], and the rotary table.
func joint(ref lookup) (q, k, v *mlx.Array, rope nn.Rope) {
	q, k, v = streams(ref)
	table := func(key string) *mlx.Array {
		x := ref(double + ".attn@1:in.image_rotary_emb." + key)
		return x.Reshape(x.Dim(0), x.Dim(1)/2, 2).Slice(2, 0, 1).Squeeze(2)
	}
	return q, k, v, nn.Rope{Cos: table("0"), Sin: table("1")}
}

// streams are q, k and v of both streams of a double block behind each other,
// before rotation, each [1, heads, text+image, dim].
func streams(ref lookup) (q, k, v *mlx.Array) {
	cat := func(a, b string) *mlx.Array {
		x, y := ref(double+".attn."+a+"@1"), ref(double+".attn."+b+"@1")
		if x.Ndim() == 3 {
			x, y = nn.SplitHeads(x, q.Dim(1)), nn.SplitHeads(y, q.Dim(1))
		}
		return mlx.Concat(1, x, y).Transpose(0, 2, 1, 3)
	}
	q = cat("norm_added_q", "norm_q")
	return q, cat("norm_added_k", "norm_k"), cat("add_v_proj", "to_v")
}

// swapped puts the first n tokens of an axis at the end.
func swapped(x *mlx.Array, axis, n int) *mlx.Array {
	return mlx.Concat(axis, x.Slice(axis, n, x.Dim(axis)), x.Slice(axis, 0, n))
}

// A jointReader returns q, k and v of a double block before rotation, and their rotation.
type jointReader func(ref lookup) (q, k, v *mlx.Array, rope nn.Rope)

// imageFirst is the image's attention if the image comes before the text, and the rotary
// table of the text before that of the image.
func imageFirst(read jointReader) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		q, k, v, rope := read(ref)
		t := texts(ref)
		y := nn.Attention(rope.Interleaved(swapped(q, 2, t)), rope.Interleaved(swapped(k, 2, t)), swapped(v, 2, t))
		return nn.MergeHeads(y).Slice(1, 0, y.Dim(2)-t)
	}
}

// textAlone is the text's attention if it does not see the image.
func textAlone(read jointReader) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		q, k, v, rope := read(ref)
		t := texts(ref)
		return nn.MergeHeads(nn.Attention(rope.Interleaved(q).Slice(2, 0, t), rope.Interleaved(k).Slice(2, 0, t), v.Slice(2, 0, t)))
	}
}

// halfSplitQ is q with its halves rotated against each other.
func halfSplitQ(read jointReader) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		q, _, _, rope := read(ref)
		return rope.HalfSplit(q).Transpose(0, 2, 1, 3)
	}
}

func texts(ref lookup) int { return ref(double + ".attn.norm_added_q@1").Dim(1) }

// entered are q, k and v of a text encoder's attention.
func entered(module string, f func(q, k, v *mlx.Array, ref lookup) *mlx.Array) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		return nn.MergeHeads(f(ref(module+":q"), ref(module+":k"), ref(module+":v"), ref))
	}
}

func rootOf(x *mlx.Array) float64 { return math.Sqrt(float64(x.Dim(3))) }

func gelus(f func(*mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return func(_ *replay, tap hooks.Tap) *mlx.Array { return f(tap.Inputs[0].Array) }
}

// repacked takes tokens [1, L, 4C] from the order channel, row, column to row,
// column, channel.
func repacked(x *mlx.Array) *mlx.Array {
	return x.Reshape(1, x.Dim(1), x.Dim(2)/4, 4).Transpose(0, 1, 3, 2).Reshape(x.Shape()...)
}

// unpackedOtherwise is a picture [1, C, 2h, 2w] whose patches were taken for those
// in the order row, column, channel.
func unpackedOtherwise(x *mlx.Array) *mlx.Array {
	c, h, w := x.Dim(1), x.Dim(2)/2, x.Dim(3)/2
	tokens := x.Reshape(c, h, 2, w, 2).Transpose(1, 3, 0, 2, 4).Reshape(1, h*w, 4*c)
	return tokens.Reshape(h, w, 2, 2, c).Transpose(4, 0, 2, 1, 3).Reshape(x.Shape()...)
}

var fluxFaults = []fault{
	// FLUX.1's transformer
	{name: "flux1: image before text, tables of text before image", dump: "flux1-inner",
		bug: given(double+".attn.to_out.0@1", imageFirst(joint)), stage: "step 1", module: double + ".attn@1", hint: "order of streams"},
	{name: "flux1: what attention makes is taken apart as image, text", dump: "flux1-inner",
		bug: given(double+".attn.to_out.0@1", func(ref lookup) *mlx.Array {
			q, k, v, rope := joint(ref)
			y := nn.MergeHeads(nn.Attention(rope.Interleaved(q), rope.Interleaved(k), v))
			return swapped(y, 1, texts(ref)).Slice(1, texts(ref), y.Dim(1))
		}), stage: "step 1", module: double + ".attn@1", hint: "order of streams"},
	{name: "flux1: text and image do not see each other", dump: "flux1-inner",
		bug: given(double+".attn.to_add_out@1", textAlone(joint)), stage: "step 1", module: double + ".attn@1", hint: "one stream"},
	{name: "flux1: RoPE half-split", dump: "flux1-inner",
		bug:   makes(double+".attn@1:q", halfSplitQ(joint)),
		stage: "step 1", module: double + ".attn@1", hint: "rope layout"},
	{name: "flux1: RoPE missing in a single block", dump: "flux1-inner",
		bug:   makes(single+".attn@1:k", func(ref lookup) *mlx.Array { return ref(single + ".attn.norm_k@1") }),
		stage: "step 1", module: single + ".attn@1", hint: "rope layout"},
	{name: "flux1: q is [image, text]", dump: "flux1-inner", bug: makes(double+".attn@1:q", func(ref lookup) *mlx.Array {
		q, _, _, rope := joint(ref)
		return rope.Interleaved(swapped(q, 2, texts(ref))).Transpose(0, 2, 1, 3)
	}), stage: "step 1", module: double + ".attn@1", hint: "order of streams"},
	{name: "flux1: attention scale missing", dump: "flux1-inner",
		fault: onto(double+".attn@1:q", func(x *mlx.Array) *mlx.Array { return x.Times(rootOf(x)) }),
		stage: "step 1", module: double + ".attn@1", hint: "attention scale"},
	{name: "flux1: attention in half precision", dump: "flux1-inner",
		fault: either(onto(single+".attn@1:q", throughHalf), onto(single+".attn@1:k", throughHalf),
			onto(single+".attn@1:v", throughHalf)), stage: "step 1", module: single + ".attn@1", hint: "lost upcast"},
	{name: "flux1: scale before shift", dump: "flux1-inner", bug: makes(double+".norm1@1", func(ref lookup) *mlx.Array {
		m := parts(ref, double+".norm1.linear@1", 6)
		return modulated(ref(double+".norm1.norm@1"), m[0], m[1])
	}), stage: "step 1", module: double + ".norm1@1", hint: "scale and shift swapped"},
	{name: "flux1: the MLP's shift and scale for attention", dump: "flux1-inner",
		bug: makes(double+".norm1_context@1", func(ref lookup) *mlx.Array {
			m := parts(ref, double+".norm1_context.linear@1", 6)
			return modulated(ref(double+".norm1_context.norm@1"), m[4], m[3])
		}), stage: "step 1", module: double + ".norm1_context@1", hint: "modulation swapped"},
	{name: "flux1: attention is gated with the MLP's gate", dump: "flux1-inner", bug: given(double+".norm2@1", func(ref lookup) *mlx.Array {
		return ref(double + "@1:in.hidden_states").Add(ref(double + ".norm1@1:out.4").ExpandDims(1).Mul(ref(double + ".attn@1")))
	}), stage: "step 1", module: double + "@1", hint: "gate"},
	{name: "flux1: the text is gated with the image's gate", dump: "flux1-inner",
		bug: given(double+".norm2_context@1", func(ref lookup) *mlx.Array {
			return ref(double + "@1:in.encoder_hidden_states").Add(ref(double +
				".norm1@1:out.1").ExpandDims(1).Mul(ref(double + ".attn@1:out.1")))
		}), stage: "step 1", module: double + "@1", hint: "gate"},
	{name: "flux1: gate of the image's MLP missing", dump: "flux1-inner", bug: makes(double+"@1:out.1", func(ref lookup) *mlx.Array {
		return ref(double + ".norm2@1:in.0").Add(ref(double + ".ff@1"))
	}), stage: "step 1", module: double + "@1", hint: "gate missing"},
	{name: "flux1: residual of the image's MLP missing", dump: "flux1-inner", bug: makes(double+"@1:out.1", func(ref lookup) *mlx.Array {
		return ref(double + ".norm1@1:out.4").ExpandDims(1).Mul(ref(double + ".ff@1"))
	}), stage: "step 1", module: double + "@1", hint: "missing term"},
	{name: "flux1: stream of the image in half precision", dump: "flux1-inner", bug: onto(double+"@1:out.1", throughHalf), stage: "step 1",
		module: double + "@1", hint: "lost upcast"},
	{name: "flux1: shift before scale in the MLP", dump: "flux1-inner", bug: given(double+".ff@1", func(ref lookup) *mlx.Array {
		return modulated(ref(double+".norm2@1"), ref(double+".norm1@1:out.2").ExpandDims(1), ref(double+".norm1@1:out.3").ExpandDims(1))
	}), stage: "step 1", module: double + "@1", hint: "scale and shift swapped"},
	{name: "flux1: exact GELU", dump: "flux1-inner",
		bug:   makes(double+".ff.net.0@1", func(ref lookup) *mlx.Array { return ref(double + ".ff.net.0.proj@1").GELU() }),
		stage: "step 1", module: double + ".ff.net.0@1", hint: "activation"},
	{name: "flux1: q/k norm of the text missing", dump: "flux1-inner", bug: unchanged(double + ".attn.norm_added_q@1"), stage: "step 1",
		module: double + ".attn.norm_added_q@1", hint: "does nothing"},
	{name: "flux1: projections of text and image swapped", dump: "flux1-schnell-ordinary",
		edit:  swap("transformer", "transformer_blocks.0.attn.to_out.0.weight", "transformer_blocks.0.attn.to_add_out.weight"),
		stage: "step 0", module: double + ".attn.to_add_out@0", hint: "all differ"},
	{name: "flux1: MLP before attention", dump: "flux1-inner", bug: given(single+".proj_out@1", func(ref lookup) *mlx.Array {
		return mlx.Concat(2, ref(single+".act_mlp@1"), ref(single+".attn@1"))
	}), stage: "step 1", module: single + "@1", hint: "parts in another order"},
	{name: "flux1: packed by row, column, channel", dump: "flux1-inner",
		bug:   given("transformer.x_embedder@1", func(ref lookup) *mlx.Array { return repacked(ref("transformer.x_embedder@1:in.0")) }),
		stage: "step 1", module: "transformer@1", hint: "packing order"},
	{name: "flux1: unpacked by row, column, channel", dump: "flux1-inner", bug: onto("noise_pred@1", unpackedOtherwise), stage: "step 1",
		module: "noise_pred@1", hint: "packing order"},
	{name: "flux1: sigma for the timestep", dump: "flux1-inner",
		bug: on("transformer.time_text_embed.time_proj@1", func(r *replay, _ hooks.Tap) *mlx.Array {
			return nn.TimestepEmbedding(r.ref.Array("sigmas").Floats()[1], 256)
		}), stage: "step 1", module: "transformer.time_text_embed.time_proj@1", hint: "sigma for timestep"},
	{name: "flux1: scale and shift of the last norm swapped", dump: "flux1-inner",
		bug: makes("transformer.norm_out@1", func(ref lookup) *mlx.Array {
			m := parts(ref, "transformer.norm_out.linear@1", 2)
			return modulated(ref("transformer.norm_out.norm@1"), m[1], m[0])
		}), stage: "step 1", module: "transformer.norm_out@1", hint: "scale and shift swapped"},
	{name: "flux1: guidance missing", dump: "flux1-dev-small", bug: makes("transformer.time_text_embed@0", func(ref lookup) *mlx.Array {
		return ref("transformer.time_text_embed@0").Sub(ref("transformer.time_text_embed.guidance_embedder@0"))
	}), stage: "step 0", module: "transformer.time_text_embed@0", hint: "missing term"},
	{name: "flux1: pooled prompt missing", dump: "flux1-dev-small",
		bug: makes("transformer.time_text_embed@0", func(ref lookup) *mlx.Array {
			return ref("transformer.time_text_embed@0").Sub(ref("transformer.time_text_embed.text_embedder@0"))
		}), stage: "step 0", module: "transformer.time_text_embed@0", hint: "missing term"},
	{name: "flux1: guidance not times 1000", dump: "flux1-dev-small",
		bug:   makes("transformer.time_text_embed.time_proj@0#1", func(lookup) *mlx.Array { return nn.TimestepEmbedding(3.5, 256) }),
		stage: "step 0", module: "transformer.time_text_embed.time_proj@0#1", hint: "guidance scale"},
	{name: "flux1: another guidance", dump: "flux1-dev-small", edit: settings("guidance", 1.), stage: "step 0",
		module: "transformer.time_text_embed.time_proj@0#1", hint: "guidance"},
	{name: "flux1: mu of another size", dump: "flux1-dev-small", edit: config("scheduler", "base_shift", 0.9), stage: "scheduler",
		module: "sigmas", hint: "schedule shift"},
	{name: "flux1: norm eps of the transformer", dump: "flux1-inner", bug: on(double+".norm2@1", func(_ *replay, tap hooks.Tap) *mlx.Array {
		return tap.Inputs[0].LayerNorm(nil, nil, 1e-2)
	}), stage: "step 1", module: double + ".norm2@1", hint: "norm eps"},
	{name: "flux1: shift_factor left out", dump: "flux1-dev-small", edit: config("vae", "shift_factor", nil), stage: "vae",
		module: "vae.decode.in", hint: "offset"},
	// its text encoders
	{name: "flux1: T5's bias missing", dump: "flux1-inner", bug: given(t5+".o", entered(t5, func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
		return mlx.Attention(q, k, v, 1, nil)
	})), stage: "text", module: t5, hint: "position bias"},
	{name: "flux1: T5's scores scaled", dump: "flux1-inner",
		bug: given(t5+".o", entered(t5, func(q, k, v *mlx.Array, ref lookup) *mlx.Array {
			return mlx.Attention(q, k, v, float32(1/rootOf(q)), ref(t5+":out.1"))
		})), stage: "text", module: t5, hint: "attention scale"},
	{name: "flux1: T5's bias for keys as queries", dump: "flux1-inner",
		bug: given(strings.Replace(t5, "block.0", "block.1", 1)+".o", entered(strings.Replace(t5, "block.0", "block.1", 1),
			func(q, k, v *mlx.Array, ref lookup) *mlx.Array {
				return mlx.Attention(q, k, v, 1, ref(t5+":out.1").Transpose(0, 1, 3, 2))
			})), stage: "text", module: strings.Replace(t5, "block.0", "block.1", 1), hint: "position bias"},
	{name: "flux1: T5's table of biases empty", dump: "flux1-inner",
		edit: weight("text_encoder_2", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
			func(_ []int, v []float32) { clear(v) }),
		stage: "text", module: t5 + ".relative_attention_bias", hint: "zero"},
	{name: "flux1: T5's GELU exact", dump: "flux1-inner",
		bug:   on(t5MLP+".act", gelus((*mlx.Array).GELU)),
		stage: "text", module: t5MLP + ".act", hint: "activation"},
	{name: "flux1: T5's gate and up swapped", dump: "flux1-inner",
		bug: given(t5MLP+".wo", func(ref lookup) *mlx.Array {
			gate, up := ref(t5MLP+".wi_0"), ref(t5MLP+".wi_1")
			return up.GELUTanh().Mul(gate)
		}), stage: "text", module: t5MLP, hint: "gate and up swapped"},
	{name: "flux1: T5's norms take the mean off", dump: "flux1-inner",
		bug:   on("text_encoder_2.encoder.block.0.layer.0.layer_norm", layerNormed),
		stage: "text", module: "text_encoder_2.encoder.block.0.layer.0.layer_norm", hint: "norm kind"},
	{name: "flux1: CLIP without its causal mask", dump: "flux1-inner",
		bug: given(clip+".self_attn.out_proj", entered(clip+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return nn.Attention(q, k, v)
		})), stage: "text", module: clip + ".self_attn", hint: "attention mask"},
	{name: "flux1: CLIP's attention not scaled", dump: "flux1-inner",
		bug: given(clip+".self_attn.out_proj", entered(clip+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return mlx.CausalAttention(q, k, v, 1)
		})), stage: "text", module: clip + ".self_attn", hint: "attention scale"},
	{name: "flux1: CLIP's GELU not the quick one", dump: "flux1-inner", bug: on(clip+".mlp.activation_fn", gelus((*mlx.Array).GELU)),
		stage: "text", module: clip + ".mlp.activation_fn", hint: "activation"},
	{name: "flux1: CLIP's eps", dump: "flux1-inner", edit: config("text_encoder", "layer_norm_eps", 1e-2), stage: "text",
		module: clip + ".layer_norm1", hint: "norm eps"},
	{name: "flux1: CLIP's pooled output of another token", dump: "flux1-inner",
		bug: makes("prompt.pooled_embeds", func(ref lookup) *mlx.Array {
			return ref("text_encoder.final_layer_norm").Slice(1, 2, 3)
		}), stage: "text", module: "prompt.pooled_embeds", hint: "pooled row"},
	{name: "flux1: CLIP's positions missing", dump: "flux1-inner",
		bug:   makes("text_encoder.embeddings", func(ref lookup) *mlx.Array { return ref("text_encoder.embeddings.token_embedding") }),
		stage: "text", module: "text_encoder.embeddings", hint: "another tensor"},
	{name: "flux1: another prompt", dump: "flux1-inner", edit: settings("prompt", "a red square"), stage: "tokenizer",
		module: "prompt.input_ids"},
	{name: "flux1: T5 padded to another length", dump: "flux1-inner", edit: settings("max_sequence_length", 24), stage: "tokenizer",
		module: "prompt.input_ids_2"},
	// FLUX.2's
	{name: "flux2: gate and up swapped", dump: "flux2-inner", bug: on(double+".ff.act_fn@1", func(_ *replay, tap hooks.Tap) *mlx.Array {
		half := tap.Inputs[0].Split(2, -1)
		return half[1].SiLU().Mul(half[0])
	}), stage: "step 1", module: double + ".ff.act_fn@1", hint: "gate and up swapped"},
	{name: "flux2: GELU for SiLU", dump: "flux2-inner", bug: on(single+".attn.mlp_act_fn@1", func(_ *replay, tap hooks.Tap) *mlx.Array {
		half := tap.Inputs[0].Split(2, -1)
		return half[0].GELUTanh().Mul(half[1])
	}), stage: "step 1", module: single + ".attn.mlp_act_fn@1", hint: "activation"},
	{name: "flux2: scale before shift", dump: "flux2-inner", bug: given(double+".attn@1", func(ref lookup) *mlx.Array {
		m := parts(ref, "transformer.double_stream_modulation_img@1", 6)
		return modulated(ref(double+".norm1@1"), m[0], m[1])
	}), stage: "step 1", module: double + "@1", hint: "scale and shift swapped"},
	{name: "flux2: attention's shift and scale for the MLP", dump: "flux2-inner", bug: given(double+".ff@1", func(ref lookup) *mlx.Array {
		m := parts(ref, "transformer.double_stream_modulation_img@1", 6)
		return modulated(ref(double+".norm2@1"), m[1], m[0])
	}), stage: "step 1", module: double + "@1", hint: "modulation swapped"},
	{name: "flux2: the text is modulated as the image", dump: "flux2-inner",
		bug: given(double+".ff_context@1", func(ref lookup) *mlx.Array {
			m := parts(ref, "transformer.double_stream_modulation_img@1", 6)
			return modulated(ref(double+".norm2_context@1"), m[4], m[3])
		}), stage: "step 1", module: double + "@1", hint: "modulation swapped"},
	{name: "flux2: modulation without 1 +", dump: "flux2-inner", bug: given(single+".attn@1", func(ref lookup) *mlx.Array {
		m := parts(ref, "transformer.single_stream_modulation@1", 3)
		return ref(single + ".norm@1").Mul(m[1]).Add(m[0])
	}), stage: "step 1", module: single + "@1", hint: "modulation without 1"},
	{name: "flux2: gate of a single block missing", dump: "flux2-inner", bug: makes(single+"@1", func(ref lookup) *mlx.Array {
		return ref(single + "@1:in.hidden_states").Add(ref(single + ".attn@1"))
	}), stage: "step 1", module: single + "@1", hint: "gate missing"},
	{name: "flux2: a gate of the other kind", dump: "flux2-inner", bug: given(double+".norm2@1", func(ref lookup) *mlx.Array {
		m := parts(ref, "transformer.double_stream_modulation_img@1", 6)
		return ref(double + "@1:in.hidden_states").Add(m[5].Mul(ref(double + ".attn@1")))
	}), stage: "step 1", module: double + "@1", hint: "gate"},
	{name: "flux2: RoPE half-split", dump: "flux2-inner", bug: given(double+".attn.to_out.0@1", func(ref lookup) *mlx.Array {
		q, k, v, rope := joint(ref)
		y := nn.MergeHeads(nn.Attention(rope.HalfSplit(q), rope.HalfSplit(k), v))
		return y.Slice(1, texts(ref), y.Dim(1))
	}), stage: "step 1", module: double + ".attn@1", hint: "rope layout"},
	{name: "flux2: attention of a single block not scaled", dump: "flux2-inner",
		fault: onto(single+".attn@1:q", func(x *mlx.Array) *mlx.Array { return x.Times(rootOf(x)) }),
		stage: "step 1", module: single + ".attn@1", hint: "attention scale"},
	{name: "flux2: q and k swapped in the joint projection", dump: "flux2-inner",
		bug:   makes(single+".attn@1:q", func(ref lookup) *mlx.Array { return ref(single + ".attn@1:k") }),
		stage: "step 1", module: single + ".attn@1", hint: "another tensor"},
	{name: "flux2: rows and columns of positions swapped", dump: "flux2-inner",
		bug: keyed("transformer.pos_embed@1", "0", func(x *mlx.Array) *mlx.Array {
			p := x.Split(4, -1)
			return mlx.Concat(-1, p[0], p[2], p[1], p[3])
		}), stage: "step 1", module: "transformer@1", hint: "positions"},
	{name: "flux2: positions of pictures count from 1", dump: "flux2-klein-edit2",
		bug: keyed("transformer@0", "img_ids", func(x *mlx.Array) *mlx.Array {
			p := x.Split(4, -1)
			return mlx.Concat(-1, p[0].Over(10), p[1], p[2], p[3])
		}), stage: "step 0", module: "transformer@0", hint: "positions"},
	{name: "flux2: pictures in another order", dump: "flux2-klein-edit2", edit: settings("references", []string{"second.png", "first.png"}),
		stage: "encode", module: "image.in"},
	{name: "flux2: pictures not normalised", dump: "flux2-klein-edit2", edit: weight("vae", "bn.running_var", func(_ []int, v []float32) {
		for i := range v {
			v[i] *= float32(1 + i%5)
		}
	}), stage: "encode", module: "latents.reference", hint: "latent scaling"},
	{name: "flux2: patches of pictures by row, column, channel", dump: "flux2-klein-edit2",
		bug: onto("latents.reference", func(x *mlx.Array) *mlx.Array {
			c, n := x.Dim(1)/4, x.Dim(2)*x.Dim(3)
			return x.Reshape(1, c, 4, n).Transpose(0, 2, 1, 3).Reshape(x.Shape()...)
		}), stage: "encode", module: "latents.reference", hint: "packing order"},
	{name: "flux2: bn's mean missing", dump: "flux2-inner", edit: weight("vae", "bn.running_mean", func(_ []int, v []float32) { clear(v) }),
		stage: "vae", module: "vae.decode.in", hint: "latent scaling"},
	{name: "flux2: patches by row, column, channel", dump: "flux2-inner", bug: onto("vae.decode.in", unpackedOtherwise), stage: "vae",
		module: "vae.decode.in", hint: "packing order"},
	{name: "flux2: other hidden states", dump: "flux2-inner", bug: makes("prompt.embeds", func(ref lookup) *mlx.Array {
		return mlx.Concat(-1, ref(qwen), ref("text_encoder.model.layers.1"), ref("text_encoder.model.layers.2"))
	}), stage: "text", module: "prompt.embeds", hint: "hidden layer"},
	{name: "flux2: hidden states of every token by layer", dump: "flux2-inner", bug: onto("prompt.embeds", func(x *mlx.Array) *mlx.Array {
		n := x.Dim(0)
		return x.Reshape(n, 3, x.Dim(1)/3).Transpose(0, 2, 1).Reshape(x.Shape()...)
	}), stage: "text", module: "prompt.embeds", hint: "interleaved"},
	{name: "flux2: pads are seen", dump: "flux2-inner",
		bug: given(qwen+".self_attn.o_proj", entered(qwen+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return nn.CausalAttention(q, k, v)
		})), stage: "text", module: qwen + ".self_attn", hint: "pads"},
	{name: "flux2: RoPE of the text encoder missing", dump: "flux2-inner", bug: makes(qwen+".self_attn:q", func(ref lookup) *mlx.Array {
		return ref(qwen+".self_attn.q_norm").Transpose(0, 2, 1, 3)
	}), stage: "text", module: qwen + ".self_attn", hint: "rope layout"},
	{name: "flux2: time in another unit", dump: "flux2-inner",
		bug: on("transformer.time_guidance_embed.time_proj@1", func(r *replay, _ hooks.Tap) *mlx.Array {
			return nn.TimestepEmbedding(r.ref.Array("sigmas").Floats()[1], 256)
		}), stage: "step 1", module: "transformer.time_guidance_embed.time_proj@1", hint: "sigma for timestep"},
	{name: "flux2: one modulation for all streams", dump: "flux2-inner",
		bug:   becomes("transformer.double_stream_modulation_txt@1", "transformer.double_stream_modulation_img@1"),
		stage: "step 1", module: "transformer.double_stream_modulation_txt@1", hint: "swapped"},
	{name: "flux2: latents move the wrong way", dump: "flux2-inner", bug: onto("noise_pred@0", (*mlx.Array).Neg), stage: "step 0",
		module: "noise_pred@0", hint: "sign"},
	{name: "flux2: guidance from the prompt's prediction", dump: "flux2-klein-base",
		bug: makes("noise_pred@0", func(ref lookup) *mlx.Array {
			pos, neg := ref("transformer@0"), ref("transformer@0#1")
			return pos.Add(pos.Sub(neg).Times(3.5)).Transpose(0, 2, 1)
		}), stage: "step 0", module: "noise_pred@0", hint: "guidance"},
	// pictures whose keys and values are kept
	{name: "flux2: pictures are modulated as at the step's time", dump: "flux2-klein-kv",
		bug: makes("transformer.time_guidance_embed.time_proj@0#1", func(ref lookup) *mlx.Array {
			return ref("transformer.time_guidance_embed.time_proj@0")
		}), stage: "step 0", module: "transformer.time_guidance_embed.time_proj@0#1", hint: "time of references"},
	{name: "flux2: what is kept is not used", dump: "flux2-klein-kv", bug: makes(double+".attn@1:k", func(ref lookup) *mlx.Array {
		k := ref(double + ".attn@1:k")
		return k.Mul(mlx.Arange(0, float64(k.Dim(1)), 1, mlx.Float32).Reshape(1, k.Dim(1), 1,
			1).Less(mlx.Scalar(29, mlx.Float32)).AsType(mlx.Float32))
	}), stage: "step 1", module: double + ".attn@1", hint: "one axis"},
}
