package parity

import (
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// flux3Faults are faults of FLUX.3.
var flux3Faults = []fault{
	{name: "flux3: no timestep that the step leads to", dump: "flux3-klein",
		edit:  weight("transformer", "target_timestep_embedder.linear_2.weight", func(_ []int, v []float32) { clear(v) }),
		stage: "step 0", module: "transformer.target_timestep_embedder.linear_2@0"},
	{name: "flux3: text modulated by the timestep", dump: "flux3-klein",
		bug: on("transformer.timestep_embedder.linear_2@0#1", func(r *replay, _ hooks.Tap) *mlx.Array {
			return r.ref.Array("transformer.timestep_embedder.linear_2@0")
		}), stage: "step 0", module: "transformer.timestep_embedder.linear_2@0#1"},
	{name: "flux3: scale and shift of the output swapped", dump: "flux3-klein",
		edit: weight("transformer", "norm_out.linear.weight", func(_ []int, v []float32) {
			half := len(v) / 2
			for i := range half {
				v[i], v[half+i] = v[half+i], v[i]
			}
		}), stage: "step 0", module: "transformer.norm_out.linear@0"},
	{name: "flux3: other layers of the text encoder", dump: "flux3-klein", edit: indexed("text_encoder_out_layers", []int{1, 2, 3}),
		stage: "text", module: "prompt.embeds"},
	{name: "flux3: base of the rotary embedding", dump: "flux3-klein", edit: config("transformer", "rope_theta", 10),
		stage: "step 0", module: "transformer.txt_mode_blocks.0.attn.to_out.0@0"},
	{name: "flux3: another shift", dump: "flux3-klein", edit: config("scheduler", "shift", 3), stage: "scheduler", module: "sigmas"},
	{name: "flux3: references as the image", dump: "flux3-klein-edit",
		edit: weight("transformer", "x_embedders.image_cond.weight", func(_ []int, v []float32) {
			for i := range v {
				v[i] = -v[i]
			}
		}), stage: "step 0", module: "transformer@0"},
	{name: "flux3: another prompt in the chat template", dump: "flux3-klein-base",
		edit: func(t *testing.T, _, run string) {
			edited(t, filepath.Join(run, "settings.json"), "prompt", "paint its lights red")
		},
		stage: "tokenizer", module: "prompt.input_ids"},
	{name: "flux3: other guidance", dump: "flux3-klein-base", edit: settings("guidance", 3.9), stage: "step 0", module: "noise_pred@0"},
}
