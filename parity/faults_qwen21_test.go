package parity

import (
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// guided21 is a wrong combination of the predictions for prompt and negative prompt, which are the
// last rows of the transformer's output.
func guided21(f func(p, n *mlx.Array) *mlx.Array) func(*replay, hooks.Tap) *mlx.Array {
	return on("noise_pred@0", func(r *replay, tap hooks.Tap) *mlx.Array {
		shape := tap.Output.Shape()
		tokens := func(name string) *mlx.Array {
			x := r.ref.Array(name)
			return x.Slice(1, x.Dim(1)-shape[2]*shape[3], x.Dim(1)).Transpose(0, 2, 1).Reshape(shape...)
		}
		return f(tokens("transformer@0"), tokens("transformer@0#1"))
	})
}

// qwen21Faults are faults of Qwen-Image-2.1.
var qwen21Faults = []fault{
	{name: "qwen 2.1: the text's norm without the one", dump: "qwen-image-21",
		edit: weight("transformer", "txt_in.text_norm.weight", func(_ []int, v []float32) {
			for i := range v {
				v[i]--
			}
		}), stage: "step 0", module: "transformer.txt_in.text_norm@0"},
	{name: "qwen 2.1: eps of the norms", dump: "qwen-image-21", edit: config("transformer", "eps", 1e-2), stage: "step 0",
		module: "transformer.txt_in.text_norm@0"},
	{name: "qwen 2.1: no second pass", dump: "qwen-image-21", bug: guided21(func(p, _ *mlx.Array) *mlx.Array { return p }),
		stage: "step 0", module: "noise_pred@0"},
	{name: "qwen 2.1: guidance from the prompt's side", dump: "qwen-image-21",
		bug:   guided21(func(p, n *mlx.Array) *mlx.Array { return p.Add(n.Sub(p).Times(2.5)) }),
		stage: "step 0", module: "noise_pred@0"},
	{name: "qwen 2.1: schedule stretched to another end", dump: "qwen-image-21", edit: config("scheduler", "shift_terminal", 0.1),
		stage: "scheduler", module: "sigmas", hint: "schedule shift"},
	{name: "qwen 2.1: other sigmas than Turbo's", dump: "qwen-image-21-turbo",
		edit: indexed("sample_sigmas", []float64{1, 0.9, 0.3}), stage: "scheduler", module: "sigmas"},
}
