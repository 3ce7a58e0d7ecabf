package parity

import (
	"path/filepath"
	"testing"

	"github.com/gomflux/gomflux/mlx"
)

// swapHalves swaps the halves of the last axis.
func swapHalves(x *mlx.Array) *mlx.Array {
	h := x.Split(2, -1)
	return mlx.Concat(-1, h[1], h[0])
}

// ernieFaults are faults of ERNIE-Image.
var ernieFaults = []fault{
	{name: "ernie-image: cosines first", dump: "ernie-image", bug: onto("transformer.time_proj@0", swapHalves), stage: "step 0",
		module: "transformer.time_proj@0"},
	{name: "ernie-image: scale and shift of the final norm", dump: "ernie-image",
		bug: onto("transformer.final_norm.linear@0", swapHalves), stage: "step 0", module: "transformer.final_norm.linear@0"},
	{name: "ernie-image: positions not stretched", dump: "ernie-image",
		edit: func(t *testing.T, model, _ string) {
			editedIn(t, filepath.Join(model, "text_encoder", "config.json"), "text_config", "rope_parameters",
				map[string]any{"rope_type": "default", "rope_theta": 1e4})
		}, stage: "text", module: "text_encoder.language_model.layers.0.self_attn.o_proj"},
	{name: "ernie-image: queries do not grow", dump: "ernie-image",
		edit: func(t *testing.T, model, _ string) {
			editedIn(t, filepath.Join(model, "text_encoder", "config.json"), "text_config", "model_type", "mistral")
		}, stage: "text", module: "text_encoder.language_model.layers.0.self_attn.o_proj"},
	{name: "ernie-image: another shift", dump: "ernie-image",
		edit: config("scheduler", "shift", 3), stage: "scheduler", module: "sigmas"},
}
