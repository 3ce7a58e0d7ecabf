package parity

import (
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// flux2DevFaults are faults of FLUX.2-dev that FLUX.2-klein cannot have.
var flux2DevFaults = []fault{
	{name: "flux2-dev: guidance left out", dump: "flux2-dev",
		edit: weight("transformer", "time_guidance_embed.guidance_embedder.linear_2.weight",
			func(_ []int, v []float32) { clear(v) }),
		stage: "step 0", module: "transformer.time_guidance_embed.guidance_embedder.linear_2@0"},
	{name: "flux2-dev: other guidance", dump: "flux2-dev", edit: settings("guidance", 2.6), stage: "step 0",
		module: "transformer.time_guidance_embed.time_proj@0#1"},
	{name: "flux2-dev: padding on the right", dump: "flux2-dev",
		edit: func(t *testing.T, model, _ string) {
			edited(t, filepath.Join(model, "tokenizer", "tokenizer_config.json"), "padding_side", "right")
		}, stage: "tokenizer", module: "prompt.input_ids"},
	{name: "flux2-dev: other layers of the text encoder", dump: "flux2-dev", edit: indexed("text_encoder_out_layers", []int{1, 2, 3}),
		stage: "text", module: "prompt.embeds"},
	{name: "flux2-dev: padding sees the first token", dump: "flux2-dev",
		bug: onto("text_encoder.model.language_model.layers.0.self_attn", func(x *mlx.Array) *mlx.Array {
			const padding = 27
			first := x.Slice(1, padding, padding+1)
			return mlx.Concat(1, mlx.Zeros(x.Dtype(), 1, padding, x.Dim(2)).Add(first), x.Slice(1, padding, x.Dim(1)))
		}),
		stage: "text", module: "text_encoder.model.language_model.layers.0.self_attn"},
}
