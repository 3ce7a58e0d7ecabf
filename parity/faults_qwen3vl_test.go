package parity

import (
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
)

// The golden of these faults has two images of 4x4 patches, of which 2x2 are merged. The
// language model's heads have 12 features.
const (
	qwen3VL      = "qwen-image-21-vision"
	seenAfter    = language + ".layers.1" // the first layer that gets features of deepstack
	stack        = visual + ".deepstack_merger_list.0"
	towerPatches = 16 // of an image
)

// interleaved is the rotary table of the golden's language model with other sections or theta.
func interleaved(sections [3]int, theta float64) func(*replay, hooks.Tap) *mlx.Array {
	return rotaryTable(func(positions [][]int) nn.Rope { return nn.NewInterleavedMRope(positions, sections, 6, theta) })
}

// rotaryTable makes the table from the golden's positions in another way.
func rotaryTable(f func(positions [][]int) nn.Rope) func(*replay, hooks.Tap) *mlx.Array {
	table := func(part func(nn.Rope) *mlx.Array) func(lookup) *mlx.Array {
		return func(ref lookup) *mlx.Array {
			x := part(f(positionsOf(ref)))
			return mlx.Concat(1, x, x)
		}
	}
	return either(makes(language+".rotary_emb", table(func(r nn.Rope) *mlx.Array { return r.Cos })),
		makes(language+".rotary_emb:out.1", table(func(r nn.Rope) *mlx.Array { return r.Sin })))
}

// stretchedBy is the sum of patches and of learned positions, which are taken for each patch
// from a grid of 3x3.
func stretchedBy(near func(y, x int) map[int]float64) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		table := storedAt("../models/testdata/qwen-image-21/model/text_encoder", "model.visual.pos_embed.weight")
		var rows []*mlx.Array
		for i := range 2 * towerPatches {
			cell, in := i%towerPatches/4, i%4
			row := mlx.Zeros(mlx.Float32, 1, table.Dim(1))
			for index, w := range near(cell/2*2+in/2, cell%2*2+in%2) {
				row = row.Add(table.Slice(0, index, index+1).Times(w))
			}
			rows = append(rows, row)
		}
		return ref(visual + ".patch_embed").Add(mlx.Concat(0, rows...))
	}
}

// corners are the weights of the four positions around a point of the grid.
func corners(y, x float64) map[int]float64 {
	y, x = min(max(y, 0), 2), min(max(x, 0), 2)
	top, left := min(int(y), 1), min(int(x), 1)
	y, x = y-float64(top), x-float64(left)
	return map[int]float64{top*3 + left: (1 - y) * (1 - x), top*3 + left + 1: (1 - y) * x,
		top*3 + 3 + left: y * (1 - x), top*3 + left + 4: y * x}
}

// seen is what enters the second layer of the language model, whose tokens of images have other
// features added.
func seen(features func(ref lookup) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return given(seenAfter, func(ref lookup) *mlx.Array {
		x, added := ref(language+".layers.0"), features(ref)
		zero := mlx.Zeros(mlx.Float32, 1, x.Dim(2))
		from, next := make([]int32, x.Dim(1)), int32(1)
		for i := range from {
			if inImage(ref, i) {
				from[i] = next
				next++
			}
		}
		return x.Add(mlx.Concat(0, zero, added).TakeRows(from).ExpandDims(0))
	})
}

// inImage reports whether a token belongs to an image.
func inImage(ref lookup, token int) bool {
	const id = 414
	return ref("prompt.input_ids").AsType(mlx.Int32).Int32s()[token] == id
}

// attendTower is attention of the vision encoder over parts of some length.
func attendTower(length int, scale float64, rotate func(nn.Rope, *mlx.Array) *mlx.Array) func(lookup) *mlx.Array {
	return func(ref lookup) *mlx.Array {
		const heads = 2
		qkv := ref(tower+".attn.qkv").ExpandDims(0).Split(3, -1)
		half := func(name string) *mlx.Array {
			x := ref(visual + ".rotary_pos_emb" + name)
			return x.Slice(1, 0, x.Dim(1)/2)
		}
		rope := nn.Rope{Cos: half(""), Sin: half(":out.1")}
		var parts []*mlx.Array
		for at := 0; at < 2*towerPatches; at += length {
			get := func(i int) *mlx.Array { return nn.Heads(qkv[i].Slice(1, at, at+length), heads) }
			part := nn.Rope{Cos: rope.Cos.Slice(0, at, at+length), Sin: rope.Sin.Slice(0, at, at+length)}
			q, k := rotate(part, get(0)), rotate(part, get(1))
			parts = append(parts, nn.MergeHeads(mlx.Attention(q, k, get(2), float32(scale/rootOf(q)), nil)).Squeeze(0))
		}
		return mlx.Concat(0, parts...)
	}
}

var qwen3VLFaults = []fault{
	{name: "qwen3-vl: positions of tokens in one dimension", dump: qwen3VL,
		bug:   positioned(func(_, token int, _ [3][]int32) int32 { return int32(token) }),
		stage: "text", module: language + ".rotary_emb", hint: "positions"},
	{name: "qwen3-vl: rows and columns of tokens swapped", dump: qwen3VL,
		bug:   positioned(func(axis, token int, p [3][]int32) int32 { return p[[]int{0, 2, 1}[axis]][token] }),
		stage: "text", module: language + ".rotary_emb", hint: "positions"},
	{name: "qwen3-vl: sections one after the other", dump: qwen3VL,
		bug:   rotaryTable(func(positions [][]int) nn.Rope { return nn.NewMRope(positions, []int{2, 2, 2}, 50000) }),
		stage: "text", module: language + ".rotary_emb", hint: "rope angles"},
	{name: "qwen3-vl: another mrope_section", dump: qwen3VL, bug: interleaved([3]int{2, 1, 2}, 50000), stage: "text",
		module: language + ".rotary_emb"},
	{name: "qwen3-vl: theta of transformers' default", dump: qwen3VL, bug: interleaved([3]int{2, 2, 2}, 500000), stage: "text",
		module: language + ".rotary_emb", hint: "rope angles"},
	{name: "qwen3-vl: norm of q missing", dump: qwen3VL, bug: unchanged(words + ".self_attn.q_norm"), stage: "text",
		module: words + ".self_attn.q_norm", hint: "does nothing"},
	{name: "qwen3-vl: norms of q and k swapped", dump: qwen3VL, edit: swap("text_encoder",
		"model.language_model.layers.0.self_attn.q_norm.weight", "model.language_model.layers.0.self_attn.k_norm.weight"),
		stage: "text", module: words + ".self_attn.q_norm"},
	{name: "qwen3-vl: causal mask missing", dump: qwen3VL,
		bug: given(words+".self_attn.o_proj", entered(words+".self_attn", func(q, k, v *mlx.Array, _ lookup) *mlx.Array {
			return nn.Attention(q, k, v)
		})), stage: "text", module: words + ".self_attn", hint: "attention mask"},
	{name: "qwen3-vl: gate and up swapped", dump: qwen3VL, bug: given(words+".mlp.down_proj", func(ref lookup) *mlx.Array {
		return ref(words + ".mlp.up_proj").SiLU().Mul(ref(words + ".mlp.gate_proj"))
	}), stage: "text", module: words, hint: "gate and up swapped"},
	{name: "qwen3-vl: eps of the language model", dump: qwen3VL, edit: textConfig("rms_norm_eps", 1e-2), stage: "text",
		module: words + ".input_layernorm", hint: "norm eps"},
	{name: "qwen3-vl: hidden states after the final norm", dump: qwen3VL, bug: makes("prompt.embeds", func(ref lookup) *mlx.Array {
		x := ref(language + ".layers.1")
		return x.Slice(1, x.Dim(1)-ref("prompt.embeds").Dim(0), x.Dim(1)).RMSNorm(nil, 1e-6)
	}), stage: "text", module: "prompt.embeds"},
	// deepstack
	{name: "qwen3-vl: features of deepstack missing", dump: qwen3VL,
		bug:   given(seenAfter, func(ref lookup) *mlx.Array { return ref(language + ".layers.0") }),
		stage: "text", module: seenAfter, hint: "another tensor"},
	{name: "qwen3-vl: last features again instead of those of deepstack", dump: qwen3VL,
		bug:   seen(func(ref lookup) *mlx.Array { return ref(visual + ".merger.linear_fc2") }),
		stage: "text", module: seenAfter},
	{name: "qwen3-vl: features of deepstack in the place of the layer's", dump: qwen3VL,
		bug: seen(func(ref lookup) *mlx.Array {
			x := ref(language + ".layers.0").Squeeze(0)
			var rows []int32
			for i := range x.Dim(0) {
				if inImage(ref, i) {
					rows = append(rows, int32(i))
				}
			}
			return ref(stack + ".linear_fc2").Sub(x.TakeRows(rows))
		}), stage: "text", module: seenAfter},
	{name: "qwen3-vl: features of deepstack of the images in another order", dump: qwen3VL, bug: seen(func(ref lookup) *mlx.Array {
		x := ref(stack + ".linear_fc2")
		return mlx.Concat(0, x.Slice(0, 4, 8), x.Slice(0, 0, 4))
	}), stage: "text", module: seenAfter},
	{name: "qwen3-vl: deepstack's norm of each patch", dump: qwen3VL, bug: makes(stack+".norm", func(ref lookup) *mlx.Array {
		x := ref(stack + ".norm:in.0")
		return x.Reshape(-1, 8).LayerNorm(nil, nil, 1e-6)
	}), stage: "text", module: stack + ".norm"},
	{name: "qwen3-vl: features of deepstack after the last block", dump: qwen3VL,
		bug:   given(stack+".norm", func(ref lookup) *mlx.Array { return ref(visual + ".blocks.1") }),
		stage: "text", module: stack},
	// vision tower
	{name: "qwen3-vl: learned positions missing", dump: qwen3VL,
		bug:   given(tower, func(ref lookup) *mlx.Array { return ref(visual + ".patch_embed") }),
		stage: "text", module: visual},
	{name: "qwen3-vl: learned positions of pixel centres", dump: qwen3VL, bug: given(tower, stretchedBy(func(y, x int) map[int]float64 {
		return corners((float64(y)+0.5)*3/4-0.5, (float64(x)+0.5)*3/4-0.5)
	})), stage: "text", module: visual},
	{name: "qwen3-vl: the nearest of the learned positions", dump: qwen3VL, bug: given(tower, stretchedBy(func(y, x int) map[int]float64 {
		return map[int]float64{(2*y+1)/3*3 + (2*x+1)/3: 1}
	})), stage: "text", module: visual},
	{name: "qwen3-vl: rows and columns of learned positions swapped", dump: qwen3VL,
		bug:   given(tower, stretchedBy(func(y, x int) map[int]float64 { return corners(float64(x)*2/3, float64(y)*2/3) })),
		stage: "text", module: visual},
	{name: "qwen3-vl: bias of the patches missing", dump: qwen3VL,
		edit:  weight("text_encoder", "model.visual.patch_embed.proj.bias", func(_ []int, v []float32) { clear(v) }),
		stage: "text", module: visual + ".patch_embed", hint: "bias"},
	{name: "qwen3-vl: patches of all images see each other", dump: qwen3VL,
		bug:   given(tower+".attn.proj", attendTower(2*towerPatches, 1, nn.Rope.HalfSplit)),
		stage: "text", module: tower + ".attn"},
	{name: "qwen3-vl: attention of the vision tower not scaled", dump: qwen3VL,
		bug:   given(tower+".attn.proj", attendTower(towerPatches, 2, nn.Rope.HalfSplit)),
		stage: "text", module: tower + ".attn", hint: "attention scale"},
	{name: "qwen3-vl: RoPE of the vision tower interleaved", dump: qwen3VL,
		bug:   given(tower+".attn.proj", attendTower(towerPatches, 1, nn.Rope.Interleaved)),
		stage: "text", module: tower + ".attn"},
	{name: "qwen3-vl: norm of the vision tower keeps the mean", dump: qwen3VL,
		bug:   on(tower+".norm1", func(_ *replay, tap hooks.Tap) *mlx.Array { return tap.Inputs[0].Array.RMSNorm(nil, 1e-6) }),
		stage: "text", module: tower + ".norm1", hint: "norm kind"},
	{name: "qwen3-vl: exact GELU in the vision tower", dump: qwen3VL, bug: given(tower+".mlp.linear_fc2", func(ref lookup) *mlx.Array {
		return ref(tower + ".mlp.linear_fc1").GELU()
	}), stage: "text", module: tower + ".mlp"},
	{name: "qwen3-vl: GELU by tanh in the merger", dump: qwen3VL, bug: given(visual+".merger.linear_fc2", func(ref lookup) *mlx.Array {
		return ref(visual + ".merger.linear_fc1").GELUTanh()
	}), stage: "text", module: visual + ".merger"},
	{name: "qwen3-vl: residual of the vision tower missing", dump: qwen3VL,
		bug:   given(tower+".norm2", func(ref lookup) *mlx.Array { return ref(tower + ".attn.proj") }),
		stage: "text", module: tower, hint: "another tensor"},
	{name: "qwen3-vl: merged patches column by column", dump: qwen3VL, bug: given(visual+".merger.linear_fc1", func(ref lookup) *mlx.Array {
		return ref(visual+".merger.norm").Reshape(-1, 2, 2, 8).Transpose(0, 2, 1, 3)
	}), stage: "text", module: visual + ".merger", hint: "interleaved"},
	// image processor
	{name: "qwen3-vl: mean and std of Qwen2.5-VL", dump: qwen3VL, edit: func(t *testing.T, model, _ string) {
		name := model + "/processor/preprocessor_config.json"
		edited(t, name, "image_mean", []float64{0.48145466, 0.4578275, 0.40821073})
		edited(t, name, "image_std", []float64{0.26862954, 0.26130258, 0.27577711})
	}, stage: "text", module: "vision.pixel_values", hint: "normalisation"},
	{name: "qwen3-vl: images in another order", dump: qwen3VL, edit: settings("references", []string{"transparent.png", "first.png"}),
		stage: "text", module: "image.condition", hint: "swapped"},
}
