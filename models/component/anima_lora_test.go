package component_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/lora"
)

// TestAnimaLoRAs: LoRAs with the names of ComfyUI, sd-scripts and diffusers change the same parameters.
func TestAnimaLoRAs(t *testing.T) {
	components := modeltest.Components(t, os.DirFS(modeltest.Folder(t, "anima")))
	for parameter, names := range map[[2]string][]string{
		{"transformer", "transformer_blocks.1.attn2.to_out.0.weight"}: {
			"diffusion_model.blocks.1.cross_attn.output_proj", "lora_unet_blocks_1_cross_attn_output_proj",
			"transformer.transformer_blocks.1.attn2.to_out.0", "net.blocks.1.cross_attn.output_proj",
		},
		{"transformer", "transformer_blocks.0.ff.net.2.weight"}: {"diffusion_model.blocks.0.mlp.layer2", "lora_unet_blocks_0_mlp_layer2"},
		{"transformer", "transformer_blocks.0.norm2.linear_1.weight"}: {
			"diffusion_model.blocks.0.adaln_modulation_cross_attn.1", "lora_unet_blocks_0_adaln_modulation_cross_attn_1",
		},
		{"transformer", "time_embed.t_embedder.linear_2.weight"}: {"diffusion_model.t_embedder.1.linear_2"},
		{"text_conditioner", "blocks.1.self_attn.q_proj.weight"}: {
			"diffusion_model.llm_adapter.blocks.1.self_attn.q_proj", "lora_unet_llm_adapter_blocks_1_self_attn_q_proj",
			"text_conditioner.blocks.1.self_attn.q_proj",
		},
		{"text_encoder", "layers.1.mlp.down_proj.weight"}: {"lora_te_layers_1_mlp_down_proj"},
	} {
		c := components[slices.IndexFunc(components, func(c component.Component) bool { return c.Dir == parameter[0] })]
		parameters := nn.Parameters(c.Model)
		shape := parameters[slices.IndexFunc(parameters, func(p nn.Parameter) bool { return p.Name == parameter[1] })].Stored()
		for _, name := range names {
			path := filepath.Join(t.TempDir(), "lora.safetensors")
			halves := func(part string, shape ...int) *checkpoint.Array {
				x, err := checkpoint.FromFloat32(name+part, shape, slices.Repeat([]float32{0.5}, shape[0]*shape[1]))
				if err != nil {
					t.Fatal(err)
				}
				return x
			}
			pair := []*checkpoint.Array{halves(".lora_down.weight", 2, shape[1]), halves(".lora_up.weight", shape[0], 2)}
			if err := checkpoint.WriteFile(path, pair, nil); err != nil {
				t.Fatal(err)
			}
			loader := component.Loader{}
			if err := loader.OpenLoRAs([]lora.Spec{{Path: path, Scale: 1}}, components); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !loader.LoRAs.Changes(parameter[0], parameter[1]) {
				t.Errorf("%s does not change %s of the %s", name, parameter[1], parameter[0])
			}
		}
	}
}
