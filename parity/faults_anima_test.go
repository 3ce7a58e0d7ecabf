package parity

import "github.com/gomflux/gomflux/mlx"

const animaBlock = "transformer.transformer_blocks.0"

// animaFaults are faults of Anima.
var animaFaults = []fault{
	{name: "anima: scale of the rotary embedding", dump: "anima", edit: config("transformer", "rope_scale", []float64{1, 1, 1}),
		stage: "step 0", module: "transformer.rope@0"},
	{name: "anima: columns before rows", dump: "anima", edit: config("transformer", "rope_scale", []float64{1, 4, 1}),
		stage: "step 0", module: "transformer.rope@0"},
	{name: "anima: fewer rows of the text", dump: "anima", edit: config("text_conditioner", "min_sequence_length", 20),
		stage: "text", module: "text_conditioner"},
	{name: "anima: rows after the text are not zeros", dump: "anima",
		bug: onto("text_conditioner", func(x *mlx.Array) *mlx.Array { return x.Plus(0.01) }), stage: "text", module: "text_conditioner"},
	{name: "anima: norms of two attentions swapped", dump: "anima",
		bug:   makes(animaBlock+".norm2.linear_2@0", func(ref lookup) *mlx.Array { return ref(animaBlock + ".norm1.linear_2@0") }),
		stage: "step 0", module: animaBlock + ".norm2.linear_2@0"},
	{name: "anima: modulation without the time's", dump: "anima",
		bug: onto(animaBlock+".norm3@0", func(x *mlx.Array) *mlx.Array { return x.Times(1.1) }), stage: "step 0",
		module: animaBlock + ".norm3@0", hint: "ratio"},
	{name: "anima: features of a patch in the order of the input", dump: "anima",
		bug:   onto("transformer@0", func(x *mlx.Array) *mlx.Array { return x.Transpose(0, 1, 2, 4, 3).Reshape(x.Shape()...) }),
		stage: "step 0", module: "transformer@0"},
	{name: "anima: GELU by tanh", dump: "anima",
		bug:   makes(animaBlock+".ff.net.0@0", func(ref lookup) *mlx.Array { return gelu(ref(animaBlock + ".ff.net.0.proj@0")) }),
		stage: "step 0", module: animaBlock + ".ff.net.0@0"},
	{name: "anima: the schedule is not shifted", dump: "anima", edit: config("scheduler", "shift", 1.), stage: "scheduler",
		module: "sigmas", hint: "schedule shift"},
	{name: "anima: an empty prompt has a token", dump: "anima",
		bug:   onto("text_conditioner#1", func(x *mlx.Array) *mlx.Array { return x.Times(1.01) }),
		stage: "text", module: "text_conditioner#1", hint: "ratio"},
	{name: "anima: no second pass", dump: "anima-small", bug: becomes("noise_pred@0", "transformer@0"),
		stage: "step 0", module: "noise_pred@0"},
}
