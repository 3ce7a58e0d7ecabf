package layout

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// components are those of tiny models, by folder, with their classes.
var mfluxComponents = []struct{ pipeline, folder, class string }{
	{"FluxPipeline", "flux1-dev-small/model/transformer", "FluxTransformer2DModel"},
	{"FluxPipeline", "flux1-dev-small/model/text_encoder", "CLIPTextModel"},
	{"FluxPipeline", "flux1-schnell-ordinary/model/text_encoder", "CLIPTextModel"},
	{"FluxPipeline", "flux1-dev-small/model/text_encoder_2", "T5EncoderModel"},
	{"FluxPipeline", "flux1-schnell-ordinary/model/text_encoder_2", "T5EncoderModel"},
	{"FluxPipeline", "flux1-dev-small/model/vae", "AutoencoderKL"},
	{"Flux2KleinPipeline", "flux2-klein/model/transformer", "Flux2Transformer2DModel"},
	{"Flux2KleinPipeline", "flux2-klein/model/text_encoder", "Qwen3ForCausalLM"},
	{"Flux2KleinPipeline", "flux2-klein/model/vae", "AutoencoderKLFlux2"},
	{"ZImagePipeline", "zimage-ordinary/model/transformer", "ZImageTransformer2DModel"},
	{"ZImagePipeline", "zimage-ordinary/model/text_encoder", "Qwen3Model"},
	{"ZImagePipeline", "zimage-small/model/text_encoder", "Qwen3Model"},
	{"ZImagePipeline", "zimage-ordinary/model/vae", "AutoencoderKL"},
	{"QwenImagePipeline", "qwen-image-ordinary/model/transformer", "QwenImageTransformer2DModel"},
	{"QwenImagePipeline", "qwen-image-ordinary/model/text_encoder", "Qwen2_5_VLForConditionalGeneration"},
	{"QwenImageEditPlusPipeline", "qwen-edit-plus/model/text_encoder", "Qwen2_5_VLForConditionalGeneration"},
	{"QwenImagePipeline", "qwen-image-ordinary/model/vae", "AutoencoderKLQwenImage"},
}

// TestMFluxNames takes all names of tiny models of diffusers to mflux's and back.
func TestMFluxNames(t *testing.T) {
	plain := func(name string) string { // as transformers 4 has it
		name = strings.Replace(strings.Replace(name, "model.language_model.", "model.", 1), "model.visual.", "visual.", 1)
		for _, prefix := range []string{"text_model.", "model."} {
			name = strings.TrimPrefix(name, prefix)
		}
		return name
	}
	for _, c := range mfluxComponents {
		ck, err := checkpoint.OpenCheckpoint(os.DirFS("../../../models/testdata"), c.folder)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		table := MFlux(Class(c.class), c.pipeline)
		seen := map[string]bool{}
		for name := range ck.Tensors {
			if table.Lacks(name) {
				continue
			}
			other, _, _ := table.Other(name)
			if seen[other] {
				t.Errorf("%s: %s is there twice", c.folder, other)
			}
			seen[other] = true
			if names, _ := table.Names(other); len(names) != 1 || plain(names[0]) != plain(name) {
				t.Errorf("%s: %s is %s there, and that is %q here", c.folder, name, other, names)
			}
		}
		for _, name := range table.Signature {
			if !seen[name] {
				t.Errorf("%s: has no %s", c.folder, name)
			}
		}
		if _, found, err := View(ck, c.class, nil); err != nil || found != nil && found.Name == "mflux" {
			t.Errorf("%s: is taken for mflux's (%v)", c.folder, err)
		}
	}
}

// TestMFluxKnown has names that mflux 0.24.0 saves, and diffusers' for them.
func TestMFluxKnown(t *testing.T) {
	for _, c := range []struct{ class, pipeline, other, name string }{
		{"FluxTransformer2DModel", "", "transformer_blocks.18.ff_context.linear2.weight", "transformer_blocks.18.ff_context.net.2.weight"},
		{"FluxTransformer2DModel", "", "single_transformer_blocks.37.proj_mlp.scales", "single_transformer_blocks.37.proj_mlp.scales"},
		{"Flux2Transformer2DModel", "", "transformer_blocks.0.attn.to_out.scales", "transformer_blocks.0.attn.to_out.0.scales"},
		{"Flux2Transformer2DModel", "", "single_transformer_blocks.0.attn.to_out.weight", "single_transformer_blocks.0.attn.to_out.weight"},
		{"ZImageTransformer2DModel", "", "all_final_layer.2-1.adaLN_modulation.0.bias", "all_final_layer.2-1.adaLN_modulation.1.bias"},
		{"ZImageTransformer2DModel", "", "layers.29.adaLN_modulation.0.bias", "layers.29.adaLN_modulation.0.bias"},
		{"QwenImageTransformer2DModel", "", "transformer_blocks.59.img_mod_linear.biases", "transformer_blocks.59.img_mod.1.biases"},
		{"QwenImageTransformer2DModel", "", "transformer_blocks.0.attn.attn_to_out.0.weight", "transformer_blocks.0.attn.to_out.0.weight"},
		{"CLIPTextModel", "", "text_model.embeddings.position_embedding.weight", "text_model.embeddings.position_embedding.weight"},
		{"T5EncoderModel", "", "shared.scales", "shared.scales"},
		{"T5EncoderModel", "", "t5_blocks.23.ff.DenseReluDense.wi_0.weight", "encoder.block.23.layer.1.DenseReluDense.wi_0.weight"},
		{"T5EncoderModel", "", "t5_blocks.0.attention.SelfAttention.relative_attention_bias.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
		{"T5EncoderModel", "", "t5_blocks.1.attention.SelfAttention.relative_attention_bias.weight", ""},
		{"Qwen3Model", "", "layers.35.mlp.down_proj.weight", "model.layers.35.mlp.down_proj.weight"},
		{"Qwen3Model", "", "norm.weight", "model.norm.weight"},
		{"Qwen3Model", "", "rotary_emb.inv_freq", ""},
		{"Qwen2_5_VLForConditionalGeneration", "", "encoder.layers.0.self_attn.rotary_emb.inv_freq", ""},
		{"Qwen2_5_VLForConditionalGeneration", "", "encoder.visual.merger.mlp_1.bias", "visual.merger.mlp.2.bias"},
		{"AutoencoderKL", "FluxPipeline", "decoder.conv_in.conv2d.weight", "decoder.conv_in.weight"},
		{"AutoencoderKL", "ZImagePipeline", "decoder.conv_in.conv.weight", "decoder.conv_in.weight"},
		{"AutoencoderKLQwenImage", "", "decoder.up_block3.resnets.2.norm2.weight", "decoder.up_blocks.3.resnets.2.norm2.gamma"},
		{"AutoencoderKLQwenImage", "", "encoder.down_blocks.1.resnets.0.skip_conv.conv3d.bias", "encoder.down_blocks.3.conv_shortcut.bias"},
		{"AutoencoderKLQwenImage", "", "encoder.down_blocks.2.downsamplers.0.resample_conv.weight", "encoder.down_blocks.8.resample.1.weight"},
		{"AutoencoderKLQwenImage", "", "encoder.down_blocks.3.resnets.1.conv2.conv3d.weight", "encoder.down_blocks.10.conv2.weight"},
	} {
		table := MFlux(c.class, c.pipeline)
		names, _ := table.Names(c.other)
		if got := strings.Join(names, " "); got != c.name {
			t.Errorf("%s: %s is %q, expected %q", c.class, c.other, got, c.name)
		}
		if other, _, _ := table.Other(c.name); c.name != "" && other != c.other {
			t.Errorf("%s: %s is %q there, expected %q", c.class, c.name, other, c.other)
		}
	}
	if MFlux("UNet2DConditionModel", "") != nil {
		t.Error("mflux has no UNet2DConditionModel")
	}
}

// TestMFluxForms checks the forms of what mflux keeps in another one.
func TestMFluxForms(t *testing.T) {
	names := map[string][]int{
		"decoder.conv_in.conv3d.weight":                   {8, 3, 3, 3, 4},
		"decoder.up_block0.resnets.0.conv1.conv3d.weight": {8, 3, 3, 3, 8},
		"decoder.up_block0.resnets.0.norm1.weight":        {8},
		"decoder.mid_block.attentions.0.norm.weight":      {8},
		"decoder.mid_block.attentions.0.to_qkv.weight":    {24, 1, 1, 8},
		"decoder.conv_in.conv3d.bias":                     {8},
	}
	ck := &checkpoint.Checkpoint{Dir: "vae", Tensors: map[string]checkpoint.Tensor{}}
	for name, shape := range names {
		ck.Tensors[name] = checkpoint.Tensor{Name: name, Dtype: "BF16", Shape: shape}
	}
	view, table, err := View(ck, "AutoencoderKLQwenImage", nil)
	if err != nil || table == nil || table.Name != "mflux" {
		t.Fatal(table, err)
	}
	want := map[string][]int{
		"decoder.conv_in.weight":                       {8, 4, 3, 3, 3},
		"decoder.up_blocks.0.resnets.0.conv1.weight":   {8, 8, 3, 3, 3},
		"decoder.up_blocks.0.resnets.0.norm1.gamma":    {8, 1, 1, 1},
		"decoder.mid_block.attentions.0.norm.gamma":    {8, 1, 1},
		"decoder.mid_block.attentions.0.to_qkv.weight": {24, 8, 1, 1},
		"decoder.conv_in.bias":                         {8},
	}
	got := map[string][]int{}
	for name, x := range view.Tensors {
		got[name] = x.Shape
	}
	if !maps.EqualFunc(got, want, slices.Equal[[]int]) {
		t.Errorf("found %v, expected %v", got, want)
	}
}

// TestMFluxAgain checks that T5's table is in every block.
func TestMFluxAgain(t *testing.T) {
	names := []string{"shared.weight"}
	for _, block := range []string{"0", "1", "2"} {
		names = append(names, "t5_blocks."+block+".attention.layer_norm.weight")
	}
	again := MFlux("T5EncoderModel", "").Again(names)
	for _, list := range again {
		slices.Sort(list)
	}
	const bias = ".attention.SelfAttention.relative_attention_bias.weight"
	if !slices.Equal(again["t5_blocks.0"+bias], []string{"t5_blocks.1" + bias, "t5_blocks.2" + bias}) || len(again) != 1 {
		t.Errorf("found %v", again)
	}
	if MFlux("CLIPTextModel", "").Again(names) != nil {
		t.Error("CLIP has nothing twice")
	}
}
